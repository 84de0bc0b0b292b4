"""The processor as a backend: arrays and types of their numbers; kernels, chosen and ranked by the model of choice.py.

Numbers are float32, float64, float16 or bfloat16, which NumPy lacks: arrays of `sparloom.sparse.BFLOAT16` hold its
bits, and arrays of ml_dtypes are viewed as such. Operands of several types are converted to the one that NumPy promotes
them to, in every call: nothing that is kept rests on values, which may change. Of float16 and bfloat16 that is float32.
Integers, booleans and complex numbers are refused: their products would be none of these types, or float64 where nobody
expects it.

Kernels read and write all four types; they add up 16-bit numbers in float32 and round the results once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from sparloom.jit import address, kernels_digest
from sparloom.measure import Caches, checked_threads, machine_digest
from sparloom.ops import Op, Operands
from sparloom.platforms import SPARSE_FAMILIES, Family
from sparloom.platforms.cuda import as_float32
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import BFLOAT16, SparseMatrix
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.racing import Clock, Timer, by_clock
from sparloom.tuning.sparse.choice import choose, score
from sparloom.tuning.sparse.inputs import NUMBERS, Origin, array_of, dense_of
from sparloom.tuning.sparse.settings import CsrPolicy
from sparloom.tuning.sparse.tuner import LIBRARIES, Library

SOURCES = ("cpu/*.hpp", "cpu/spmm.cpp", "cpu/spmm_max.cpp", "cpu/sddmm.cpp", "cpu/attention.cpp", "cpu/traversal.cpp")
STREAMING = ("spmm", "spmm_mean")  # operations whose results may bypass the caches
DTYPE_NAMES = {dtype: "bfloat16" if dtype == BFLOAT16 else dtype.name for dtype in NUMBERS}


def promoted(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Convert arrays of types in `NUMBERS` to the one that NumPy promotes them to; copies those that differ from it."""
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) == 1:
        return arrays
    target = np.result_type(*(np.float32 if dtype == BFLOAT16 else dtype for dtype in dtypes))
    return tuple(_converted(array, target) for array in arrays)


