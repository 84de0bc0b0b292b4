"""The decorator `fuse`: compiles a function of two marked loops for the types it is called with, and schedules it."""

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
from sparloom.fusion.program import Csr, identity_key
from sparloom.fusion.recognition import Bodies
from sparloom.fusion.schedule import TileSchedule, schedule_tiles
from sparloom.jit import IdentityCache
from sparloom.measure import cache_bytes_per_core
from sparloom.sparse import Pattern, SparseMatrix

if TYPE_CHECKING:
    from sparloom.fusion.compiled import CompiledProgram


@dataclass(frozen=True)
class Budget:
    """Parameters of the inspector, see `schedule_tiles`."""

    threads: int
    cache_bytes: int
    ct_size: int = 2048

    @classmethod
    def of_this_machine(cls) -> Budget:
        """Use the processors available to this process, and all caches of one core (§5.1.1)."""
        return cls(len(os.sched_getaffinity(0)), cache_bytes_per_core())


def fuse(
    function: Callable[..., Any] | None = None, *, budget: Budget | None = None, bodies: Bodies = "recognised",
) -> Any:
    """Fuse the two loops of a function that are marked by `fprange`; use as `@fuse` or `@fuse(budget=...)`.

    The function has the form of Listing 1: dense operands are NumPy arrays; sparse operands are SparseMatrix, SciPy
    matrices or Csr, with the attributes `A.p`, `A.i`, `A.x`. Schedules are cached by the identity of index arrays, so
    these must not be changed in place between calls.

    Args:
        budget: threads and cache size (default: those of this machine).
        bodies: "recognised" runs D = A (B C) with dense or sparse B, and D = (A B) C, on whole matrices with the
            kernels of `Executor`, which sum in another order. "generated" always runs the code that `source` prints,
            which sums in the order of the function.

    Returns:
        A FusedFunction; its first call raises Unfusable, with file, line and access, if the loops cannot be fused.
    """
    if bodies not in get_args(Bodies):
        raise ValueError(f"bodies {bodies!r}: give one of {', '.join(get_args(Bodies))}")
    make = partial(FusedFunction, budget=budget or Budget.of_this_machine(), bodies=bodies)
    return make if function is None else make(function)


class FusedFunction:
    """A fused function, with caches of compiled code by argument types and of schedules by pattern."""

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
        """Compile and schedule the call unless that is cached, and run it."""
        program, arguments = self._compile(args, kwargs)
        return self._run(program, arguments, self._schedule(program, arguments))

    def unfused(self, *args: Any, **kwargs: Any) -> Any:
        """Run the loops one after the other, with the same bodies."""
        return self._run(*self._compile(args, kwargs), None)

    def source(self, *args: Any, **kwargs: Any) -> str:
        """Print the generated C for arguments like these."""
        return self._compile(args, kwargs)[0].source()

    def dependences(self, *args: Any, **kwargs: Any) -> str:
        """Print the dependence relations for arguments like these, before and after simplification."""
        return "\n".join(map(str, self._compile(args, kwargs)[0].dependences))

    def graph(self, *args: Any, **kwargs: Any) -> Pattern:
        """Build the dependence graph of a call: row j lists the iterations of the first loop that j depends on."""
        program, arguments = self._compile(args, kwargs)
        return program.graph(arguments)

    def schedule(self, *args: Any, **kwargs: Any) -> TileSchedule:
        """Return the schedule of a call, from the cache or by the inspector."""
        return self._schedule(*self._compile(args, kwargs))

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[CompiledProgram, dict[str, Any]]:
        """Convert and check the arguments of a call; compile for them unless that is cached."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: _operand(value) for name, value in bound.arguments.items()}
        for name, value in arguments.items():
            if isinstance(value, Csr):
                self._checked.get(*identity_key({name: value}), partial(check_csr, value, name))
        return self._program(arguments), arguments

    def _program(self, arguments: dict[str, Any]) -> CompiledProgram:
        types = {name: _type(name, value) for name, value in arguments.items()}
        key = tuple((name, str(type)) for name, type in types.items())
        compiled = self._compiled.get(key)
        if compiled is not None:
            return compiled
        from sparloom.fusion.compiled import CompiledProgram  # imports SymPy, which is slow
        from sparloom.fusion.frontend import read_program  # imports Numba

        with _compiler_lock():
            if key not in self._compiled:
                self._compiled[key] = CompiledProgram(read_program(self._function, types, _real(arguments.values())))
            return self._compiled[key]

    def _run(self, program: CompiledProgram, arguments: dict[str, Any], schedule: TileSchedule | None) -> Any:
        return program.run(arguments, schedule, threads=self.budget.threads, bodies=self.bodies)

    def _schedule(self, program: CompiledProgram, arguments: dict[str, Any]) -> TileSchedule:
        return self._schedules.get(*identity_key(arguments), lambda: self._inspect(program, arguments))

    def _inspect(self, program: CompiledProgram, arguments: dict[str, Any]) -> TileSchedule:
        return schedule_tiles(
            program.loops(arguments), threads=self.budget.threads, cache_bytes=self.budget.cache_bytes,
            ct_size=self.budget.ct_size)


def _compiler_lock() -> AbstractContextManager[Any]:
    """Return Numba's compiler lock, made safe to fork: Numba reads one function at a time."""
    from numba.core.compiler_lock import global_compiler_lock

    forkable(global_compiler_lock._lock)
    return global_compiler_lock


def _operand(value: Any) -> Any:
    """Convert a sparse argument to Csr."""
    if isinstance(value, (SparseMatrix, Pattern, Csr)) or scipy.sparse.issparse(value):
        return csr(value)
    return value


def csr(matrix: Any) -> Csr:
    """View a sparse matrix as Csr, without a copy if it is in CSR already; values of a Pattern are float32 ones."""
    match matrix:
        case Csr():
            return matrix
        case SparseMatrix():
            pattern = matrix.pattern
            return Csr(pattern.indptr, pattern.indices, matrix.values, pattern.shape)
        case Pattern():
            return Csr(matrix.indptr, matrix.indices, np.ones(matrix.nnz, np.float32), matrix.shape)
    rows = matrix if getattr(matrix, "format", None) == "csr" else scipy.sparse.csr_array(matrix)
    return Csr(rows.indptr, rows.indices, rows.data, rows.shape)


def check_csr(matrix: Csr, name: str) -> None:
    """Check what compiled code relies on, row pointers and columns, in time proportional to the nonzeros."""
    rows, cols = matrix.shape
    p, i = matrix.p, matrix.i
    if p.shape != (rows + 1,) or p[0] != 0 or p[-1] != i.size or (p[1:] < p[:-1]).any() or i.shape != matrix.x.shape:
        raise ValueError(f"row pointers of {name}, {rows} rows and {i.size} nonzeros, must be {rows + 1} numbers that "
                         f"rise from 0 to {i.size}, with one value per nonzero")
    if i.size and not 0 <= i.min() <= i.max() < cols:
        raise ValueError(f"columns of {name} run from {i.min()} to {i.max()}: they must lie in 0 to {cols - 1}")


def _type(name: str, value: Any) -> Any:
    """Return the Numba type of an argument."""
    from numba import types  # the package first: this waits for another thread that is importing it
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
    """Return the type of arrays allocated without dtype: float32 if all real operands have it, else float64."""
    arrays = [value.x if isinstance(value, Csr) else value for value in values]
    types = {array.dtype for array in arrays if isinstance(array, np.ndarray) and array.dtype.kind == "f"}
    return np.float32 if types == {np.dtype(np.float32)} else np.float64
