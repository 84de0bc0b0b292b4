"""Hand-written kernels on a sparse pattern: SpMM, its mean and maximum, SDDMM, attention.

Each operation has a program, which translates a configuration to macros and launch shapes, and a family, which binds
kernels/cuda/{spmm,sddmm,attention}.cu to arrays of a device.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.jit import cuda_text
from sparloom.ops import Op, Operands
from sparloom.platforms.cuda.device import CudaDevice, Gpu, LaunchShape
from sparloom.platforms.cuda.launch import HostCheck, Launch, Launches
from sparloom.platforms.cuda.operands import (
    ALL_ROWS,
    DeviceOperands,
    DevicePattern,
    PatternCache,
    columns_argument,
    dense_type,
    element_macro,
)
from sparloom.platforms.timing import Call, SpotCheck
from sparloom.space import ATTENTION_COLUMNS, Config, GridSpace

COMBINE = {"spmm": "kAdd", "spmm_mean": "kMean", "spmm_max": "kLargest"}
"""Operation -> its name in spmm.cuh."""
ARGMAX_THREADS = 256
"""Threads of a block that finds the argmax."""
MAX_ARGMAX = 2**31 - 1  # the argmax is int32
MIN_SHARE = 64  # nonzeros and row ends per group of SpMM: a share must be worth the search for its beginning
MOST_SHARE = 64
"""Most nonzeros per group of SDDMM: the search for the first row takes as long as some of them."""


class SparseFamily:
    """Base of families on a sparse pattern: the space, the pattern on the device, and the check of some rows."""

    def __init__(self, space: GridSpace) -> None:
        self._space = space
        self._patterns = PatternCache()

    def space(self) -> GridSpace:
        """List the configurations."""
        return self._space

    def compile(self, inputs: Operands, configs: Sequence[Config]) -> None:
        """Do nothing: NVRTC compiles a kernel when it is bound."""

    def check(self, op: Op, inputs: Operands, *, seed: int) -> HostCheck:
        """Compare some rows of a result with the oracle, and make sure that all are written."""
        return SpotCheck(op, inputs, seed=seed).compare_written


@dataclass(frozen=True)
class SpmmProgram:
    """A configuration of SpMM in terms of the kernels.

    Args:
        lanes: threads of a group.
        columns: of a thread, `vector` of them adjacent.
        reduction: "outside", one pass over the nonzeros; "inside", one pass for each load of a thread.
        unroll: nonzeros whose loads are in flight together.
        groups: per block.
        balance: "rows", a group per row; "q90" and so on, also a block per hub row; "nonzeros", equal shares.
        element: type of the arrays.
        combine: how an element of the result combines its products: "kAdd", "kMean" or "kLargest".
    """

    lanes: int
    columns: int
    vector: int
    reduction: str
    unroll: int
    groups: int
    balance: str
    element: str = "float"
    combine: str = "kAdd"

    @classmethod
    def of(cls, config: Config, element: str = "float", combine: str = "kAdd") -> "SpmmProgram":
        """Translate a configuration of `CudaSpace` or `CudaKernelSpace`."""
        lanes = int(config["lanes"])
        if config.space == "cuda":
            return cls(lanes, int(config["coarsening"]), 1, str(config["reduction"]), 4 if config["unroll"] else 1,
                       int(config["rows_per_block"]), "rows", element, combine)
        vector = int(config["vector"])
        return cls(lanes, vector * int(config["loads"]), vector, "outside", 4, 32 * int(config["warps"]) // lanes,
                   str(config["balance"]), element, combine)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.groups

    @property
    def text(self) -> str:
        """The source with its macros."""
        return cuda_text("cuda/spmm.cu", {
            "LANES": self.lanes, "COLUMNS": self.columns, "VECTOR": self.vector,
            "REDUCTION": {"outside": "kOutside", "inside": "kInside"}[self.reduction], "UNROLL": self.unroll,
            "THREADS": self.threads, **element_macro(self.element),
            **({} if self.combine == "kAdd" else {"COMBINE": self.combine})})

    def grid(self, groups: int, width: int) -> tuple[int, int]:
        """Count the blocks for a number of groups, times the tiles of columns."""
        return -(-groups // self.groups), -(-width // (self.lanes * self.columns))

    def share(self, items: int, device: CudaDevice) -> int:
        """Divide items among all groups that the device holds at a time: items per group."""
        return max(MIN_SHARE, -(-items // _resident_groups(device, self.lanes)))


class SpmmKernels(SparseFamily):
    """The families of SpMM, of its mean and of its maximum."""

    def result(self, gpu: Gpu, inputs: Operands) -> Any:
        """Allocate D (rows, width)."""
        return gpu.empty((inputs.matrix.pattern.rows, inputs.width), dense_type(inputs))

    def argmax(self, gpu: Gpu, inputs: Operands) -> Any:
        """Allocate the argmax of D, (rows, width) int32."""
        return gpu.empty((inputs.matrix.pattern.rows, inputs.width), np.int32)

    def bind(
        self, gpu: Gpu, operands: DeviceOperands, config: Config, result: Any, argmax: Any | None = None,
    ) -> Call:
        """Bind the kernels of a configuration.

        Args:
            argmax: of a maximum, gets the index of the nonzero of A behind each element of D: the first one whose
                product is the largest, or NaN; -1 in rows without nonzeros. None: not computed.

        Raises:
            ValueError: the argmax is wanted and A has too many nonzeros to index them in int32.
        """
        program = SpmmProgram.of(config, operands.element, COMBINE[self._space.op])
        pattern, width = self._patterns.get(gpu, operands), columns_argument(operands.host.width)
        csr, rows = (pattern.indptr, pattern.indices, operands.values), pattern.pattern.rows
        dense = operands.dense["B"], width
        if program.balance == "nonzeros":
            launches = _spmm_shares(gpu, program, pattern, csr=csr, dense=dense, result=result)
        else:
            tiles = program.grid(1, int(width))[1]
            launches = _rows_and_hubs(
                gpu, pattern, program.balance, program.text, "spmm", arguments=(csr, (*dense, result)),
                rows_shape=LaunchShape(program.grid(rows, int(width)), program.threads),
                hub_shape=lambda hubs: LaunchShape((hubs, tiles), program.threads,
                                                   4 * program.threads * program.columns))
        if argmax is not None:
            launches.append(_spmm_argmax(gpu, program, pattern, csr=csr, dense=dense, argmax=argmax))
        return Launches.checked(launches, gpu)


@dataclass(frozen=True)
class SddmmProgram:
    """A configuration of SDDMM in terms of the kernels.

    Args:
        lanes: threads of a group.
        vector: columns per load.
        group: nonzeros that a group takes at a time.
        unroll: "explicit", they are computed side by side; "implicit" and "none", one after the other, the loop
            unrolled or not.
        groups: per block.
        balance: "nonzeros", equally many for every group; "rows", a group per row; "q90" and so on, also a block per
            hub row.
        element: type of the arrays.
        most: nonzeros of a group with balance "nonzeros", at most; None: `group` of them, as in SparseTIR.
    """

    lanes: int
    vector: int
    group: int
    unroll: str
    groups: int
    balance: str
    element: str = "float"
    most: int | None = None

    @classmethod
    def of(cls, config: Config, element: str = "float") -> "SddmmProgram":
        """Translate a configuration of `CudaSpace` or `CudaKernelSpace`."""
        lanes, vector, group = (int(config[name]) for name in ("lanes", "vector", "group"))
        if config.space == "cuda":
            return cls(lanes, vector, group, str(config["unroll"]), int(config["groups_per_block"]), "nonzeros",
                       element)
        return cls(lanes, vector, group, "explicit", 32 * int(config["warps"]) // lanes, str(config["balance"]),
                   element, MOST_SHARE)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.groups

    def share(self, nnz: int, device: CudaDevice) -> int:
        """Count the nonzeros of a group with balance "nonzeros": each share costs a search for its first row."""
        filled = -(-nnz // (self.group * _resident_groups(device, self.lanes)))
        return self.group * max(1, min((self.most or self.group) // self.group, filled))

    @property
    def text(self) -> str:
        """The source with its macros."""
        unroll = {"none": "kNone", "explicit": "kExplicit", "implicit": "kImplicit"}[self.unroll]
        return cuda_text("cuda/sddmm.cu", {"LANES": self.lanes, "VECTOR": self.vector, "GROUP": self.group,
                                           "UNROLL": unroll, "THREADS": self.threads,
                                           **element_macro(self.element)})

    def shape(self, groups: int) -> LaunchShape:
        """Count the blocks for a number of groups."""
        return LaunchShape((-(-groups // self.groups), 1), self.threads)


class SddmmKernels(SparseFamily):
    """The family of SDDMM."""

    def result(self, gpu: Gpu, inputs: Operands) -> Any:
        """Allocate the values of D (nnz,)."""
        return gpu.empty((inputs.matrix.pattern.nnz,), dense_type(inputs))

    def bind(self, gpu: Gpu, operands: DeviceOperands, config: Config, result: Any) -> Call:
        program, pattern = SddmmProgram.of(config, operands.element), self._patterns.get(gpu, operands)
        rows, nnz, text = pattern.pattern.rows, pattern.pattern.nnz, program.text
        csr = (pattern.indptr, pattern.indices, operands.values)
        dense = (operands.dense["B"], operands.dense["C"], columns_argument(operands.host.width), result)
        if program.balance == "nonzeros":
            share = program.share(nnz, gpu.device)
            return Launches.checked([Launch(gpu.kernel(text, "sddmm_nonzeros"), program.shape(-(-nnz // share)),
                                            (*csr, np.int64(rows), np.int64(share), *dense))], gpu)
        return Launches.checked(_rows_and_hubs(
            gpu, pattern, program.balance, text, "sddmm", arguments=(csr, dense), rows_shape=program.shape(rows),
            hub_shape=lambda hubs: LaunchShape((hubs, 1), program.threads)), gpu)


@dataclass(frozen=True)
class AttentionProgram:
    """A configuration of attention in terms of the kernels.

    Args:
        lanes: threads of a group.
        vector: columns per load.
        packs: loads of a thread per row of V.
        group: nonzeros whose loads are in flight together.
        groups: per block.
        balance: "rows", a group per row and head; "q90" and so on, also a block per hub row and head.
        element: type of the arrays.
    """

    lanes: int
    vector: int
    packs: int
    group: int
    groups: int
    balance: str
    element: str = "float"

    @classmethod
    def of(cls, config: Config, value_width: int, element: str = "float") -> "AttentionProgram":
        """Translate a configuration of `CudaKernelSpace`; threads hold all columns of a head of V if that many fit."""
        lanes, vector, group = (int(config[name]) for name in ("lanes", "vector", "group"))
        packs = min(max(1, -(-value_width // (lanes * vector))), ATTENTION_COLUMNS // vector)
        return cls(lanes, vector, packs, group, 32 * int(config["warps"]) // lanes, str(config["balance"]), element)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.groups

    @property
    def columns(self) -> int:
        """Columns of V that are summed in one pass."""
        return self.lanes * self.vector * self.packs

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block for a hub row."""
        return 4 * self.groups * (self.columns + 2)

    @property
    def text(self) -> str:
        """The source with its macros."""
        return cuda_text("cuda/attention.cu", {
            "LANES": self.lanes, "VECTOR": self.vector, "PACKS": self.packs, "GROUP": self.group,
            "THREADS": self.threads, **element_macro(self.element)})