class CpuArrays:
    """NumPy arrays, or others in the memory of the processor; see `Arrays`."""

    def __init__(self) -> None:
        self.dense, self.array = dense_of, array_of

    def dtype(self, op: str, operands: Operands) -> str:
        """Name the type of all numbers; `promoted` made them of one type."""
        return DTYPE_NAMES[next(iter(operands.dense.values())).dtype]

    def promoted(self, matrix: SparseMatrix | None, *dense: np.ndarray) -> tuple[Any, ...]:
        """Convert the values of A and dense operands to the type that NumPy promotes them to; copies if they differ.

        Args:
            matrix: None: its values are not read.
        """
        if matrix is None:
            return None, *promoted(*dense)
        values, *dense = promoted(matrix.values, *dense)
        if values is not matrix.values:
            matrix = SparseMatrix(matrix.pattern, values, values.dtype)
        return matrix, *dense

    def take_rows(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        return operands.take_rows(rows, op)

    def gather_operands(self, operands: Operands, rows: np.ndarray, op: str) -> Operands:
        """Copy some rows, with the columns they use; bfloat16 as float32."""
        found = operands.take_rows(rows, op).used_columns(op)
        if found.matrix.dtype != BFLOAT16 and self.dtype(op, found) != "bfloat16":
            return found
        values = as_float32(found.matrix.values)
        return Operands(SparseMatrix(found.matrix.pattern, values, values.dtype), {
            name: as_float32(array) for name, array in found.dense.items()})

    def gather_rows(self, result: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Copy some rows of a result; bfloat16 as float32."""
        found = result[rows]
        return as_float32(found) if found.dtype == BFLOAT16 else found

    def to_device(self, array: np.ndarray) -> np.ndarray:
        return array

    def multiply(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return one * other

    def check_out(
        self, out: np.ndarray, shape: tuple[int, ...], operands: Operands, inputs: Sequence[tuple[str, Any]],
        origin: Origin,
    ) -> np.ndarray:
        if not isinstance(out, np.ndarray) or out.shape != shape:
            given = out.shape if isinstance(out, np.ndarray) else type(out).__name__
            raise ValueError(f"out is {given}: it must be an array of shape {shape}")
        if isinstance(out, np.ma.MaskedArray):
            raise TypeError("out is a masked array, whose mask would be ignored: give out.data")
        dtype = next(iter(operands.dense.values())).dtype
        try:
            begin = address(out, dtype, written=True)  # raises before anything is computed
        except ValueError as error:
            raise ValueError(f"out cannot be written: {error}") from error
        shared = origin.overlapping(begin, begin + out.nbytes) if out.size else ""
        for name, array in inputs if origin.all_numpy else (*inputs, *origin.other_arrays()):
            if array is not None and np.may_share_memory(
                    out, array if type(array) is np.ndarray else array_of(array, name)):
                shared = name
        if shared:
            raise ValueError(f"out lies in the memory of an operand, {shared}: give another array")
        return out

    def copy(self, result: np.ndarray, out: np.ndarray) -> None:
        address(out, result.dtype, written=True)
        np.copyto(out, result)


class CpuBackend:
    """Kernels compiled for the processor, timed by wall seconds; see `Backend`.

    Args:
        threads: of every call; None: all processors that this process may use.

    Raises:
        TypeError, ValueError: `threads` is too large or no number, see `checked_threads`.
    """

    sources = SOURCES
    arrays = CpuArrays()

    def __init__(
        self, threads: int | None, libraries: Mapping[str, Mapping[str, Library]] = LIBRARIES,
    ) -> None:
        self.threads, self.libraries = checked_threads(threads), libraries
        self._caches = Caches.here(self.threads)

    def kernels(self, op: Op, width: int) -> Family:
        return SPARSE_FAMILIES[op.name](self.threads, width)

    def space(self, op: Op, width: int) -> ConfigSpace:
        return SPARSE_FAMILIES[op.name].make_space(width)

    def configs(self, op: Op, operands: Operands, *, sampled: bool) -> Sequence[Config]:
        """List configurations that treat results as the default does; for a sample, which fits in caches, rows, too.

        Results that bypass the caches put out those of other candidates there, and whoever reads them next must wait
        for memory. A race would judge such kernels by their rivals, and not at all by what they cost their program.
        """
        alike = ["stream"] if op.name in STREAMING else []
        if sampled and self._caches.distant(operands.matrix.pattern, operands.width, operands.value_bytes):
            alike.append("prefetch")
        default = self.default_config(op, operands)
        return [config for config in _configs(op, operands.width)
                if all(bool(config[name]) == bool(default[name]) for name in alike)]

    def default_config(self, op: Op, operands: Operands) -> Config:
        return choose(op.name, operands.matrix.pattern, operands.width, caches=self._caches,
                      value_bytes=operands.value_bytes, prepared=True)

    def launchable(self, op: Op, operands: Operands, configs: Sequence[Config]) -> list[Config]:
        return list(configs)

    def kind(self, config: Config) -> str:
        """Return one kind for all: the model compares all of them."""
        return ""

    def model(self, cache: PlanCache) -> CpuBackend:
        """Return itself: the model needs no rates of this machine."""
        return self

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Score configurations for one problem, see `sparloom.tuning.sparse.choice.score`."""
        return score(op, operands, configs, caches=self._caches)

    def policy(self) -> CsrPolicy:
        return CsrPolicy()

    def timer(self, clock: Clock) -> Timer:
        return by_clock(clock)

    def signature(self) -> Mapping[str, Any]:
        return {"threads": self.threads, "machine": machine_digest(), "kernels": kernels_digest(SOURCES)}


@lru_cache(64)
def _configs(op: Op, width: int) -> list[Config]:
    return list(SPARSE_FAMILIES[op.name].make_space(width))


def _converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert numbers of any type in `NUMBERS` to float32 or float64."""
    return (as_float32(array) if array.dtype == BFLOAT16 else array).astype(dtype, copy=False)
