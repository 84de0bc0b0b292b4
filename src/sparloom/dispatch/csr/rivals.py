"""What the guardrail compares with: kernels of other libraries, bound to arrays that are there before the call."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from sparloom.ops import Operands
from sparloom.platforms import Rival

__all__ = ["LIBRARIES"]


def scipy_spmm(operands: Operands, result: np.ndarray) -> Callable[[], None]:
    """Multiply by SciPy: one thread, into a new array; the copy is in the time."""
    matrix, dense = operands.matrix.to_scipy(), operands.dense["B"]
    return lambda: np.copyto(result, matrix @ dense)


LIBRARIES: Mapping[str, Mapping[str, Rival]] = MappingProxyType({"spmm": MappingProxyType({"scipy": scipy_spmm})})
"""Operation -> library -> rival, of libraries that are always there."""
