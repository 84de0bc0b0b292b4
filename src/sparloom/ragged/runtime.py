"""Compiled programs, and running them on the tensors of a structure.

Programs as CUDA text, and what their kernels are called with, wherever the arrays lie.

A prelude for every kernel, as if each were compiled by itself: what sharing is compared with.

Where intermediate results lie while a program runs: those that are not needed at once share memory.

Programs that run often: little is done per run, and intermediate results share memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sparloom.forks import forkable
from sparloom.ir import DTYPES, Ref, interpret, render_c, render_cuda, walk
from sparloom.jit import address, aligned, compile_c
from sparloom.measure import checked_threads
from sparloom.ragged.layout import Access, evaluate, offset_steps, size
from sparloom.ragged.lowering import Lowered, lower
from sparloom.ragged.program import Launch, Program, rewritten
from sparloom.ragged.structure import Prelude, Structure
from sparloom.ragged.table_code import closure
from sparloom.ragged.tensor import At, Table, Tensor

__all__ = [
    "DeviceProgram", "Executable", "Runner", "Span", "arguments", "bound_arrays", "interpreted", "kernel_preludes",
    "lifetimes", "needed", "placed", "touched",
]


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


class DeviceProgram:
    """A program for a GPU; nothing is compiled here.

    Args:
        program: with a parallel loop at the top of every launch, such as `device_encoder_layer` gives.

    Raises:
        Unsupported: a launch has no CUDA form.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._lowered = lower(program)
        self.texts: Mapping[str, str] = {each.kernel.name: render_cuda(each.kernel) for each in self._lowered}
        """Kernel -> its source, in the order of the launches."""

    def bind(
        self, structure: Structure, upload: Callable[[np.ndarray], Any], **arrays: np.ndarray,
    ) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """Bring everything to the device.

        Args:
            structure: lengths of this batch; tables that it lacks are made on the processor.
            upload: copies an array to the device.
            arrays: tensors by name, as for `Executable.bind`; those that are missing are made, full of zeros.

        Returns:
            Kernel -> its arguments, arrays of the device and NumPy scalars; tensor -> its storage on the device.

        Raises:
            TypeError, ValueError: as `Executable.bind`.
        """
        here = bound_arrays(self.program, structure, arrays)
        there = {name: upload(array) for name, array in here.items()}
        tables: dict[int, Any] = {}  # by the table itself, which kernels share
        calls = {}
        for each in self._lowered:
            found = calls[each.kernel.name] = []
            for param, value in zip(each.kernel.params, arguments(each, structure, here).values(), strict=True):
                if not param.buffer:
                    found.append(np.dtype(DTYPES[param.type.scalar]).type(value))
                elif param.name in there:
                    found.append(there[param.name])
                else:
                    if id(value) not in tables:
                        tables[id(value)] = upload(value)
                    found.append(tables[id(value)])
        return calls, there


def kernel_preludes(program: Program, *, access: Access = offset_steps) -> dict[str, Prelude]:
    """Compile, by name of the launch, what builds the tables that its kernel reads.

    Args:
        access: as in `lower`.

    Source: CoRa §7.4 (CoRa-Redundant).
    """
    found = {}
    for launch, each in zip(program.launches, lower(program, access=access), strict=True):
        kernels = closure(table for table in each.meaning.values() if not isinstance(table, Tensor))
        found[launch.name] = Prelude(kernels, compile_c([made.kernel for made in kernels]))
    return found


ALIGNMENT = 64  # bytes: a line of a cache

Span = tuple[int, int]  # numbers of the first and the last launch that touch it


def touched(launch: Launch) -> tuple[set[str], set[str]]:
    """Name the tensors that a launch reads, and those that it writes; local ones are in neither."""
    nests = [each for nest in launch.nests for each in nest.tree()]
    reads = {read.tensor for nest in nests for read in nest.operation.reads}
    writes = {nest.operation.output for nest in nests}
    return tuple({tensor.name for tensor in tensors if tensor.local is None} for tensors in (reads, writes))


def needed(program: Program, wanted: Collection[str]) -> tuple[int, ...]:
    """Number the launches without which some wanted results are not computed."""
    missing, found = set(wanted), []
    for number, launch in reversed(list(enumerate(program.launches))):
        reads, writes = touched(launch)
        if writes & missing:
            found.append(number)
            missing |= reads
    return tuple(reversed(found))


