"""What a schedule is made for: threads, and the fast memory of each.

`@fuse`: a function of two marked loops, compiled for the types it is called with.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import scipy.sparse

from sparloom.forks import forkable
from sparloom.fusion.frontend import read_program
from sparloom.fusion.inspector import schedule_tiles
from sparloom.fusion.operands import Csr, IdentityCache, check_csr, csr
from sparloom.fusion.products import Bodies
from sparloom.fusion.schedule import TileSchedule
from sparloom.measure import cache_bytes_per_core
from sparloom.sparse import Pattern, SparseMatrix

if TYPE_CHECKING:
    from sparloom.fusion.compiled import CompiledProgram

__all__ = ["Budget", "FusedFunction", "fuse"]


@dataclass(frozen=True)
class Budget:
    """Arguments of the inspector.

    Args:
        cache_bytes: fast memory of one thread.
        ct_size: most iterations of a coarse tile.
    """

    threads: int
    cache_bytes: int
    ct_size: int = 2048

    @classmethod
    def of_this_machine(cls) -> Budget:
        """Take the processors that this process may use, and all caches of one (§5.1.1)."""
        return cls(len(os.sched_getaffinity(0)), cache_bytes_per_core())


def fuse(
    function: Callable[..., Any] | None = None, *, budget: Budget | None = None, bodies: Bodies = "recognised",
) -> Any:
    """Fuse the two loops of a function that are marked by `fprange`.

    The function is Listing 1 of the paper or like it: dense operands are NumPy arrays, sparse ones are SparseMatrix,
    SciPy matrices or Csr, seen as `A.p`, `A.i`, `A.x`. Subscripts count from 0. Schedules are found again by the
    identity of index arrays, so these must not change in place between calls. Written as `@fuse` or as
    `@fuse(budget=...)`.

    Args:
        budget: threads and cache; by default those of this machine.
        bodies: "recognised": where the loops are D = A (B C), B dense or sparse, or D = (A B) C on whole matrices, they
            are run by the kernels of `Executor`, which add in another order. "generated": always by the code that
            `source` prints, which adds in the order of the function.

    Returns:
        A FusedFunction. On its first call it raises Unfusable if the loops cannot be fused; the message names file,
        line and access.

    Raises:
        ValueError: there are no such bodies.
    """
    if bodies not in get_args(Bodies):
        raise ValueError(f"bodies {bodies!r}: give one of {', '.join(get_args(Bodies))}")
    make = partial(FusedFunction, budget=budget or Budget.of_this_machine(), bodies=bodies)
    return make if function is None else make(function)


class FusedFunction:
    """A function that runs fused; schedules and compiled code are kept by type and pattern."""

    def __init__(self, function: Callable[..., Any], budget: Budget, bodies: Bodies) -> None:
        update_wrapper(self, function)
        self.budget = budget
        self.bodies = bodies
        self._function = function
        self._signature = inspect.signature(function)
        self._compiled: dict[tuple[tuple[str, str], ...], CompiledProgram] = {}
        self._schedules: IdentityCache[TileSchedule] = IdentityCache()
        self._checked: IdentityCache[None] = IdentityCache()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compile, inspect, schedule (each only if not done before) and run."""
        arguments = self._arguments(args, kwargs)
        program = self._program(arguments)
        return self._run(program, arguments, self._schedule(program, arguments))

    def unfused(self, *args: Any, **kwargs: Any) -> Any:
        """Run the loops one after the other, from the same bodies."""
        arguments = self._arguments(args, kwargs)
        return self._run(self._program(arguments), arguments, None)

    def source(self, *args: Any, **kwargs: Any) -> str:
        """Print the generated C for arguments like these."""
        return self._program(self._arguments(args, kwargs)).source()

    def cuda(self, *args: Any, **kwargs: Any) -> tuple[str, str]:
        """Print CUDA for arguments like these: a kernel per wavefront, a tile per block of threads."""
        return self._program(self._arguments(args, kwargs)).cuda()

    def dependences(self, *args: Any, **kwargs: Any) -> str:
        """Print the dependence relations for arguments like these, before and after simplification."""
        return "\n".join(map(str, self._program(self._arguments(args, kwargs)).dependences))

    def graph(self, *args: Any, **kwargs: Any) -> Pattern:
        """Build the dependence graph of a call: row j holds the iterations of the first loop that j depends on."""
        arguments = self._arguments(args, kwargs)
        return self._program(arguments).graph(arguments)

    def schedule(self, *args: Any, **kwargs: Any) -> TileSchedule:
        """Make, or take from those made before, the schedule of a call."""
        arguments = self._arguments(args, kwargs)
        return self._schedule(self._program(arguments), arguments)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: _operand(value) for name, value in bound.arguments.items()}
        for name, value in arguments.items():
            if isinstance(value, Csr):
                self._checked.find({name: value}, partial(check_csr, value, name))
        return arguments

    def _program(self, arguments: dict[str, Any]) -> CompiledProgram:
        types = {name: _type(name, value) for name, value in arguments.items()}
        key = tuple((name, str(type)) for name, type in types.items())
        compiled = self._compiled.get(key)
        if compiled is not None:
            return compiled
        from sparloom.fusion.compiled import CompiledProgram  # brings SymPy, which takes most of a second to import

        with _reading():
            if key not in self._compiled:
                self._compiled[key] = CompiledProgram(read_program(self._function, types, _real(arguments.values())))
            return self._compiled[key]

    def _run(self, program: CompiledProgram, arguments: dict[str, Any], schedule: TileSchedule | None) -> Any:
        return program.run(arguments, schedule, threads=self.budget.threads, bodies=self.bodies)

    def _schedule(self, program: CompiledProgram, arguments: dict[str, Any]) -> TileSchedule:
        return self._schedules.find(arguments, lambda: self._inspect(program, arguments))

    def _inspect(self, program: CompiledProgram, arguments: dict[str, Any]) -> TileSchedule:
        return schedule_tiles(
            program.loops(arguments), threads=self.budget.threads, cache_bytes=self.budget.cache_bytes,
            ct_size=self.budget.ct_size)


