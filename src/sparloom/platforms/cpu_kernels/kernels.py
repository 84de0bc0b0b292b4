"""Hand-written CPU kernels: a platform with one family per operation, which binds kernels/cpu/<operation>.cpp."""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from sparloom.jit import NativeCall, address, aligned, compile_cpp, compiler_version, sources_digest
from sparloom.measure import Measurement, TimingProtocol, checked_threads
from sparloom.ops import GEMM, DenseOperands, Op, Operands
from sparloom.platforms.clock import Stopwatch, keep_threads_awake
from sparloom.platforms.cpu_kernels.rows import BoundRows, Rows, SparseRows
from sparloom.platforms.platform import BaselineBinder, Family, Inputs, KernelPlatform, unknown_operation
from sparloom.platforms.timing import Call, Check, SpotCheck, measure_rounds, reallocated, repeat_of
from sparloom.space import (
    AttentionSpace,
    Config,
    GemmSpace,
    GridSpace,
    SddmmSpace,
    SpmmMaxSpace,
    SpmmSpace,
    register_tile,
)

__all__ = [
    "Allocate", "AttentionKernels", "CpuKernels", "GemmKernels", "SddmmKernels", "SparseCall", "SpmmKernels",
    "SpmmMaxKernels",
]

MAX_STRIP = 2**31 - 1  # columns of a strip that is as wide as it can be
MAX_ARGMAX = 2**31 - 1  # the argmax is int32
PACK = {"none": 0, "b": 1, "ab": 2}

Allocate = Callable[[tuple[int, ...], type[np.generic]], np.ndarray]
"""Makes an uninitialised array of a shape and a type."""