class AttentionKernels(SparseFamily):
    """The family of attention on a sparse pattern."""

    def result(self, gpu: Gpu, inputs: Operands) -> Any:
        """Allocate D (rows, heads, columns of a head of V)."""
        return gpu.empty((inputs.matrix.pattern.rows, *inputs.dense["V"].shape[1:]), dense_type(inputs))

    def bind(self, gpu: Gpu, operands: DeviceOperands, config: Config, result: Any) -> Call:
        """Bind the kernels of a configuration; scores are divided by the square root of the width of a head.

        Raises:
            Unsupported: loads of several elements do not divide a head, or the device cannot start the kernels.
        """
        heads, width = operands.host.dense["K"].shape[1:]
        value_width = operands.host.dense["V"].shape[2]
        program = AttentionProgram.of(config, value_width, operands.element)
        for name, extent in (("K", width), ("V", value_width)):
            if extent % program.vector:
                raise Unsupported(f"vector={program.vector} does not divide the {extent} columns of a head of {name}: "
                                  "use vector=1")
        pattern, tiles = self._patterns.get(gpu, operands), -(-value_width // program.columns)
        scale = np.float32(math.log2(math.e) * width**-0.5)
        dense = (*(operands.dense[name] for name in ("Q", "K", "V")), np.int32(heads), columns_argument(width),
                 columns_argument(value_width), scale, result)
        blocks = -(-pattern.pattern.rows * heads // program.groups)
        return Launches.checked(_rows_and_hubs(
            gpu, pattern, program.balance, program.text, "attention",
            arguments=((pattern.indptr, pattern.indices), dense),
            rows_shape=LaunchShape((blocks, tiles), program.threads),
            hub_shape=lambda hubs: LaunchShape((hubs * heads, tiles), program.threads, program.shared_bytes)), gpu)


def _resident_groups(device: CudaDevice, lanes: int) -> int:
    return device.multiprocessors * device.threads_per_multiprocessor // lanes


def _spmm_shares(
    gpu: Gpu, program: SpmmProgram, pattern: DevicePattern, *, csr: tuple[Any, ...], dense: tuple[Any, np.int32],
    result: Any,
) -> list[Launch]:
    """Give groups equal shares of nonzeros and row ends; a second kernel adds up the rows that groups share."""
    rows, width = pattern.pattern.rows, int(dense[1])
    items = rows + pattern.pattern.nnz
    share = program.share(items, gpu.device)
    groups = -(-items // share)
    shape = LaunchShape(program.grid(groups, width), program.threads)
    carry_rows = gpu.empty((groups,), np.int32)
    carries, rests = (gpu.empty((groups, width), np.float32) for _ in range(2))
    return [
        Launch(gpu.kernel(program.text, "spmm_shares"), shape,
               (*csr, np.int64(rows), np.int64(share), *dense, result, carry_rows, carries, rests)),
        Launch(gpu.kernel(program.text, "spmm_carries"), shape,
               (pattern.indptr, np.int64(groups), dense[1], carry_rows, carries, rests, result)),
    ]


def _spmm_argmax(
    gpu: Gpu, program: SpmmProgram, pattern: DevicePattern, *, csr: tuple[Any, ...], dense: tuple[Any, np.int32],
    argmax: Any,
) -> Launch:
    rows, nnz = pattern.pattern.rows, pattern.pattern.nnz
    if nnz > MAX_ARGMAX:
        raise ValueError(f"A has {nnz} nonzeros, above the {MAX_ARGMAX} that the argmax can index: split A by rows")
    text = cuda_text("cuda/spmm_places.cu", {"THREADS": ARGMAX_THREADS, **element_macro(program.element)})
    shape = LaunchShape((-(-rows * int(dense[1]) // ARGMAX_THREADS), 1), ARGMAX_THREADS)
    return Launch(gpu.kernel(text, "spmm_places"), shape, (*csr, np.int64(rows), *dense, argmax))


def _rows_and_hubs(
    gpu: Gpu, pattern: DevicePattern, balance: str, text: str, operation: str, *,
    arguments: tuple[tuple[Any, ...], tuple[Any, ...]], rows_shape: LaunchShape,
    hub_shape: Callable[[int], LaunchShape],
) -> list[Launch]:
    """Launch a group per row, and unless the balance is "rows" a block per hub row, which the groups then leave out.

    Args:
        arguments: those before the rows, and those after.
        hub_shape: number of hub rows -> launch.
    """
    before, after = arguments
    hubs = None if balance == "rows" else pattern.hubs(gpu, balance)
    degree = ALL_ROWS if hubs is None else hubs.degree
    launches = [Launch(gpu.kernel(text, f"{operation}_rows"), rows_shape,
                       (*before, np.int64(pattern.pattern.rows), degree, *after))]
    if hubs is not None:
        launches.append(Launch(gpu.kernel(text, f"{operation}_hubs"), hub_shape(hubs.count),
                               (*before, hubs.rows, *after)))
    return launches