def lifetimes(program: Program, launches: Sequence[int]) -> dict[str, Span]:
    """Give the lifetime of every tensor that some launches touch."""
    found: dict[str, Span] = {}
    for number in launches:
        for name in set.union(*touched(program.launches[number])):
            found[name] = (found.get(name, (number,))[0], number)
    return found


def placed(spans: Mapping[str, Span], sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Place tensors so that those alive at once do not overlap: the largest first, each as far in front as it can.

    Args:
        sizes: in bytes.

    Returns:
        By tensor the byte at which it begins, and the size of the whole.
    """
    places: dict[str, int] = {}
    total = 0
    for name in sorted(spans, key=lambda each: -sizes[each]):
        first, last = spans[name]
        beside = sorted((places[other], places[other] + sizes[other]) for other in places
                        if spans[other][0] <= last and first <= spans[other][1])
        begin = 0
        for start, end in beside:
            if begin + sizes[name] <= start:
                break
            begin = max(begin, -(-end // ALIGNMENT) * ALIGNMENT)
        places[name] = begin
        total = max(total, begin + sizes[name])
    return places, total


Names = frozenset[str]


@dataclass(frozen=True)
class _Plan:
    """Which launches run, and where tensors that are not given lie: bytes from the start of `total`."""

    launches: tuple[int, ...]
    places: Mapping[str, int]
    total: int


@dataclass(frozen=True)
class _Prepared:
    """What a structure decides.

    Args:
        elements: of every tensor that is not local.
        arguments: of every kernel: the name of a tensor, the number of a table without axes, or the address of its
            entries, which the structure keeps.
        plans: by what is wanted and what is given.
    """

    elements: Mapping[str, int]
    arguments: tuple[tuple[str | int, ...], ...]
    plans: dict[tuple[Names, Names], _Plan] = field(default_factory=dict)


class Runner:
    """Compiles a program, and runs it on storage of the caller.

    Tensors that the caller does not give lie in memory that all runners of a thread share, and are gone with the next
    run; those that are not needed at once share it, too.

    Args:
        threads: of parallel loops; by default those of OpenMP.

    Raises:
        CompileError: the compiler refused, or there is none.
    """

    def __init__(self, program: Program, *, threads: int | None = None) -> None:
        self.program = program
        self._executable = Executable(program, threads=threads)
        self._inputs = frozenset(program.inputs())
        tensors = {name: each for name, each in program.tensors().items() if each.local is None}
        self._types = {name: np.dtype(DTYPES[each.type.scalar]) for name, each in tensors.items()}
        self._tables: dict[At, Ref] = {}
        self._sizes = {name: rewritten(size(each), self._named) for name, each in tensors.items()}
        self._spans: dict[Names, tuple[tuple[int, ...], Mapping[str, Span]]] = {}
        self._prepared: WeakKeyDictionary[Structure, _Prepared] = WeakKeyDictionary()

    def elements(self, structure: Structure) -> Mapping[str, int]:
        """Count the elements of every tensor that is not local."""
        return self._for(structure).elements

    def __call__(self, structure: Structure, arrays: Mapping[str, np.ndarray], wanted: Collection[str] | None = None
                 ) -> None:
        """Compute what is wanted, and no launch that it does not need.

        Args:
            arrays: storage of tensors that are read, and of those that are wanted, C-contiguous; they do not overlap.
            wanted: results, by default the outputs of the program.

        Raises:
            TypeError: a tensor is missing or unknown, or no NumPy array.
            ValueError: an array has the wrong size or type, is not contiguous, or is read-only or overlaps another one
                though it is written.
        """
        prepared = self._for(structure)
        addresses = {name: self._address(name, array, prepared) for name, array in arrays.items()}
        self._check_apart(addresses, arrays)
        plan = self._plan(prepared, frozenset(self.program.outputs if wanted is None else wanted), frozenset(arrays))
        memory = _memory()
        room = memory.taken(plan.total)
        begin = room.ctypes.data
        addresses.update((name, begin + place) for name, place in plan.places.items())
        self._executable.set_threads()
        for number in plan.launches:
            self._executable.functions[number].at(
                *(addresses[each] if isinstance(each, str) else each for each in prepared.arguments[number]))
        memory.give(room)

    def _address(self, name: str, array: np.ndarray, prepared: _Prepared) -> int:
        wanted = prepared.elements.get(name)
        if wanted is None:
            raise TypeError(f"program {self.program.name} has no tensor {name} that could be given; there are: "
                            f"{', '.join(prepared.elements)}")
        if not isinstance(array, np.ndarray):
            raise TypeError(f"tensor {name} is a {type(array).__name__}: give a NumPy array of {wanted} "
                            f"{self._types[name]}")
        if array.size != wanted or array.dtype != self._types[name] or not array.flags.c_contiguous:
            raise ValueError(f"tensor {name} is an array of {array.size} {array.dtype} with strides {array.strides}: "
                             f"its storage is contiguous, {wanted} elements of {self._types[name]}")
        return address(array, array.dtype.type, written=name not in self._inputs)

    def _check_apart(self, addresses: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse arrays that are written and overlap others: in the order of memory, one begins before another ends."""
        end, last, end_written, last_written = 0, "", 0, ""
        for begin, name in sorted((place, name) for name, place in addresses.items() if arrays[name].size):
            written = name not in self._inputs
            if begin < (end if written else end_written):
                raise ValueError(f"tensors {last if written else last_written} and {name} overlap: give the one that "
                                 "is written an array of its own")
            stop = begin + arrays[name].nbytes
            if stop > end:
                end, last = stop, name
            if written and stop > end_written:
                end_written, last_written = stop, name

    def _plan(self, prepared: _Prepared, wanted: Names, given: Names) -> _Plan:
        found = prepared.plans.get((wanted, given))
        if found is None:
            launches, spans = self._alive(wanted)
            inner = {name: span for name, span in spans.items() if name not in given}
            missing = sorted((self._inputs & inner.keys()) | (wanted - given))
            if missing:
                raise TypeError(f"program {self.program.name}: missing tensors {', '.join(missing)}")
            sizes = {name: prepared.elements[name] * self._types[name].itemsize for name in inner}
            found = prepared.plans[wanted, given] = _Plan(launches, *placed(inner, sizes))
        return found

    def _alive(self, wanted: Names) -> tuple[tuple[int, ...], Mapping[str, Span]]:
        """Launches that run, and lifetimes of what they touch."""
        if wanted not in self._spans:
            launches = needed(self.program, wanted)
            self._spans[wanted] = launches, lifetimes(self.program, launches)
        return self._spans[wanted]

    def _for(self, structure: Structure) -> _Prepared:
        found = self._prepared.get(structure)
        if found is None:
            structure.prepare(self._executable.prelude)
            numbers = {name.name: structure.number(table) for table, name in self._tables.items()}
            elements = {name: int(evaluate(each, numbers, structure.table)) for name, each in self._sizes.items()}
            arguments = []
            for each in self._executable.lowered:
                meanings = (each.meaning[param.name] for param in each.kernel.params)
                arguments.append(tuple(meaning.name if isinstance(meaning, Tensor) else _entry(structure.table(meaning))
                                       for meaning in meanings))
            found = self._prepared[structure] = _Prepared(elements, tuple(arguments))
        return found

    def _named(self, node: object) -> Ref | None:
        """Let sizes read every entry of a table once."""
        return self._tables.setdefault(node, Ref(f"n{len(self._tables)}")) if isinstance(node, At) else None


class _Memory(threading.local):
    """Memory of a thread, as large as the largest run so far asked for.

    A run takes it and gives it back: one by a signal handler or finaliser that interrupts another run finds none here,
    and has its own.
    """

    def __init__(self) -> None:
        self._rooms: list[np.ndarray] = []  # one, or none while it is taken

    def taken(self, count: int) -> np.ndarray:
        try:
            room = self._rooms.pop()
        except IndexError:
            room = None
        if room is None or room.size < count:
            del room  # give it back first
            room = aligned((count,), np.uint8)
        return room

    def give(self, room: np.ndarray) -> None:
        if not self._rooms:
            self._rooms.append(room)


@cache
def _memory() -> _Memory:
    return _Memory()


def _entry(entries: np.ndarray | int) -> int:
    return entries.ctypes.data if isinstance(entries, np.ndarray) else entries