class CpuKernels(KernelPlatform):
    """Kernels under kernels/cpu, compiled for this machine; a configuration chooses one of them and its tiles.

    Args:
        threads: of every kernel; names the preset.
        width: columns of the dense operand for which the spaces of sparse operations are made.
        allocate: makes arrays for results.
    """

    name = "cpu_kernels"
    kind = "wall"

    def __init__(self, threads: int, width: int, allocate: Allocate = aligned) -> None:
        self.threads = checked_threads(threads)
        self.width = width
        self._allocate = allocate

    def __reduce__(self) -> tuple[type["CpuKernels"], tuple[int, int, Allocate]]:
        """Pickle the settings only: compiled kernels stay in their process."""
        return CpuKernels, (self.threads, self.width, self._allocate)

    @property
    def preset(self) -> str:
        """Name of these settings in sample tables."""
        return f"t{self.threads}"

    def conditions(self, op: Op) -> Mapping[str, Any]:
        """Name what seconds depend on besides the machine: threads, compiler, sources of the kernels of `op`."""
        self.family(op)  # refuses an operation without kernels
        return {"threads": self.threads, "compiler": compiler_version("c++"),
                "sources": sources_digest([f"cpu/{op.name}.cpp"])}

    def run(self, op: Op, operands: Inputs, config: Config) -> np.ndarray:
        """Compute the result in float32.

        Raises:
            IllegalSchedule: the configuration is not in the space.
        """
        family = self.family(op)
        family.space().validate(config)
        result = family.result(operands)
        family.bind(operands, config, result)()
        return result

    def measure_many(
        self, op: Op, operands: Inputs, configs: Sequence[Config], timing: TimingProtocol,
        baselines: Mapping[Config, BaselineBinder] | None = None,
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Measure configurations in interleaved rounds, as `KernelPlatform` says; in each, operands are reallocated."""
        keep_threads_awake()
        family = self.family(op)
        for config in configs:
            family.space().validate(config)

        def prepare() -> tuple[dict[Config, Callable[[], Call]], np.ndarray]:
            inputs = reallocated(operands)
            result = family.result(inputs)
            ours = {config: partial(family.bind, inputs, config, result) for config in configs}
            return ours | {config: partial(bind, inputs, result) for config, bind in (baselines or {}).items()}, result

        yield from measure_rounds(
            prepare, family.check(op, operands, seed=timing.seed), timing, kind=self.kind,
            stopwatch=lambda call: Stopwatch(repeat_of(call), timing, threads=self.threads))

    def family(self, op: Op) -> Family:
        """Return the kernels of `op`."""
        if op.name not in self._families:
            raise unknown_operation(op, self.name, self._families)
        return self._families[op.name]

    @cached_property
    def _families(self) -> dict[str, Family]:
        return {name: family(self.threads, self.width, self._allocate) for name, family in FAMILIES.items()}


class SparseCall(NativeCall):
    """A call whose arguments begin with a struct Rows; it keeps the values of the sparse operand alive."""

    _values: np.ndarray | None = None

    def point(self, values: np.ndarray) -> None:
        """Read other values of the same pattern."""
        if values is not self._values:
            self._values = None  # an exception before the last line must not leave an address of other values
            self.arguments.rows.values = address(values)
            self._values = values


class SparseFamily(ABC):
    """Kernels of one operation with one sparse operand.

    Args:
        threads: of every call.
        width: columns of the dense operands, all heads together, for which `space` is made; kernels take any width.
        allocate: makes arrays for results.
    """

    make_space: Callable[[int], GridSpace]

    def __init__(self, threads: int, width: int, allocate: Allocate = aligned) -> None:
        self.threads = threads
        self.width = width
        self._allocate = allocate
        self._rows = SparseRows(threads)

    def space(self) -> GridSpace:
        """List the configurations."""
        return self.make_space(self.width)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, width)."""
        return self._allocate((operands.matrix.pattern.rows, operands.width), np.float32)

    @abstractmethod
    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> NativeCall:
        """Bind the kernel of a legal configuration."""

    @abstractmethod
    def rebind(self, call: Any, operands: Operands, result: np.ndarray) -> None:
        """Point a call to other arrays of the same shapes."""

    def check(self, op: Op, operands: Operands, *, seed: int) -> Check:
        """Compare some rows of a result with the oracle, and make sure that all are written."""
        return SpotCheck(op, operands, seed=seed).compare_written

    def _bind_rows(self, operands: Operands, config: Config, *, together: bool = False) -> BoundRows:
        return self._rows.bind(operands.matrix.pattern, order=str(config["order"]), balance=str(config["balance"]),
                               together=together)


class SpmmKernels(SparseFamily):
    """The family of SpMM."""

    make_space = staticmethod(SpmmSpace)

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> SparseCall:
        together = config["together"] > 1
        rows = self._bind_rows(operands, config, together=together)
        carries = _carries(rows, operands.width)
        arguments = _Spmm(
            rows=rows.arguments, carries=_optional(carries), width=operands.width,
            strip=MAX_STRIP if config["strip"] == "all" else config["strip"], ahead=1024 * int(config["prefetch"]),
            stream=config["stream"], together=together)
        call = SparseCall(_library("spmm").sparloom_spmm, arguments, kept=(rows, carries))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: SparseCall, operands: Operands, result: np.ndarray) -> None:
        arguments = call.arguments
        call.point(operands.matrix.values)
        arguments.dense, arguments.result = address(operands.dense["B"]), address(result, written=True)
        call.lent = (operands, result)


