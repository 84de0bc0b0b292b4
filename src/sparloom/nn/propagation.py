"""Products of a graph convolution, fused, on tensors: what is planned for one matrix and kept."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from threading import RLock

import numpy as np
import torch

from sparloom.forks import forkable
from sparloom.fusion import RowPass, RowSteps
from sparloom.jit import NativeCall, ResultPool
from sparloom.nn.threads import torch_threads
from sparloom.ops import GemmSpmm, Operands
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import Fuse, PairPlan, PlanCache, plan_pair

__all__ = ["Planning", "Propagation"]

NUMBERS = {torch.float32: np.float32, torch.float64: np.float64}


@dataclass(frozen=True)
class Planning:
    """How plans are made.

    Args:
        fuse: "never" keeps every product apart from the next, with the same kernels.
        cache: where decisions are kept; None: the folder of this user.
    """

    fuse: Fuse
    cache: PlanCache | None


class Propagation:
    """Multiplies by the matrices of one pattern A (nodes, nodes); plans are made at the first use and stay.

    Threads may share it; their calls run one after the other. A call by a signal handler or a finaliser that interrupts
    another call in the same thread has plans and workspaces of its own.
    """

    def __init__(self, pattern: Pattern, planning: Planning, pool: ResultPool) -> None:
        self.pattern, self.planning = pattern, planning
        self.plans: dict[tuple[int, int, bool, str, int], PairPlan] = {}
        """By inner width, width, whether C is transposed, type and threads."""
        self._pool = pool
        self._calls: dict[tuple[int, int, bool, str, int], NativeCall] = {}
        self._passes: dict[tuple[Hashable, ...], tuple[NativeCall, ...]] = {}
        self._lock = forkable(RLock())
        self._twin: Propagation | None = None

    def __reduce__(self) -> tuple[type[Propagation], tuple[Pattern, Planning, ResultPool]]:
        """Copy and pickle what plans are made of; they are made anew, by the decisions that are kept."""
        return Propagation, (self.pattern, self.planning, self._pool)

    def matrix(self, values: torch.Tensor) -> SparseMatrix:
        """Give the pattern values, (nnz,), without a copy."""
        array = values.detach().numpy()
        return SparseMatrix(self.pattern, array, array.dtype)

    def transform_first(self, matrix: SparseMatrix, b: torch.Tensor, c: torch.Tensor, *, c_transposed: bool
                        ) -> torch.Tensor:
        """Compute A (B C) by tile fusion.

        Args:
            b: (nodes, inner).
            c: (inner, width), or (width, inner) with `c_transposed`.
        """
        op = GemmSpmm(dtype=matrix.dtype.name, c_transposed=c_transposed)
        operands = Operands(matrix, {"B": b.detach().numpy(), "C": c.detach().numpy()})
        width, threads = op.width(operands), torch_threads()
        result = self.empty(width, b.dtype)
        key = (b.shape[1], width, c_transposed, op.dtype, threads)
        own = self._own()
        with own._lock:
            if key not in own._calls:
                own.plans[key] = plan_pair(op, operands, fuse=self.planning.fuse, threads=threads,
                                           cache=self.planning.cache)
                own._calls[key] = own.plans[key].executor.bind(operands, result.numpy())
            else:
                own.plans[key].executor.rebind(own._calls[key], operands, result.numpy())
            own._calls[key]()
        return result

    def run(
        self, matrix: SparseMatrix | None = None, *, c_transposed: bool = False, **tensors: torch.Tensor | None,
    ) -> None:
        """Take steps over the rows of A, fused or one after the other.

        Args:
            matrix, c_transposed: see `RowSteps`.
            tensors: by the names of `RowSteps`, contiguous; those that are None are left out.

        Raises:
            ValueError: one is not contiguous, or of another type than the first one.
        """
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        threads, dtype = torch_threads(), next(iter(given.values())).dtype
        for name, tensor in given.items():
            if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.is_neg():
                raise ValueError(f"{name} of {tensor.dtype} with strides {tensor.stride()}: kernels read contiguous "
                                 f"tensors of {dtype}: pass {name}.to({dtype}).resolve_neg().contiguous()")
        key = (threads, dtype, matrix is None, c_transposed, *((name, tensor.shape) for name, tensor in given.items()))
        own = self._own()
        with own._lock:
            calls = own._passes.get(key)
            if calls is None:
                calls = own._passes[key] = own._bound(matrix, given, c_transposed, threads)
            for call in calls:
                _point(call, matrix, given)
                call()

    def _own(self) -> Propagation:
        """Give this, or a twin where this thread is in the middle of a call."""
        if not self._lock._is_owned():
            return self
        if self._twin is None:
            self._twin = Propagation(self.pattern, self.planning, self._pool)
        return self._twin._own()

    def _bound(
        self, matrix: SparseMatrix | None, given: Mapping[str, torch.Tensor], c_transposed: bool, threads: int,
    ) -> tuple[NativeCall, ...]:
        """Bind one pass, or one for each product."""
        steps = RowSteps(matrix, c_transposed=c_transposed, **{
            name: tensor.detach().numpy() for name, tensor in given.items()})
        run = RowPass(self.pattern, threads=threads)
        if self.planning.fuse != "never":
            return (run.bind(steps),)
        if matrix is not None and steps.g is None:
            steps = replace(steps, g=self.empty(steps.width, given["y"].dtype).numpy())
        return tuple(run.bind(part) for part in steps.apart())

    def empty(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocate (nodes, width)."""
        return torch.from_numpy(self._pool.empty((self.pattern.rows, width), NUMBERS[dtype]))


def _point(call: NativeCall, matrix: SparseMatrix | None, given: Mapping[str, torch.Tensor]) -> None:
    """Let a call work on these tensors, as far as it takes them."""
    arguments = call.arguments
    if arguments.a.begin:
        arguments.a.values = matrix.values.ctypes.data
    for name, tensor in given.items():
        if getattr(arguments, name):
            setattr(arguments, name, tensor.data_ptr())
