"""Recognised products run by the kernels written by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Literal

import numpy as np

from sparloom.forks import forkable
from sparloom.fusion.bind import Pair, Workspace
from sparloom.fusion.executor import Executor
from sparloom.fusion.identity_cache import IdentityCache
from sparloom.fusion.operands import Csr
from sparloom.fusion.recognise import Recognised
from sparloom.fusion.schedule import TileSchedule
from sparloom.fusion.unfused import unfused_schedule
from sparloom.ops import GemmSpmm, Operands, SpmmGemm, SpmmSpmm
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["Bodies", "Products"]

KEPT = 8  # matrices whose index arrays are kept alive

Arguments = Mapping[str, Any]
Bodies = Literal["recognised", "generated"]


@dataclass(frozen=True)
class _Matrices:
    """The patterns of the sparse operands, "A" and "B", and what is made of them.

    Args:
        schedules: number of threads -> schedule that fuses nothing.
    """

    patterns: Mapping[str, Pattern]
    schedules: dict[int, TileSchedule] = field(default_factory=dict)

    def unfused(self, op: Pair, threads: int) -> TileSchedule:
        """Make, or take as made before, the schedule that runs one loop after the other."""
        if threads not in self.schedules:
            pattern = self.patterns["A"]
            if op.name == "spmm_gemm":  # row j of the second product reads row j of the first
                pattern = Pattern.identity(pattern.rows)
            self.schedules[threads] = unfused_schedule(pattern, threads=threads)
        return self.schedules[threads]


class Products:
    """Calls of one recognised product; D1 and the buffers stay from call to call, so calls take turns.

    Args:
        whole: whether the loops of a call run over whole matrices.
    """

    def __init__(self, product: Recognised, whole: Callable[[Arguments], bool]) -> None:
        self._product = product
        self._whole = whole
        self._matrices: IdentityCache[_Matrices | None] = IdentityCache(KEPT)
        self._workspace = Workspace()
        self._turn = forkable(RLock())

    def run(self, arguments: Arguments, schedule: TileSchedule | None, *, threads: int) -> np.ndarray | None:
        """Run a call by a schedule, or one loop after the other without one.

        Returns:
            None, and nothing is run, where the kernels do not compute what the loops do: these do not run over whole
            matrices, columns of a sparse row do not increase, an operand is empty.
        """
        matrices = self._matrices.find(arguments, lambda: self._find(arguments))
        if matrices is None:
            return None
        operands = self._operands(arguments, matrices.patterns)
        op = self._op(str(operands.matrix.dtype))
        chosen = matrices.unfused(op, threads) if schedule is None else schedule
        interrupts = self._turn._is_owned()  # a finaliser runs in the middle of another call of this thread
        with self._turn:
            executor = Executor(op, chosen, threads, workspace=Workspace() if interrupts else self._workspace)
            result = executor.result(operands)
            executor.bind(operands, result)()
        return result

    def _find(self, arguments: Arguments) -> _Matrices | None:
        operands = {role: arguments[name] for role, name in self._product.operands.items()}
        empty = any(isinstance(operand, np.ndarray) and operand.size == 0 for operand in operands.values())
        if empty or not self._whole(arguments):
            return None
        try:
            return _Matrices({role: Pattern(operand.shape, operand.p, operand.i)
                              for role, operand in operands.items() if isinstance(operand, Csr)})
        except ValueError:  # its columns do not increase: all else has been checked
            return None

    def _operands(self, arguments: Arguments, patterns: Mapping[str, Pattern]) -> Operands:
        sparse, dense = {}, {}
        for role, name in self._product.operands.items():
            operand = arguments[name]
            if role in patterns:
                sparse[role] = SparseMatrix(patterns[role], operand.x, operand.x.dtype)
            else:
                dense[role] = np.ascontiguousarray(operand)
        return Operands(sparse["A"], dense, sparse.get("B"))

    def _op(self, dtype: str) -> Pair:
        match self._product.op:
            case "gemm_spmm":
                return GemmSpmm(dtype=dtype, c_transposed=self._product.transposed)
            case "spmm_spmm":
                return SpmmSpmm(dtype=dtype)
            case "spmm_gemm":
                return SpmmGemm(dtype=dtype)
