"""The arrays that users gave a sparse matrix in: what results must not be written to, and what must not change."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
from numpy.lib.array_utils import byte_bounds

from sparloom.jit import Watch
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.sparse.given import array_of

__all__ = ["Origin", "check_apart", "origin_of"]


class Origin:
    """Knows the arrays of a matrix that was prepared, and does not keep them alive.

    Args:
        given: what the user passed; None: nothing that anybody else has.
    """

    def __init__(self, given: Any = None) -> None:
        arrays = dict(_arrays(given))
        self._spans = {name: _span(array) for name, array in arrays.items() if isinstance(array, np.ndarray)}
        self.is_here = len(self._spans) == len(arrays)
        """Whether all of them are NumPy arrays."""
        self._references = {name: self._reference(name, array) for name, array in arrays.items()}
        indices = {name: array for name, array in arrays.items() if name in ("indptr", "indices")
                   and isinstance(array, np.ndarray)}
        self._watch = Watch(indices if _is_csr(given) else {})
        self.changed = self._watch.changed

    def __reduce__(self) -> tuple[type[Origin], tuple[()]]:
        return Origin, ()

    def refuse(self, number: int) -> None:
        """Refuse to compute with an index array that is not as it was.

        Args:
            number: what `changed` gave.

        Raises:
            ValueError: says so, and names the remedy.
        """
        raise ValueError(f"{self._watch.name(number)} of A was changed in place since A was prepared: call once with "
                         "changed=True, or prepare A anew")

    def at(self, begin: int, end: int) -> str:
        """Name the NumPy array of A that lies between two addresses, at least in part; "" if none does."""
        for name, (first, last) in list(self._spans.items()):
            if first < end and begin < last:
                return f"{name} of A"
        return ""

    def elsewhere(self) -> Iterator[tuple[str, Any]]:
        """Name the arrays of other libraries that are still there."""
        for name, reference in self._references.items():
            array = reference()
            if array is not None and name not in self._spans:
                yield f"{name} of A", array

    def _reference(self, name: str, array: Any) -> weakref.ref:
        return weakref.ref(array, lambda _: self._spans.pop(name, None))


def origin_of(matrix: SparseMatrix, given: Any) -> tuple[SparseMatrix, Origin]:
    """Let a matrix have index arrays of its own: no change of those that were given can lead a kernel astray."""
    pattern, arrays = matrix.pattern, [array_of(array, name) for name, array in _arrays(given)]
    own = {name: np.array(array) for name, array in (("indptr", pattern.indptr), ("indices", pattern.indices))
           if any(np.may_share_memory(array, each) for each in arrays)}
    if own:
        pattern = copy(pattern)  # which does not check again what has been checked
        for name, array in own.items():
            object.__setattr__(pattern, name, array)
        matrix = replace(matrix, pattern=pattern)
    return matrix, Origin(given)


def _span(array: np.ndarray) -> tuple[int, int]:
    """The first address, and the first one behind."""
    return byte_bounds(array) if array.size else (0, 0)


def check_apart(out: Any, given: Any) -> None:
    """Refuse an array for a result that lies in the memory of a sparse matrix; None lies nowhere.

    Raises:
        ValueError: it does; names the array.
    """
    for name, array in _arrays(given) if isinstance(out, np.ndarray) else ():
        if np.may_share_memory(out, array_of(array, name)):
            raise ValueError(f"out lies in the memory of an operand, {name} of A: give another array")


def _is_csr(given: Any) -> bool:
    return isinstance(given, (tuple, SparseMatrix, Pattern)) or getattr(given, "format", "") == "csr"


def _arrays(given: Any) -> Iterator[tuple[str, Any]]:
    """Name the arrays of a sparse matrix of any kind that `matrix_of` takes."""
    if isinstance(given, SparseMatrix):
        yield "values", given.values
        given = given.pattern
    if isinstance(given, tuple):
        yield from zip(("indptr", "indices", "values"), given[:3], strict=False)
    elif isinstance(given, Pattern):
        yield from (("indptr", given.indptr), ("indices", given.indices))
    elif scipy.sparse.issparse(given):
        for name, value in vars(given).items():
            parts = value if isinstance(value, tuple) else (value,)
            for number, part in enumerate(parts):
                if isinstance(part, np.ndarray) and part.dtype != object:
                    yield name if len(parts) == 1 else f"{name}[{number}]", part
