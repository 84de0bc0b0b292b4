"""Kernels of attention on a sparse pattern: kernels/cuda/attention.cu bound to arrays of a device."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.jit import cuda_text
from sparloom.ops import Operands
from sparloom.platforms.cuda.csr import ALL_ROWS
from sparloom.platforms.cuda.device import LaunchShape
from sparloom.platforms.cuda.family import Launch, Placed, columns_argument, dense_type, element_macro, in_order
from sparloom.platforms.cuda.gpu import Gpu
from sparloom.platforms.cuda.sparse_family import SparseFamily
from sparloom.platforms.sweep import Call
from sparloom.space import ATTENTION_COLUMNS, Config

__all__ = ["AttentionKernels", "AttentionProgram"]


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
