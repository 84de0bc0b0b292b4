"""Run programs: compiled for a CPU (`Executable`), as CUDA text (`DeviceProgram`), or interpreted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sparloom.forks import forkable
from sparloom.ir import DTYPES, interpret, render_c, render_cuda, walk
from sparloom.jit import aligned, compile_c
from sparloom.measure import checked_threads
from sparloom.ragged.layout import Access, offset_steps, storage_size
from sparloom.ragged.lowering import Lowered, lower
from sparloom.ragged.nests import Program
from sparloom.ragged.structure import Prelude, Structure
from sparloom.ragged.table_code import prelude_kernels
from sparloom.ragged.tensor import At, Table, Tensor


class Executable:
    """Program compiled to C, for structures of any lengths.

    Args:
        hoisted, access: as in `lower`.
        threads: threads of parallel loops, by default OpenMP's.

    Raises:
        IllegalSchedule: as in `lower`.
        CompileError: the compiler failed, or is not installed.
    """

    def __init__(self, program: Program, *, hoisted: bool = True, access: Access = offset_steps,
                 threads: int | None = None) -> None:
        self.program = program
        self.lowered = lower(program, hoisted=hoisted, access=access)
        tables = prelude_kernels(_tables(program, self.lowered))
        self._library = compile_c([each.kernel for each in (*self.lowered, *tables)])
        self.prelude = Prelude(tables, self._library)
        self.functions = tuple(self._library.function(each.kernel.name) for each in self.lowered)
        self._threads = None if threads is None else checked_threads(threads)
        if threads is None:
            checked_threads(self._library.threads, "OMP_NUM_THREADS")

    def __call__(self, structure: Structure, **arrays: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """Compute the outputs: a flat array, or one for each output; see `bind`."""
        run, results = self.bind(structure, **arrays)
        run()
        found = tuple(results[name] for name in self.program.outputs)
        return found if len(found) > 1 else found[0]

    def bind(self, structure: Structure, **arrays: np.ndarray) -> tuple[Callable[[], None], dict[str, np.ndarray]]:
        """Build missing tables and check the arguments once.

        Args:
            arrays: storage of the inputs, flat or of any shape, C-contiguous, of the tensor's type; storage of other
                tensors may be given to be written, and is allocated otherwise.

        Returns:
            Function that runs the program, and the storage of every tensor.

        Raises:
            TypeError: a tensor is missing, unknown, or not a NumPy array.
            ValueError: an array has the wrong size or type.
        """
        calls, bound = self._calls(structure, arrays)
        return self._on_threads(list(calls.values())), bound

    def kernels(self, structure: Structure, **arrays: np.ndarray) -> tuple[
            dict[str, Callable[[], None]], dict[str, np.ndarray]]:
        """Bind every kernel separately, as `bind`: functions by the names of the launches, and all storage."""
        calls, bound = self._calls(structure, arrays)
        return {name: self._on_threads([call]) for name, call in calls.items()}, bound

    def _calls(self, structure: Structure, arrays: Mapping[str, np.ndarray]) -> tuple[
            dict[str, Callable[[], None]], dict[str, np.ndarray]]:
        structure.prepare(self.prelude)
        bound = bind_arrays(self.program, structure, arrays)
        calls = {}
        for launch, each, function in zip(self.program.launches, self.lowered, self.functions, strict=True):
            calls[launch.name] = function.bind(*kernel_arguments(each, structure, bound).values())
        return calls, bound

    def _on_threads(self, calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
        turn, runs = forkable(threading.RLock()), [0]  # number of runs started

        def run() -> None:
            with turn:
                while True:  # repeat if a signal handler or finaliser ran these calls in between
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
        """Set the number of threads for parallel loops that this thread starts from now on."""
        if self._threads is not None:
            self._library.set_threads(self._threads)

    def source(self) -> str:
        """Return the C code of all kernels."""
        return render_c(*(each.kernel for each in self.lowered))

    def cuda(self) -> tuple[str, ...]:
        """Return the CUDA code of every kernel."""
        return tuple(render_cuda(each.kernel) for each in self.lowered)


class DeviceProgram:
    """Program as CUDA text with the arguments of its kernels; it compiles nothing.

    Args:
        program: program with a parallel outermost loop in every launch, as made by `device_encoder_layer`.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._lowered = lower(program)
        self.texts: Mapping[str, str] = {each.kernel.name: render_cuda(each.kernel) for each in self._lowered}
        """Kernel -> its source, in order of the launches."""

    def bind(
        self, structure: Structure, upload: Callable[[np.ndarray], Any], **arrays: np.ndarray,
    ) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """Upload all arrays to the device.

        Args:
            structure: lengths of this batch; missing tables are built on the CPU.
            upload: copies an array to the device.
            arrays: tensors by name, as in `Executable.bind`; missing ones are allocated and set to zero.

        Returns:
            Kernel -> its arguments, device arrays and NumPy scalars; tensor -> its storage on the device.
        """
        here = bind_arrays(self.program, structure, arrays)
        there = {name: upload(array) for name, array in here.items()}
        tables: dict[int, Any] = {}  # by the table itself, which kernels share
        calls = {}
        for each in self._lowered:
            found = calls[each.kernel.name] = []
            for param, value in zip(each.kernel.params, kernel_arguments(each, structure, here).values(), strict=True):
                if not param.buffer:
                    found.append(np.dtype(DTYPES[param.type.scalar]).type(value))
                elif param.name in there:
                    found.append(there[param.name])
                else:
                    if id(value) not in tables:
                        tables[id(value)] = upload(value)
                    found.append(tables[id(value)])
        return calls, there


def interpreted(program: Program, structure: Structure, access: Access = offset_steps, /,
                **arrays: np.ndarray) -> dict[str, np.ndarray]:
    """Run a program in the interpreter of the loop IR, which detects races and out-of-bounds accesses; slow.

    Args:
        access: as in `lower`.

    Returns:
        Storage of every tensor, flat.
    """
    bound = bind_arrays(program, structure, arrays)
    for each in lower(program, access=access):
        interpret(each.kernel, **kernel_arguments(each, structure, bound))
    return bound


def kernel_preludes(program: Program, *, access: Access = offset_steps) -> dict[str, Prelude]:
    """Compile a separate prelude for the tables of every kernel, by launch, as a baseline for shared tables.

    Source: CoRa §7.4 (CoRa-Redundant).
    """
    found = {}
    for launch, each in zip(program.launches, lower(program, access=access), strict=True):
        kernels = prelude_kernels(table for table in each.meaning.values() if not isinstance(table, Tensor))
        found[launch.name] = Prelude(kernels, compile_c([made.kernel for made in kernels]))
    return found


def kernel_arguments(each: Lowered, structure: Structure, bound: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the arguments of a kernel by name: storage of tensors, and tables of the structure."""
    return {param.name: bound[param.name] if isinstance(each.meaning[param.name], Tensor)
            else structure.table(each.meaning[param.name]) for param in each.kernel.params}


def bind_arrays(program: Program, structure: Structure, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the storage of every tensor: the arrays that were passed, after checks, and new ones for the others."""
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
    """Return the tables that kernels read, and those that determine sizes of storage."""
    read = [each for kernel in lowered for each in kernel.meaning.values() if not isinstance(each, Tensor)]
    sizes = [node.table for tensor in program.tensors().values() if tensor.local is None
             for node in walk(storage_size(tensor)) if isinstance(node, At)]
    return list(dict.fromkeys([*read, *sizes]))
