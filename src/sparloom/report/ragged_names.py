"""What tables and figures call data sets of sequence lengths."""

__all__ = ["data_title"]


def data_title(data: str) -> str:
    """How the paper calls a data set."""
    from sparloom.ragged import DATASETS  # loads a compiler, which no other report needs

    return DATASETS[data].title if data in DATASETS else data
