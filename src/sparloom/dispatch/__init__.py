"""Old name of a package; `sparloom.lazy` resolves its names."""

from sparloom.lazy import old_package

__getattr__ = old_package(__name__)
