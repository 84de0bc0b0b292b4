"""Old name of a package, see `sparloom.renamed`."""

from sparloom.renamed import old_package

__getattr__ = old_package(__name__)