class SpmmMaxKernels(SparseFamily):
    """The family of the maximum of products."""

    make_space = staticmethod(SpmmMaxSpace)

    def argmax(self, operands: Operands) -> np.ndarray:
        """Allocate the argmax of D, (rows, width) int32."""
        return self._allocate((operands.matrix.pattern.rows, operands.width), np.int32)

    def bind(
        self, operands: Operands, config: Config, result: np.ndarray, argmax: np.ndarray | None = None,
    ) -> SparseCall:
        """Bind the kernel of a legal configuration.

        Args:
            argmax: gets the index of the nonzero of A behind each element of D: the first one whose product is the
                largest, or NaN; -1 in rows without nonzeros. None: not computed.

        Raises:
            ValueError: the argmax is wanted and A has too many nonzeros to index them in int32.
        """
        nnz = operands.matrix.pattern.nnz
        if argmax is not None and nnz > MAX_ARGMAX:
            raise ValueError(f"A has {nnz} nonzeros, above the {MAX_ARGMAX} that the argmax can index: split A by rows")
        rows = self._bind_rows(operands, config)
        carries = _carries(rows, operands.width)
        carried_argmax = None if argmax is None else _carries(rows, operands.width, np.int32)
        arguments = _SpmmMax(
            rows=rows.arguments, carries=_optional(carries), carried_places=_optional(carried_argmax, np.int32),
            width=operands.width, ahead=1024 * int(config["prefetch"]))
        call = SparseCall(_library("spmm_max").sparloom_spmm_max, arguments, kept=(rows, carries, carried_argmax))
        self.rebind(call, operands, result, argmax)
        return call

    def rebind(
        self, call: SparseCall, operands: Operands, result: np.ndarray, argmax: np.ndarray | None = None,
    ) -> None:
        """Point a call to other arrays of the same shapes; give an argmax only if it was bound with one."""
        arguments = call.arguments
        call.point(operands.matrix.values)
        arguments.dense, arguments.result = address(operands.dense["B"]), address(result, written=True)
        arguments.places = None if argmax is None else address(argmax, np.int32, written=True)
        call.lent = (operands, result, argmax)


class SddmmKernels(SparseFamily):
    """The family of SDDMM."""

    make_space = staticmethod(SddmmSpace)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate the values of D (nnz,)."""
        return self._allocate((operands.matrix.pattern.nnz,), np.float32)

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> SparseCall:
        rows = self._bind_rows(operands, config)
        arguments = _Sddmm(rows=rows.arguments, width=operands.width, ahead=2048 * int(config["prefetch"]),
                           group=config["group"])
        call = SparseCall(_library("sddmm").sparloom_sddmm, arguments, kept=(rows,))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: SparseCall, operands: Operands, result: np.ndarray) -> None:
        arguments = call.arguments
        call.point(operands.matrix.values)
        arguments.left, arguments.right = address(operands.dense["B"]), address(operands.dense["C"])
        arguments.result = address(result, written=True)
        call.lent = (operands, result)


class AttentionKernels(SparseFamily):
    """The family of attention on a sparse pattern."""

    make_space = staticmethod(AttentionSpace)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, heads, columns of a head of V)."""
        return self._allocate((operands.matrix.pattern.rows, *operands.dense["V"].shape[1:]), np.float32)

    def bind(self, operands: Operands, config: Config, result: np.ndarray) -> NativeCall:
        """Bind the kernel of a legal configuration; scores are divided by the square root of the width of a head."""
        rows = self._bind_rows(operands, config)
        heads, width = operands.dense["K"].shape[1:]
        value_width = operands.dense["V"].shape[2]
        parts = _carries(rows, 2 * heads * (value_width + 2))
        arguments = _Attention(
            rows=rows.arguments, parts=_optional(parts), heads=heads, width=width, value_width=value_width,
            scale=width**-0.5, ahead=1024 * int(config["prefetch"]))
        call = NativeCall(_library("attention").sparloom_attention, arguments, kept=(rows, parts))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: NativeCall, operands: Operands, result: np.ndarray) -> None:
        arguments, dense = call.arguments, operands.dense
        arguments.queries, arguments.keys, arguments.values = (address(dense[name]) for name in ("Q", "K", "V"))
        arguments.result = address(result, written=True)
        call.lent = (operands, result)