def _reading() -> AbstractContextManager[Any]:
    """Give the lock under which Numba compiles: it reads one function at a time, whoever asks."""
    from numba.core.compiler_lock import global_compiler_lock

    forkable(global_compiler_lock._lock)
    return global_compiler_lock


def _operand(value: Any) -> Any:
    """Bring an argument into the form that compiled code takes."""
    if isinstance(value, (SparseMatrix, Pattern, Csr)) or scipy.sparse.issparse(value):
        return csr(value)
    return value


def _type(name: str, value: Any) -> Any:
    """Find the Numba type of an argument.

    Raises:
        TypeError: something that is neither number, array nor sparse matrix.
    """
    from numba.core import types
    from numba.np.numpy_support import from_dtype

    match value:
        case np.ndarray():
            return types.Array(from_dtype(value.dtype), value.ndim, "C")
        case Csr():
            fields = [_type(name, value.p), _type(name, value.i), _type(name, value.x), types.UniTuple(types.int64, 2)]
            return types.NamedTuple(fields, Csr)
        case bool() | np.bool_():
            return types.boolean
        case int() | np.integer():
            return types.int64
        case np.float32():
            return types.float32
        case float() | np.floating():
            return types.float64
    raise TypeError(f"argument {name} is a {type(value).__name__}: pass numbers, NumPy arrays and sparse matrices")


def _real(values: Iterable[Any]) -> type[np.generic]:
    """Type of the elements of arrays made without dtype: float32 if all real operands have it, else float64."""
    arrays = [value.x if isinstance(value, Csr) else value for value in values]
    types = {array.dtype for array in arrays if isinstance(array, np.ndarray) and array.dtype.kind == "f"}
    return np.float32 if types == {np.dtype(np.float32)} else np.float64
