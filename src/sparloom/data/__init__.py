"""Sample tables, splits, featurizer inputs and the data store: everything between platforms and models."""

from sparloom.data.journal import Journal, compact
from sparloom.data.sample import Sample
from sparloom.data.table import SampleTable

__all__ = ["Journal", "Sample", "SampleTable", "compact"]