class GemmKernels:
    """The family of dense GEMM; all calls share one workspace for packed blocks.

    Args:
        threads: of every call.
        width: ignored, because a shape has its own.
        allocate: makes arrays for results.
    """

    def __init__(self, threads: int, width: int, allocate: Allocate = aligned) -> None:
        self.threads = threads
        self.width = width
        self._allocate = allocate
        self._workspace = aligned((0,), np.float32)

    def space(self) -> GridSpace:
        return self._space

    def result(self, operands: DenseOperands) -> np.ndarray:
        """Allocate C (m, n)."""
        return self._allocate((operands.shape.m, operands.shape.n), np.float32)

    def bind(self, operands: DenseOperands, config: Config, result: np.ndarray) -> NativeCall:
        shape, (rows, columns) = operands.shape, register_tile(config)
        arguments = _Gemm(
            m=shape.m, n=shape.n, k=shape.k, tile_m=config["tile_m"], tile_n=config["tile_n"],
            tile_k=config["tile_k"], rows=rows, columns=columns, unroll=config["unroll"], pack=PACK[config["pack"]],
            threads=self.threads)
        library = _library("gemm")
        library.sparloom_gemm_prepare.restype = ctypes.c_int64
        floats = library.sparloom_gemm_prepare(ctypes.byref(arguments))
        assert floats >= 0, f"kernels/cpu/gemm.cpp has no register tile {config['micro']}"
        if floats > self._workspace.size:
            self._workspace = aligned((floats,), np.float32, zero=True)
        arguments.workspace = address(self._workspace)
        call = NativeCall(library.sparloom_gemm, arguments, kept=(self._workspace,))
        self.rebind(call, operands, result)
        return call

    def rebind(self, call: NativeCall, operands: DenseOperands, result: np.ndarray) -> None:
        arguments = call.arguments
        arguments.a, arguments.b = address(operands.dense["A"]), address(operands.dense["B"])
        arguments.c = address(result, written=True)
        call.lent = (operands, result)

    def check(self, op: GEMM, operands: DenseOperands, *, seed: int) -> Check:
        """Compare the whole result with the oracle."""
        return op.bounds(operands).check

    @cached_property
    def _space(self) -> GridSpace:
        return GemmSpace()


FAMILIES: Mapping[str, Callable[[int, int, Allocate], Family]] = {
    "gemm": GemmKernels, "spmm": SpmmKernels, "spmm_max": SpmmMaxKernels, "sddmm": SddmmKernels,
    "attention": AttentionKernels}


class _Spmm(ctypes.Structure):
    """The struct Spmm of kernels/cpu/spmm.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("dense", "result", "carries")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("strip", "ahead", "stream", "together")),
    )


class _SpmmMax(ctypes.Structure):
    """The struct SpmmMax of kernels/cpu/spmm_max.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("dense", "result", "carries", "places", "carried_places")),
        ("width", ctypes.c_int64),
        ("ahead", ctypes.c_int32),
    )


class _Sddmm(ctypes.Structure):
    """The struct Sddmm of kernels/cpu/sddmm.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("left", "right", "result")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("ahead", "group")),
    )


class _Attention(ctypes.Structure):
    """The struct Attention of kernels/cpu/attention.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "result", "parts")),
        *((name, ctypes.c_int64) for name in ("heads", "width", "value_width")),
        ("scale", ctypes.c_float),
        ("ahead", ctypes.c_int32),
    )


class _Gemm(ctypes.Structure):
    """The struct Gemm of kernels/cpu/gemm.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "c", "workspace")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "tile_m", "tile_n", "tile_k")),
        *((name, ctypes.c_int32) for name in ("rows", "columns", "unroll", "pack", "threads")),
        ("tile", ctypes.c_void_p),
    )


@cache
def _library(operation: str) -> ctypes.CDLL:
    return compile_cpp([f"cpu/{operation}.cpp"])


def _carries(rows: BoundRows, width: int, dtype: type[np.generic] = np.float32) -> np.ndarray | None:
    """Allocate room for the partial results of rows that are shared by pieces; None where no row is."""
    return aligned((rows.count, width), dtype) if rows.pieces.cut else None


def _optional(array: np.ndarray | None, dtype: type[np.generic] = np.float32) -> int | None:
    return None if array is None else address(array, dtype)
