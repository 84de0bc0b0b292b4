"""Programs that run often: little is done per run, and intermediate results share memory."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np

from sparloom.ir import DTYPES, Ref
from sparloom.jit import address, aligned
from sparloom.ragged.evaluate import evaluate
from sparloom.ragged.executable import Executable
from sparloom.ragged.layout import size
from sparloom.ragged.lifetimes import Span, lifetimes, needed, placed
from sparloom.ragged.operation import rewritten
from sparloom.ragged.program import Program
from sparloom.ragged.structure import Structure
from sparloom.ragged.tables import At
from sparloom.ragged.tensor import Tensor

__all__ = ["Runner"]

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
