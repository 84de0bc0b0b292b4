"""Prepared patterns of index tensors, cached for as long as the tensors live."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache, cached_property
from threading import RLock

import numpy as np
import torch

from sparloom.forks import forkable
from sparloom.nn.content_hash import content_hash, sampled_hash
from sparloom.nn.edges import transpose_pattern
from sparloom.nn.tensor_backend import ArgmaxProducts, CpuTensorBackend, TensorBackend, tensor_backend
from sparloom.nn.torch_integration import torch_threads
from sparloom.sparse import Pattern
from sparloom.tuning.sparse import Prepared


class PatternCache:
    """Caches what was prepared from index tensors until their storages die.

    A CSR tensor returns new index tensors on every access, so entries are keyed by storage and position in it. The
    indices of a CSR tensor share one version counter with its values: if the counter or the sampled contents have
    changed, the indices are compared with the cached pattern. Writes to long index tensors that torch does not count
    (by `tensor.data`, NumPy, or the tensors that A was made from) may go unnoticed, see
    `sparloom.nn.content_hash.sampled_hash`.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = forkable(RLock())  # reentrant: a finaliser may interrupt a call in the same thread

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, crow: torch.Tensor, col: torch.Tensor, cols: int) -> PreparedPattern:
        """Return the prepared pattern for the device of the tensors and torch's number of threads; prepare it if new.

        Args:
            crow: (rows + 1,) integers.
            col: (nnz,) integers, increasing in every row.

        Raises:
            ValueError: they are not a CSR pattern with this many columns.
        """
        storages = crow.untyped_storage(), col.untyped_storage()
        content = sampled_hash(crow, col)
        threads = torch_threads()
        key = (*(_location(*pair) for pair in zip((crow, col), storages, strict=True)), cols, threads)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry.content == content:
                return entry.prepared
            if entry is not None and _has_indices(entry.prepared.pattern, crow, col):
                entry.content = content
                return entry.prepared
            prepared = PreparedPattern(_pattern(crow, col, cols), threads, tensor_backend(crow.device))
            self._entries[key] = _Entry(tuple(weakref.ref(storage, lambda _: self._entries.pop(key, None))
                                              for storage in storages), content, prepared)
        return prepared


@cache
def pattern_cache() -> PatternCache:
    """Return the cache of this process."""
    return PatternCache()


class PreparedPattern:
    """Computes with matrices of one pattern A (rows, cols) and with their transposes; each has decisions of its own.

    Tensors have one of the dtypes that sparse operations support on their device, all of a call the same, and any
    strides; nothing is recorded for autograd.

    Args:
        threads: of every call on the CPU.
        backend: of the tensors (default: CPU).
    """

    def __init__(self, pattern: Pattern, threads: int, backend: TensorBackend | None = None) -> None:
        self.pattern, self.threads = pattern, threads
        self._backend = CpuTensorBackend() if backend is None else backend
        self.forward = self._backend.prepared(pattern, threads)
        self._last_transposed: tuple[Hashable, torch.Tensor] | None = None

    @property
    def backward(self) -> Prepared:
        """The transposed pattern, prepared; the same object as `forward` if the pattern is symmetric."""
        return self._transposition[0]

    @cached_property
    def rows(self) -> torch.Tensor:
        """Row of every nonzero, (nnz,) int32."""
        return torch.from_numpy(self.pattern.row_ids()).to(self._backend.device)

    @cached_property
    def offsets(self) -> torch.Tensor:
        """Row pointers, (rows + 1,) int64."""
        return torch.from_numpy(self.pattern.indptr).to(self._backend.device)

    def spmm(self, values: torch.Tensor, dense: torch.Tensor, reduce: str = "sum") -> torch.Tensor:
        """Compute A X, (rows, width), for values (nnz,) and X (cols, width)."""
        array = self._backend.array
        return self._backend.run(lambda: self.forward.spmm(array(dense), reduce=reduce, values=array(values)))

    def spmm_transposed(self, values: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Compute AT Y, (cols, width), for values (nnz,) in the order of A and Y (rows, width)."""
        array, transposed = self._backend.array, self._transposed_values(values)
        return self._backend.run(lambda: self.backward.spmm(array(dense), values=array(transposed)))

    def spmm_max(self, values: torch.Tensor, dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the largest products and their argmax, both (rows, width), see `Prepared.spmm_max`."""
        array = self._backend.array
        return self._backend.run(lambda: self.forward.spmm_max(array(dense), values=array(values)))

    def sddmm(self, values: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Compute values * (Q KT), (nnz,), for Q (rows, width) and K (cols, width); values default to 1."""
        array = self._backend.array
        if values is None and left.dtype != torch.float32:  # the prepared ones are float32
            values = left.new_ones(self.pattern.nnz)
        return self._backend.run(lambda: self.forward.sddmm(
            array(left), array(right), values=None if values is None else array(values)))

    def attention(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Compute softmax(Q KT / sqrt(d)) V, (rows, heads, e), for Q and K of heads of width d, V of width e."""
        arrays = map(self._backend.array, (queries, keys, values))
        return self._backend.run(lambda: self.forward.attention(*arrays))

    @cached_property
    def argmax_products(self) -> ArgmaxProducts:
        """Products that use one nonzero per element, see `sparloom.nn.tensor_backend`."""
        return self._backend.argmax_products(self.pattern, self.threads)

    @cached_property
    def _transposition(self) -> tuple[Prepared, torch.Tensor]:
        """The transposed pattern, prepared, and the position in A of each of its nonzeros."""
        transposed, order = transpose_pattern(self.pattern)
        prepared = self.forward if transposed is self.pattern else self._backend.prepared(transposed, self.threads)
        return prepared, order.to(self._backend.device)

    def _transposed_values(self, values: torch.Tensor) -> torch.Tensor:
        """Permute values into the order of the transposed pattern; on the CPU, caches those of the last call."""
        if values.device.type != "cpu":  # hashing would wait for the device, where permuting is quick
            return values.index_select(0, self._transposition[1])
        content, last = content_hash(values), self._last_transposed
        if last is None or last[0] != content:
            last = self._last_transposed = content, values.index_select(0, self._transposition[1])
        return last[1]


@dataclass(eq=False)
class _Entry:
    """A cache entry.

    Args:
        storages: of both index tensors.
        content: their `sampled_hash`.
    """

    storages: tuple[weakref.ref, weakref.ref]
    content: Hashable
    prepared: PreparedPattern


def _location(tensor: torch.Tensor, storage: torch.UntypedStorage) -> Hashable:
    """Identify the memory of a tensor; the Python object of a storage, hence its id, lives as long as the storage."""
    return id(storage), tensor.storage_offset(), tensor.stride(), tensor.numel(), tensor.dtype


def _pattern(crow: torch.Tensor, col: torch.Tensor, cols: int) -> Pattern:
    """Copy the indices, so that the cache does not keep the tensors alive."""
    try:
        return Pattern((crow.numel() - 1, cols), *(np.array(tensor.numpy(force=True)) for tensor in (crow, col)))
    except ValueError as error:
        raise ValueError(
            f"crow_indices and col_indices of A are not a CSR pattern with columns in increasing order: {error}; "
            "torch.sparse_coo_tensor(indices, values, shape).coalesce().to_sparse_csr() makes a valid one") from error


def _has_indices(pattern: Pattern, crow: torch.Tensor, col: torch.Tensor) -> bool:
    return np.array_equal(pattern.indptr, crow.numpy(force=True)) and np.array_equal(
        pattern.indices, col.numpy(force=True))
