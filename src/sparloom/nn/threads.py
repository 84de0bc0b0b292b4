"""How many threads operations on the CPU have."""

import torch

from sparloom.measure import checked_threads

__all__ = ["torch_threads"]


def torch_threads() -> int:
    """Give as many as torch has.

    Raises:
        ValueError: those are more than can run; see `checked_threads`.
    """
    return checked_threads(torch.get_num_threads(), "torch.get_num_threads()")
