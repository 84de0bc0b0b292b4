"""Results found again by the index arrays that they were made from."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from sparloom.fusion.operands import Csr

__all__ = ["IdentityCache"]

CAPACITY = 64

Made = TypeVar("Made")


class IdentityCache(Generic[Made]):
    """Remembers what was made for arguments, as long as their index arrays live.

    Arrays are known by identity, so that a call costs nothing in proportion to their size: an index array must not be
    changed in place between calls.

    Args:
        capacity: results; with one more, the oldest is forgotten.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._known: OrderedDict[tuple[Any, ...], tuple[tuple[weakref.ref, ...], Made]] = OrderedDict()

    def find(
        self, arguments: Mapping[str, Any], make: Callable[[], Made], arrays: Sequence[Any] | None = None,
    ) -> Made:
        """Return what was made for arguments with these index arrays, shapes and numbers, or make it.

        Args:
            arrays: index arrays that are not NumPy's, beside arguments without any.
        """
        arrays = _index_arrays(arguments) if arrays is None else arrays
        key = self._key(arrays, arguments)
        references, made = self._known.get(key, (None, None))
        if references is None or any(ref() is not array for ref, array in zip(references, arrays, strict=True)):
            made = make()
            self._known[key] = (tuple(map(weakref.ref, arrays)), made)
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return made

    def review(self, arrays: Sequence[Any], fits: Callable[[Made], bool]) -> None:
        """Forget what was made for these index arrays, whatever else the arguments were, and does not fit them now."""
        begin = tuple(map(id, arrays))
        for key, (_, made) in list(self._known.items()):
            if key[:len(begin)] == begin and not fits(made):
                self._known.pop(key, None)

    def _key(self, arrays: Sequence[Any], arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        return (*map(id, arrays), *(_description(value) for value in arguments.values()))


def _index_arrays(arguments: Mapping[str, Any]) -> list[np.ndarray]:
    found = []
    for value in arguments.values():
        parts = (value.p, value.i) if isinstance(value, Csr) else (value,)
        found += [part for part in parts if isinstance(part, np.ndarray) and part.dtype.kind in "iu"]
    return found


def _description(value: Any) -> Any:
    """What of an argument, other than the content of index arrays, a graph and its tiles depend on."""
    if isinstance(value, Csr):
        return value.shape, str(value.x.dtype)
    return (value.shape, str(value.dtype)) if isinstance(value, np.ndarray) else value
