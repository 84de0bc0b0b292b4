"""Compiled programs, and running them on the tensors of a structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any

import numpy as np

from sparloom.forks import forkable
from sparloom.ir import DTYPES, interpret, render_c, render_cuda, walk
from sparloom.jit import aligned, compile_c
from sparloom.measure import checked_threads
from sparloom.ragged.layout import Access, offset_steps, size
from sparloom.ragged.lower import Lowered, lower
from sparloom.ragged.prelude import closure
from sparloom.ragged.program import Program
from sparloom.ragged.structure import Prelude, Structure
from sparloom.ragged.tables import At, Table
from sparloom.ragged.tensor import Tensor

__all__ = ["Executable", "arguments", "bound_arrays", "interpreted"]


class Executable:
    """A program in compiled C, for structures of any lengths.

    Args:
        hoisted, access: as in `lower`.
        threads: of parallel loops; by default those of OpenMP.

    Raises:
        IllegalSchedule: as by `lower`.
        CompileError: the compiler refused, or there is none.
    """

    def __init__(self, program: Program, *, hoisted: bool = True, access: Access = offset_steps,
                 threads: int | None = None) -> None:
        self.program = program
        self.lowered = lower(program, hoisted=hoisted, access=access)
        tables = closure(_tables(program, self.lowered))
        self._library = compile_c([each.kernel for each in (*self.lowered, *tables)])
        self.prelude = Prelude(tables, self._library)
        self.functions = tuple(self._library.function(each.kernel.name) for each in self.lowered)
        self._threads = None if threads is None else checked_threads(threads)
        if threads is None:
            checked_threads(self._library.threads, "OMP_NUM_THREADS")

    def __call__(self, structure: Structure, **arrays: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """Compute the outputs, flat, one array or one per output; see `bind`."""
        run, results = self.bind(structure, **arrays)
        run()
        found = tuple(results[name] for name in self.program.outputs)
        return found if len(found) > 1 else found[0]

    def bind(self, structure: Structure, **arrays: np.ndarray) -> tuple[Callable[[], None], dict[str, np.ndarray]]:
        """Build the tables that are missing and check the arguments once.

        Args:
            arrays: storage of the given tensors, flat or of any shape, C-contiguous, of the tensor's type; that of
                others may be given too, to be written, and is made otherwise.

        Returns:
            A call that computes, and the storage of every tensor.

        Raises:
            TypeError: a tensor is missing or unknown, or no NumPy array.
            ValueError: an array has the wrong size or type.
        """
        calls, bound = self._calls(structure, arrays)
        return self._on_threads(list(calls.values())), bound

    def kernels(self, structure: Structure, **arrays: np.ndarray) -> tuple[
            dict[str, Callable[[], None]], dict[str, np.ndarray]]:
        """Bind every kernel by itself; arguments and errors as of `bind`.

        Returns:
            By name of the launch, in order, a call that computes it from what those before have left in the storage;
            and the storage of every tensor.
        """
        calls, bound = self._calls(structure, arrays)
        return {name: self._on_threads([call]) for name, call in calls.items()}, bound

    def _calls(self, structure: Structure, arrays: Mapping[str, np.ndarray]) -> tuple[
            dict[str, Callable[[], None]], dict[str, np.ndarray]]:
        structure.prepare(self.prelude)
        bound = bound_arrays(self.program, structure, arrays)
        calls = {}
        for launch, each, function in zip(self.program.launches, self.lowered, self.functions, strict=True):
            calls[launch.name] = function.bind(*arguments(each, structure, bound).values())
        return calls, bound

    def _on_threads(self, calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
        turn, runs = forkable(RLock()), [0]  # how many runs have begun

        def run() -> None:
            with turn:
                while True:  # again where a signal handler or finaliser has run these calls in between
                    mine = runs[0] = runs[0] + 1
                    self.set_threads()
                    for call in calls:
                        call()
                        if runs[0] != mine:
                            break
                    else:
                        return

        return run

    def set_threads(self) -> None:
        """Let parallel loops that this thread starts from now on have the threads of the program."""
        if self._threads is not None:
            self._library.set_threads(self._threads)

    def source(self) -> str:
        """Print the C of all kernels."""
        return render_c(*(each.kernel for each in self.lowered))

    def cuda(self) -> tuple[str, ...]:
        """Print the CUDA of every kernel.

        Raises:
            Unsupported: an outermost loop is not parallel.
        """
        return tuple(render_cuda(each.kernel) for each in self.lowered)


def interpreted(program: Program, structure: Structure, access: Access = offset_steps, /,
                **arrays: np.ndarray) -> dict[str, np.ndarray]:
    """Run a program by the interpreter of the loop IR, which notices races and accesses out of bounds; slow.

    Args:
        access: as in `lower`.

    Returns:
        The storage of every tensor, flat.
    """
    bound = bound_arrays(program, structure, arrays)
    for each in lower(program, access=access):
        interpret(each.kernel, **arguments(each, structure, bound))
    return bound


def arguments(each: Lowered, structure: Structure, bound: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Give the arguments of a kernel by name: storage of tensors, and tables of the structure."""
    return {param.name: bound[param.name] if isinstance(each.meaning[param.name], Tensor)
            else structure.table(each.meaning[param.name]) for param in each.kernel.params}


def bound_arrays(program: Program, structure: Structure, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give the storage of every tensor: that of the arrays, checked, and new ones for those that are missing.

    Raises:
        TypeError, ValueError: as Executable.bind.
    """
    tensors, inputs = program.tensors(), program.inputs()
    missing, unknown = sorted(set(inputs) - set(arrays)), sorted(set(arrays) - set(tensors))
    if missing or unknown:
        raise TypeError(f"program {program.name}: missing tensors {missing}, unknown tensors {unknown}")
    bound = {}
    for name, tensor in tensors.items():
        if tensor.local is not None:
            continue
        elements, dtype = structure.size(tensor), np.dtype(DTYPES[tensor.type.scalar])
        array = arrays.get(name)
        if array is None:
            array = aligned((elements,), dtype.type, zero=True)
        elif not isinstance(array, np.ndarray):
            raise TypeError(f"tensor {name} is a {type(array).__name__}: give a NumPy array of {elements} {dtype}")
        elif array.size != elements or array.dtype != dtype:
            raise ValueError(f"tensor {name} is an array of {array.size} {array.dtype}: its storage has {elements} "
                             f"elements of {dtype}")
        bound[name] = array
    return bound


def _tables(program: Program, lowered: tuple[Lowered, ...]) -> list[Table]:
    """Tables that kernels read, and those that sizes of storage are made of."""
    read = [each for kernel in lowered for each in kernel.meaning.values() if not isinstance(each, Tensor)]
    sizes = [node.table for tensor in program.tensors().values() if tensor.local is None
             for node in walk(size(tensor)) if isinstance(node, At)]
    return list(dict.fromkeys([*read, *sizes]))
