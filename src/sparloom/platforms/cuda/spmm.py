"""Kernels of SpMM, its mean and its maximum: kernels/cuda/spmm.cu bound to arrays of a device."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.jit import cuda_text
from sparloom.ops import Operands
from sparloom.platforms.cuda.csr import ALL_ROWS, DevicePattern
from sparloom.platforms.cuda.device import CudaDevice, LaunchShape
from sparloom.platforms.cuda.family import Launch, Placed, columns_argument, dense_type, element_macro, in_order
from sparloom.platforms.cuda.gpu import Gpu
from sparloom.platforms.cuda.sparse_family import SparseFamily
from sparloom.platforms.sweep import Call
from sparloom.space import Config

__all__ = ["SpmmKernels", "SpmmProgram"]

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
