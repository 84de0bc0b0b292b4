"""One sparse pattern, ready for products by matrices that have it and by their transposes.

Patterns of index tensors that operations have seen: what was prepared of them is found again.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache, cached_property
from threading import RLock

import numpy as np
import torch

from sparloom.forks import forkable
from sparloom.nn import tensor_backend as at_places
from sparloom.nn.edges import turn
from sparloom.nn.tensor_backend import CpuTensors, DevicePlaces, TensorPlace, tensors_on
from sparloom.nn.torch_integration import torch_threads
from sparloom.nn.version_guard import Unchanged, indices_of
from sparloom.sparse import Pattern
from sparloom.tuning.sparse import Prepared

__all__ = ["Directions", "KnownPatterns", "known_patterns"]


class Directions:
    """Computes with matrices of one pattern A (rows, cols), and A transposed, which is decided about on its own.

    Tensors are of float32, or on a GPU float16 or bfloat16, of any strides; gradients are not followed.

    Args:
        threads: of every call on the CPU.
        tensors: where they are; on the CPU unless given.
    """

    def __init__(self, pattern: Pattern, threads: int, tensors: TensorPlace | None = None) -> None:
        self.pattern, self.threads = pattern, threads
        self._tensors = CpuTensors() if tensors is None else tensors
        self.forward = self._tensors.prepared(pattern, threads)
        self._last_turned: tuple[Unchanged, torch.Tensor] | None = None

    @property
    def backward(self) -> Prepared:
        """What multiplies by the transposed pattern; the same object as `forward` where they are equal."""
        return self._turned[0]

    @cached_property
    def rows(self) -> torch.Tensor:
        """Row of every nonzero, (nnz,) int32."""
        return torch.from_numpy(self.pattern.row_ids()).to(self._tensors.device)

    @cached_property
    def offsets(self) -> torch.Tensor:
        """First nonzero of every row, and their number, (rows + 1,) int64."""
        return torch.from_numpy(self.pattern.indptr).to(self._tensors.device)

    def spmm(self, values: torch.Tensor, dense: torch.Tensor, reduce: str = "sum") -> torch.Tensor:
        """Compute A X, (rows, width), for values (nnz,) and X (cols, width)."""
        array = self._tensors.array
        return self._tensors.run(lambda: self.forward.spmm(array(dense), reduce=reduce, values=array(values)))

    def spmm_transposed(self, values: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Compute AT Y, (cols, width), for values (nnz,) in the order of A and Y (rows, width)."""
        array, turned = self._tensors.array, self._in_turn(values)
        return self._tensors.run(lambda: self.backward.spmm(array(dense), values=array(turned)))

    def spmm_max(self, values: torch.Tensor, dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the largest products, (rows, width), and which nonzero each comes from, int32, see `Prepared`."""
        array = self._tensors.array
        return self._tensors.run_both(lambda: self.forward.spmm_max(array(dense), values=array(values)))

    def spmm_at(self, places: torch.Tensor, values: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Compute A X, (rows, width), of one nonzero per element, see `sparloom.nn.tensor_backend`; as the next two."""
        if self._places is not None:
            return self._places.spmm_at(places, values, dense)
        return at_places.spmm_at(places, self.pattern.indices, values, dense, threads=self.threads)

    def spmm_transposed_at(self, places: torch.Tensor, values: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Compute AT Y, (cols, width), likewise, for Y (rows, width)."""
        if self._places is not None:
            return self._places.spmm_transposed_at(places, values, dense)
        return at_places.spmm_transposed_at(places, self.pattern.indices, values, dense, cols=self.pattern.cols,
                                            threads=self.threads)

    def sddmm_at(self, places: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Compute Y XT on the pattern of A, (nnz,), likewise."""
        if self._places is not None:
            return self._places.sddmm_at(places, left, right)
        return at_places.sddmm_at(places, self.pattern.indices, left, right, threads=self.threads)

    def sddmm(self, values: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Compute values * (Q KT), (nnz,), for Q (rows, width) and K (cols, width); values are 1 unless given."""
        array = self._tensors.array
        if values is None and left.dtype != torch.float32:  # what is prepared has ones of float32
            values = left.new_ones(self.pattern.nnz)
        return self._tensors.run(lambda: self.forward.sddmm(
            array(left), array(right), values=None if values is None else array(values)))

    def attention(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Compute softmax(Q KT / sqrt(d)) V, (rows, heads, e).

        Args:
            queries, keys, values: Q (rows, heads, d), K (cols, heads, d), V (cols, heads, e).
        """
        given = map(self._tensors.array, (queries, keys, values))
        return self._tensors.run(lambda: self.forward.attention(*given))

    @cached_property
    def _places(self) -> DevicePlaces | None:
        return self._tensors.places(self.pattern)

    @cached_property
    def _turned(self) -> tuple[Prepared, torch.Tensor]:
        transposed, order = turn(self.pattern)
        prepared = self.forward if transposed is self.pattern else self._tensors.prepared(transposed, self.threads)
        return prepared, order.to(self._tensors.device)

    def _in_turn(self, values: torch.Tensor) -> torch.Tensor:
        """Bring values into the order of the transposed pattern; on the CPU, those of the last call are kept."""
        if values.device.type != "cpu":  # comparing them would wait for the device, and turning them is quick there
            return values.index_select(0, self._turned[1])
        held, last = Unchanged.of(values), self._last_turned
        if last is None or last[0] != held:
            last = self._last_turned = held, values.index_select(0, self._turned[1])
        return last[1]


@dataclass(eq=False)
class _Known:
    """What was made of two index tensors.

    Args:
        storages: that they lie in.
        held: what they held, as `sparloom.nn.version_guard.indices_of` tells.
    """

    storages: tuple[weakref.ref, weakref.ref]
    held: Hashable
    directions: Directions


class KnownPatterns:
    """Keeps what was prepared of index tensors for as long as their storages live.

    A CSR tensor gives new tensors for its indices each time, so they are known by the storage they lie in, and where.
    They share one count of writes with its values: where that has risen, or what is read of them each time is another,
    indices are compared with what they were. Writes into long index tensors that torch does not count (`tensor.data`,
    NumPy, the tensors that A was made of) may not be seen: see `sparloom.nn.version_guard.indices_of`.
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
