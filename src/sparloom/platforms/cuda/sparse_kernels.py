"""What families of kernels on a sparse pattern have in common.

Kernels of SpMM, its mean and its maximum: kernels/cuda/spmm.cu bound to arrays of a device.

Kernels of SDDMM: kernels/cuda/sddmm.cu bound to arrays of a device.

Kernels of attention on a sparse pattern: kernels/cuda/attention.cu bound to arrays of a device.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.jit import cuda_text
from sparloom.ops import Op, Operands
from sparloom.platforms.cuda.device import CudaDevice, Gpu, LaunchShape
from sparloom.platforms.cuda.operands import (
    ALL_ROWS,
    DevicePattern,
    HostCheck,
    Launch,
    PatternPlace,
    Placed,
    columns_argument,
    dense_type,
    element_macro,
    in_order,
)
from sparloom.platforms.timing import Call, SpotCheck
from sparloom.space import ATTENTION_COLUMNS, Config, GridSpace

__all__ = [
    "AttentionKernels", "AttentionProgram", "SddmmKernels", "SddmmProgram", "SparseFamily", "SpmmKernels",
    "SpmmProgram",
]


class SparseFamily:
    """The configurations, the place of the pattern, and the check of some rows; subclasses bind kernels.

    Args:
        listed: its configurations.
    """

    def __init__(self, listed: GridSpace) -> None:
        self._space = listed
        self._patterns = PatternPlace()

    def space(self) -> GridSpace:
        """List the configurations."""
        return self._space

    def check(self, op: Op, given: Operands, *, seed: int) -> HostCheck:
        """Know some rows of the result, and that all are written."""
        return SpotCheck(op, given, seed=seed).compare_written


COMBINE = {"spmm": "kAdd", "spmm_mean": "kMean", "spmm_max": "kLargest"}  # operation -> its word in spmm.cuh
PLACE_THREADS = 256  # of a block that looks for places
MOST_PLACES = 2**31 - 1  # places are int32
LEAST_SHARE = 64  # nonzeros and row ends per group: finding where a share begins must be worth it


@dataclass(frozen=True)
class SpmmProgram:
    """What a configuration says about the kernels, in their words.

    Args:
        lanes: threads of a group.
        columns: of a thread, `vector` of them adjacent.
        reduction: "outside", one pass over the nonzeros; "inside", one for each load of a thread.
        unroll: nonzeros whose loads are under way together.
        groups: per block.
        balance: "rows", a group per row; "q90" and so on, a block per hub row beside that; "nonzeros", equal shares.
        element: type of what is in memory.
        combine: what an element of the result is of its products: "kAdd", "kMean" or "kLargest".
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
        """Read a configuration of `CudaSpace` or `CudaKernelSpace`."""
        lanes = int(config["lanes"])
        if config.space == "cuda":
            return cls(lanes, int(config["coarsening"]), 1, str(config["reduction"]), 4 if config["unroll"] else 1,
                       int(config["rows_per_block"]), "rows", element, combine)
        vector = int(config["vector"])
        return cls(lanes, vector * int(config["loads"]), vector, "outside", 4, 32 * int(config["warps"]) // lanes,
                   str(config["balance"]), element, combine)

    @property
    def threads(self) -> int:
        """Size of a block."""
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
        """Count the blocks that hold so many groups, for every tile of columns."""
        return -(-groups // self.groups), -(-width // (self.lanes * self.columns))

    def share(self, items: int, device: CudaDevice) -> int:
        """Say how many items a group takes if all groups that the device holds at a time share them."""
        resident = device.multiprocessors * device.threads_per_multiprocessor // self.lanes
        return max(LEAST_SHARE, -(-items // resident))


class SpmmKernels(SparseFamily):
    """The families of SpMM, of its mean and of its maximum."""

    def result(self, gpu: Gpu, given: Operands) -> Any:
        """Allocate D (rows, width)."""
        return gpu.empty((given.matrix.pattern.rows, given.width), dense_type(given))

    def places(self, gpu: Gpu, given: Operands) -> Any:
        """Allocate the places of the elements of a maximum, (rows, width) int32."""
        return gpu.empty((given.matrix.pattern.rows, given.width), np.int32)

    def bind(self, gpu: Gpu, placed: Placed, config: Config, result: Any, places: Any | None = None) -> Call:
        """Bind the kernels of a configuration.

        Args:
            places: of a maximum gets, for each element of D, which nonzero of A it comes from: the first one whose
                product is the largest, or NaN; -1 in rows without nonzeros. None if nobody wants it.

        Raises:
            ValueError: places are wanted, and there are too many nonzeros to count them in int32.
        """
        pattern = self._patterns.of(gpu, placed)
        program = SpmmProgram.of(config, placed.element, COMBINE[self._space.op])
        bound = _Bound(gpu, program, pattern, placed, result)
        launches = bound.shares() if program.balance == "nonzeros" else bound.rows_and_hubs()
        return in_order(launches if places is None else [*launches, bound.places(places)], gpu)


@dataclass(frozen=True)
class _Bound:
    gpu: Gpu
    program: SpmmProgram
    pattern: DevicePattern
    placed: Placed
    result: Any

    def rows_and_hubs(self) -> list[Launch]:
        program, rows = self.program, self.pattern.pattern.rows
        hubs = None if program.balance == "rows" else self.pattern.hubs(self.gpu, program.balance)
        degree = ALL_ROWS if hubs is None else hubs.degree
        launches = [self._launch("spmm_rows", LaunchShape(program.grid(rows, self._width), program.threads),
                                 (*self._csr, np.int64(rows), degree, *self._dense, self.result))]
        if hubs is not None:
            shape = LaunchShape((hubs.count, program.grid(1, self._width)[1]), program.threads,
                                4 * program.threads * program.columns)
            launches.append(self._launch("spmm_hubs", shape, (*self._csr, hubs.rows, *self._dense, self.result)))
        return launches

    def shares(self) -> list[Launch]:
        program, pattern = self.program, self.pattern.pattern
        items = pattern.rows + pattern.nnz
        share = program.share(items, self.gpu.device)
        groups = -(-items // share)
        shape = LaunchShape(program.grid(groups, self._width), program.threads)
        carry_rows = self.gpu.empty((groups,), np.int32)
        carries, rests = (self.gpu.empty((groups, self._width), np.float32) for _ in range(2))
        return [
            self._launch("spmm_shares", shape, (*self._csr, np.int64(pattern.rows), np.int64(share), *self._dense,
                                                self.result, carry_rows, carries, rests)),
            self._launch("spmm_carries", shape, (self.pattern.indptr, np.int64(groups), columns_argument(self._width),
                                                 carry_rows, carries, rests, self.result)),
        ]

    def places(self, places: Any) -> Launch:
        pattern = self.pattern.pattern
        if pattern.nnz > MOST_PLACES:
            raise ValueError(f"A has {pattern.nnz} nonzeros, and places count up to {MOST_PLACES}: take parts of its "
                             "rows")
        text = cuda_text("cuda/spmm_places.cu", {"THREADS": PLACE_THREADS, **element_macro(self.program.element)})
        shape = LaunchShape((-(-pattern.rows * self._width // PLACE_THREADS), 1), PLACE_THREADS)
        return Launch(self.gpu.kernel(text, "spmm_places"), shape, (
            *self._csr, np.int64(pattern.rows), *self._dense, places))

    @property
    def _width(self) -> int:
        return self.placed.given.width

    @property
    def _csr(self) -> tuple[Any, ...]:
        return self.pattern.indptr, self.pattern.indices, self.placed.values

    @property
    def _dense(self) -> tuple[Any, ...]:
        return self.placed.dense["B"], columns_argument(self._width)

    def _launch(self, name: str, shape: LaunchShape, arguments: tuple[Any, ...]) -> Launch:
        return Launch(self.gpu.kernel(self.program.text, name), shape, arguments)


@dataclass(frozen=True)
class SddmmProgram:
    """What a configuration says about the kernels, in their words.

    Args:
        lanes: threads of a group.
        vector: columns per load.
        group: nonzeros that a group takes at a time.
        unroll: "explicit", they are computed side by side; "implicit" and "none", one after the other, the loop
            unrolled or not.
        groups: per block.
        balance: "nonzeros", equally many for every group; "rows", a group per row; "q90" and so on, a block per hub
            row beside that.
        element: type of what is in memory.
    """

    lanes: int
    vector: int
    group: int
    unroll: str
    groups: int
    balance: str
    element: str = "float"

    @classmethod
    def of(cls, config: Config, element: str = "float") -> "SddmmProgram":
        """Read a configuration of `CudaSpace` or `CudaKernelSpace`."""
        lanes, vector, group = (int(config[name]) for name in ("lanes", "vector", "group"))
        if config.space == "cuda":
            return cls(lanes, vector, group, str(config["unroll"]), int(config["groups_per_block"]), "nonzeros",
                       element)
        return cls(lanes, vector, group, "explicit", 32 * int(config["warps"]) // lanes, str(config["balance"]),
                   element)

    @property
    def threads(self) -> int:
        """Size of a block."""
        return self.lanes * self.groups

    @property
    def text(self) -> str:
        """The source with its macros."""
        unroll = {"none": "kNone", "explicit": "kExplicit", "implicit": "kImplicit"}[self.unroll]
        return cuda_text("cuda/sddmm.cu", {"LANES": self.lanes, "VECTOR": self.vector, "GROUP": self.group,
                                           "UNROLL": unroll, "THREADS": self.threads,
                                           **element_macro(self.element)})

    def shape(self, groups: int) -> LaunchShape:
        """Take as many blocks as hold so many groups."""
        return LaunchShape((-(-groups // self.groups), 1), self.threads)


class SddmmKernels(SparseFamily):
    """The family of SDDMM."""

    def result(self, gpu: Gpu, given: Operands) -> Any:
        """Allocate the values of D (nnz,)."""
        return gpu.empty((given.matrix.pattern.nnz,), dense_type(given))

    def bind(self, gpu: Gpu, placed: Placed, config: Config, result: Any) -> Call:
        """Bind the kernels of a configuration."""
        program, pattern = SddmmProgram.of(config, placed.element), self._patterns.of(gpu, placed)
        rows, nnz, text = pattern.pattern.rows, pattern.pattern.nnz, program.text
        csr = (pattern.indptr, pattern.indices, placed.values)
        dense = (placed.dense["B"], placed.dense["C"], columns_argument(placed.given.width), result)
        if program.balance == "nonzeros":
            return in_order([Launch(gpu.kernel(text, "sddmm_nonzeros"), program.shape(-(-nnz // program.group)),
                                    (*csr, np.int64(rows), *dense))], gpu)
        hubs = None if program.balance == "rows" else pattern.hubs(gpu, program.balance)
        degree = ALL_ROWS if hubs is None else hubs.degree
        launches = [Launch(gpu.kernel(text, "sddmm_rows"), program.shape(rows), (*csr, np.int64(rows), degree, *dense))]
        if hubs is not None:
            launches.append(Launch(gpu.kernel(text, "sddmm_hubs"), LaunchShape((hubs.count, 1), program.threads),
                                   (*csr, hubs.rows, *dense)))
        return in_order(launches, gpu)


@dataclass(frozen=True)
class AttentionProgram:
    """What a configuration says about the kernels, in their words.

    Args:
        lanes: threads of a group.
        vector: columns per load.
        packs: loads of a thread per row of V.
        group: nonzeros whose loads are under way together.
        groups: per block.
        balance: "rows", a group per row and head; "q90" and so on, a block per hub row and head beside that.
        element: type of what is in memory.
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
        """Read a configuration of `CudaKernelSpace`; threads hold all columns of a head of V if that many fit."""
        lanes, vector, group = (int(config[name]) for name in ("lanes", "vector", "group"))
        packs = min(max(1, -(-value_width // (lanes * vector))), ATTENTION_COLUMNS // vector)
        return cls(lanes, vector, packs, group, 32 * int(config["warps"]) // lanes, str(config["balance"]), element)

    @property
    def threads(self) -> int:
        """Size of a block."""
        return self.lanes * self.groups

    @property
    def columns(self) -> int:
        """Columns of V that are summed in one pass."""
        return self.lanes * self.vector * self.packs

    @property
    def shared_bytes(self) -> int:
        """What a block for a hub row needs."""
        return 4 * self.groups * (self.columns + 2)

    @property
    def text(self) -> str:
        """The source with its macros."""
        return cuda_text("cuda/attention.cu", {
            "LANES": self.lanes, "VECTOR": self.vector, "PACKS": self.packs, "GROUP": self.group,
            "THREADS": self.threads, **element_macro(self.element)})


class AttentionKernels(SparseFamily):
    """The family of attention."""

    def result(self, gpu: Gpu, given: Operands) -> Any:
        """Allocate D (rows, heads, columns of V's heads)."""
        return gpu.empty((given.matrix.pattern.rows, *given.dense["V"].shape[1:]), dense_type(given))

    def bind(self, gpu: Gpu, placed: Placed, config: Config, result: Any) -> Call:
        """Bind the kernels of a configuration; scores are divided by the square root of a head's width.

        Raises:
            Unsupported: loads of several elements do not divide a head, or the device cannot start the kernels.
        """
        heads, width = placed.given.dense["K"].shape[1:]
        value_width = placed.given.dense["V"].shape[2]
        program = AttentionProgram.of(config, value_width, placed.element)
        for name, extent in (("K", width), ("V", value_width)):
            if extent % program.vector:
                raise Unsupported(f"vector={program.vector} does not divide the {extent} columns of a head of {name}: "
                                  "use vector=1")
        pattern, tiles = self._patterns.of(gpu, placed), -(-value_width // program.columns)
        csr, rows = (pattern.indptr, pattern.indices), pattern.pattern.rows
        scale = np.float32(math.log2(math.e) * width**-0.5)
        dense = (*(placed.dense[name] for name in ("Q", "K", "V")), np.int32(heads), columns_argument(width),
                 columns_argument(value_width), scale, result)
        hubs = None if program.balance == "rows" else pattern.hubs(gpu, program.balance)
        degree = ALL_ROWS if hubs is None else hubs.degree
        shape = LaunchShape((-(-rows * heads // program.groups), tiles), program.threads)
        launches = [Launch(gpu.kernel(program.text, "attention_rows"), shape, (*csr, np.int64(rows), degree, *dense))]
        if hubs is not None:
            shape = LaunchShape((hubs.count * heads, tiles), program.threads, program.shared_bytes)
            launches.append(Launch(gpu.kernel(program.text, "attention_hubs"), shape, (*csr, hubs.rows, *dense)))
        return in_order(launches, gpu)
