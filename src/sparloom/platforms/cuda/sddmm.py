"""Kernels of SDDMM: kernels/cuda/sddmm.cu bound to arrays of a device."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.jit import cuda_text
from sparloom.ops import Operands
from sparloom.platforms.cuda.csr import ALL_ROWS
from sparloom.platforms.cuda.device import LaunchShape
from sparloom.platforms.cuda.family import Launch, Placed, columns_argument, dense_type, element_macro, in_order
from sparloom.platforms.cuda.gpu import Gpu
from sparloom.platforms.cuda.sparse_family import SparseFamily
from sparloom.platforms.sweep import Call
from sparloom.space import Config

__all__ = ["SddmmKernels", "SddmmProgram"]


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
