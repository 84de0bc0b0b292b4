"""Patterns of index tensors that operations have seen: what was prepared of them is found again."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from threading import RLock

import numpy as np
import torch

from sparloom.forks import forkable
from sparloom.nn.directions import Directions
from sparloom.nn.tensor_place import tensors_on
from sparloom.nn.threads import torch_threads
from sparloom.nn.unchanged import indices_of
from sparloom.sparse import Pattern

__all__ = ["KnownPatterns", "known_patterns"]


@dataclass(eq=False)
class _Known:
    """What was made of two index tensors.

    Args:
        storages: that they lie in.
        held: what they held, as `sparloom.nn.unchanged.indices_of` tells.
    """

    storages: tuple[weakref.ref, weakref.ref]
    held: Hashable
    directions: Directions


class KnownPatterns:
    """Keeps what was prepared of index tensors for as long as their storages live.

    A CSR tensor gives new tensors for its indices each time, so they are known by the storage they lie in, and where.
    They share one count of writes with its values: where that has risen, or what is read of them each time is another,
    indices are compared with what they were. Writes into long index tensors that torch does not count (`tensor.data`,
    NumPy, the tensors that A was made of) may not be seen: see `sparloom.nn.unchanged.indices_of`.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, _Known] = {}
        self._lock = forkable(RLock())  # a finaliser may interrupt a call of the same thread

    def __len__(self) -> int:
        return len(self._known)

    def find(self, crow: torch.Tensor, col: torch.Tensor, cols: int) -> Directions:
        """Give what was made of a pattern for the device of its tensors and as many threads as torch has, or make it.

        Args:
            crow: (rows + 1,) integers.
            col: (nnz,) integers, rising in every row.

        Raises:
            ValueError: they are no pattern with so many columns.
        """
        storages = crow.untyped_storage(), col.untyped_storage()
        held = indices_of(crow, col)
        threads = torch_threads()
        key = (*(_place(*pair) for pair in zip((crow, col), storages, strict=True)), cols, threads)
        with self._lock:
            known = self._known.get(key)
            if known is not None and known.held == held:
                return known.directions
            if known is not None and _same(known.directions.pattern, crow, col):
                known.held = held
                return known.directions
            directions = Directions(_pattern(crow, col, cols), threads, tensors_on(crow.device))
            self._known[key] = _Known(tuple(weakref.ref(storage, lambda _: self._known.pop(key, None))
                                            for storage in storages), held, directions)
        return directions


@cache
def known_patterns() -> KnownPatterns:
    """Give those of this process."""
    return KnownPatterns()


def _place(tensor: torch.Tensor, storage: torch.UntypedStorage) -> Hashable:
    """Where a tensor lies; storages keep their object, and with it its number, until they die."""
    return id(storage), tensor.storage_offset(), tensor.stride(), tensor.numel(), tensor.dtype


def _pattern(crow: torch.Tensor, col: torch.Tensor, cols: int) -> Pattern:
    """Copy the indices: what is kept must not keep the tensors alive."""
    try:
        return Pattern((crow.numel() - 1, cols), *(np.array(tensor.numpy(force=True)) for tensor in (crow, col)))
    except ValueError as error:
        raise ValueError(
            f"the indices of A are no CSR pattern with columns that rise in every row: {error}; from other indices, "
            "torch.sparse_coo_tensor(indices, values, shape).coalesce().to_sparse_csr() makes one") from error


def _same(pattern: Pattern, crow: torch.Tensor, col: torch.Tensor) -> bool:
    return np.array_equal(pattern.indptr, crow.numpy(force=True)) and np.array_equal(
        pattern.indices, col.numpy(force=True))
