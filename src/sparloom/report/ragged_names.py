"""What tables and figures call data sets of sequence lengths."""

from sparloom.ragged import DATASETS

__all__ = ["data_title"]


def data_title(data: str) -> str:
    """How the paper calls a data set."""
    return DATASETS[data].title if data in DATASETS else data
