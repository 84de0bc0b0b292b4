"""Operands at new places in memory, so that a measurement does not depend on the places of the one before."""

from dataclasses import replace
from typing import TypeVar

import numpy as np

from sparloom.jit import aligned
from sparloom.ops import DenseOperands, Operands

__all__ = ["reallocated"]

Given = TypeVar("Given", Operands, DenseOperands)


def reallocated(operands: Given) -> Given:
    """Copy the dense operands to new pages."""
    dense = {}
    for name, array in operands.dense.items():
        dense[name] = aligned(array.shape, np.float32)
        dense[name][...] = array
    return replace(operands, dense=dense)
