"""Run compiled programs on storage of the caller with little work per call; intermediate results share memory."""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sparloom.ir import DTYPES, Ref
from sparloom.jit import address, address_of, aligned, compile_cpp
from sparloom.ragged.layout import evaluate, storage_size
from sparloom.ragged.nests import Launch, Program, rewrite
from sparloom.ragged.runtime import Executable
from sparloom.ragged.structure import Structure
from sparloom.ragged.tensor import At, Tensor

ALIGNMENT = 64  # bytes of a cache line
MOST_ARGUMENTS = 48  # of a kernel, as in kernels/cpu/launches.cpp

Names = frozenset[str]
Span = tuple[int, int]  # indices of the first and the last launch that access a tensor


@dataclass(frozen=True, eq=False)
class FixedArrays:
    """Storage of inputs that `Runner.fix` has checked; it stays where it is while this object lives."""

    addresses: Mapping[str, int]
    arrays: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _Plan:
    """Launches to run, and byte offsets of the intermediate tensors in a buffer of `total` bytes."""

    launches: tuple[int, ...]
    offsets: Mapping[str, int]
    total: int


@dataclass(frozen=True)
class _Prepared:
    """Values that depend on the structure only.

    Args:
        elements: number of elements of every tensor that is not local.
        arguments: for every kernel, the name of a tensor, the number of a table without axes, or the address of the
            entries of a table, which the structure keeps alive.
        plans: by wanted tensors and those that were passed.
    """

    elements: Mapping[str, int]
    arguments: tuple[tuple[str | int, ...], ...]
    plans: dict[tuple[Names, Names], _Plan] = field(default_factory=dict)


class Runner:
    """Compiled program that runs on the caller's storage with little work per call.

    Tensors that the caller does not give are in a workspace shared by all runners of a thread, and are overwritten by
    the next run; tensors that are not alive at once share memory.

    Args:
        threads: threads of parallel loops, by default OpenMP's.

    Raises:
        ValueError: a kernel has more than `MOST_ARGUMENTS` arguments.
    """

    def __init__(self, program: Program, *, threads: int | None = None) -> None:
        self.program = program
        self._executable = Executable(program, threads=threads)
        for function in self._executable.functions:
            if len(function.params) > MOST_ARGUMENTS:
                raise ValueError(f"kernel {function.name} has {len(function.params)} arguments: a Runner calls kernels "
                                 f"of at most {MOST_ARGUMENTS}, use an Executable")
        self._entries = tuple(function.address for function in self._executable.functions)
        self._inputs = frozenset(program.inputs())
        tensors = {name: each for name, each in program.tensors().items() if each.local is None}
        self._types = {name: np.dtype(DTYPES[each.type.scalar]) for name, each in tensors.items()}
        self._tables: dict[At, Ref] = {}
        self._sizes = {name: rewrite(storage_size(each), self._named) for name, each in tensors.items()}
        self._spans: dict[Names, tuple[tuple[int, ...], Mapping[str, Span]]] = {}
        self._prepared: WeakKeyDictionary[Structure, _Prepared] = WeakKeyDictionary()

    def elements(self, structure: Structure) -> Mapping[str, int]:
        """Return the number of elements of every tensor that is not local."""
        return self._for(structure).elements

    def fix(self, structure: Structure, arrays: Mapping[str, np.ndarray]) -> FixedArrays:
        """Check storage of inputs once for several calls, such as that of weights, whose size no length changes.

        Raises:
            TypeError, ValueError: as in a call; also if an array is no input.
        """
        prepared = self._for(structure)
        results = sorted(arrays.keys() - self._inputs)
        if results:
            raise ValueError(f"tensor {results[0]} is no input of program {self.program.name}: pass it with each call")
        return FixedArrays({name: self._address(name, array, prepared) for name, array in arrays.items()}, dict(arrays))

    def bind(self, structure: Structure, arrays: Mapping[str, np.ndarray], wanted: Collection[str] | None = None, *,
             fixed: FixedArrays | None = None) -> BoundRun:
        """Check the storage for a run that computes the wanted results, without launches that they do not need.

        Args:
            arrays: storage of inputs and wanted results, C-contiguous, without overlap.
            wanted: results, by default the outputs of the program.
            fixed: storage of further inputs, which that of results does not overlap.

        Raises:
            TypeError: a tensor is missing, unknown, or not a NumPy array.
            ValueError: an array has the wrong size or type, is not contiguous, or is written but read-only or
                overlapping.
        """
        prepared = self._for(structure)
        addresses = {name: self._address(name, array, prepared) for name, array in arrays.items()}
        self._check_apart(addresses, arrays)
        if fixed is not None:
            addresses |= fixed.addresses
        plan = self._plan(prepared, frozenset(self.program.outputs if wanted is None else wanted), frozenset(addresses))
        return BoundRun(self._executable, self._entries, prepared, plan, addresses, [structure, arrays, fixed])

    def __call__(self, structure: Structure, arrays: Mapping[str, np.ndarray], wanted: Collection[str] | None = None, *,
                 fixed: FixedArrays | None = None) -> None:
        """Compute the wanted results; arguments and errors are those of `bind`."""
        run_bound([self.bind(structure, arrays, wanted, fixed=fixed)])

    def _address(self, name: str, array: np.ndarray, prepared: _Prepared) -> int:
        wanted = prepared.elements.get(name)
        if wanted is None:
            raise TypeError(f"program {self.program.name} has no tensor {name} to pass; there are: "
                            f"{', '.join(prepared.elements)}")
        if not isinstance(array, np.ndarray):
            raise TypeError(f"tensor {name} is a {type(array).__name__}: give a NumPy array of {wanted} "
                            f"{self._types[name]}")
        if array.size != wanted or array.dtype != self._types[name] or not array.flags.c_contiguous:
            raise ValueError(f"tensor {name} is an array of {array.size} {array.dtype} with strides {array.strides}: "
                             f"its storage is contiguous, {wanted} elements of {self._types[name]}")
        return address(array, array.dtype.type, written=name not in self._inputs)

    def _check_apart(self, addresses: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> None:
        """Reject written arrays that overlap others: in order of addresses, one begins before another ends."""
        end, last, end_written, last_written = 0, "", 0, ""
        for begin, name in sorted((start, name) for name, start in addresses.items() if arrays[name].size):
            written = name not in self._inputs
            if begin < (end if written else end_written):
                raise ValueError(f"tensors {last if written else last_written} and {name} overlap: give the one that "
                                 "is written a separate array")
            stop = begin + arrays[name].nbytes
            if stop > end:
                end, last = stop, name
            if written and stop > end_written:
                end_written, last_written = stop, name

    def _plan(self, prepared: _Prepared, wanted: Names, passed: Names) -> _Plan:
        found = prepared.plans.get((wanted, passed))
        if found is None:
            launches, spans = self._alive(wanted)
            inner = {name: span for name, span in spans.items() if name not in passed}
            missing = sorted((self._inputs & inner.keys()) | (wanted - passed))
            if missing:
                raise TypeError(f"program {self.program.name}: missing tensors {', '.join(missing)}")
            sizes = {name: prepared.elements[name] * self._types[name].itemsize for name in inner}
            found = prepared.plans[wanted, passed] = _Plan(launches, *assign_offsets(inner, sizes))
        return found

    def _alive(self, wanted: Names) -> tuple[tuple[int, ...], Mapping[str, Span]]:
        """Return the launches that run, and the lifetimes of the tensors they access."""
        if wanted not in self._spans:
            launches = needed_launches(self.program, wanted)
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
        """Make sizes read every table entry once."""
        return self._tables.setdefault(node, Ref(f"n{len(self._tables)}")) if isinstance(node, At) else None


@dataclass(frozen=True, eq=False)
class BoundRun:
    """A run of a program with checked arguments, see `run_bound`.

    Args:
        entries: addresses of all kernels of the program.
        addresses: of the storage that the caller gave, by tensor.
        kept: what owns this storage; may be extended.
    """

    executable: Executable
    entries: tuple[int, ...]
    prepared: _Prepared
    plan: _Plan
    addresses: Mapping[str, int]
    kept: list[Any]

    def words(self, workspace: int) -> list[int]:
        """Return what kernels/cpu/launches.cpp reads: of each launch kernel, number of arguments, arguments."""
        addresses = {**self.addresses, **{name: workspace + begin for name, begin in self.plan.offsets.items()}}
        found = []
        for number in self.plan.launches:
            arguments = self.prepared.arguments[number]
            found += self.entries[number], len(arguments), *[
                addresses[each] if isinstance(each, str) else each for each in arguments]
        return found


def run_bound(runs: Sequence[BoundRun]) -> None:
    """Run programs one after the other, all kernels in one call; intermediate results share memory.

    Args:
        runs: at least one, of the same number of threads.
    """
    workspace = _workspace()
    buffer = workspace.acquire(max(run.plan.total for run in runs))
    words = array("q")
    for run in runs:
        words.extend(run.words(address_of(buffer)))
    call = _launches()
    runs[0].executable.set_threads()
    call(words.buffer_info()[0], sum(len(run.plan.launches) for run in runs))
    workspace.release(buffer)


@cache
def _launches() -> Any:
    function = compile_cpp(["cpu/launches.cpp"]).sparloom_launches
    function.restype, function.argtypes = None, [ctypes.c_void_p, ctypes.c_int64]
    return function


def reads_and_writes(launch: Launch) -> tuple[set[str], set[str]]:
    """Return the names of the tensors that a launch reads and of those it writes, without local ones."""
    nests = [each for nest in launch.nests for each in nest.tree()]
    reads = {read.tensor for nest in nests for read in nest.operation.reads}
    writes = {nest.operation.output for nest in nests}
    return tuple({tensor.name for tensor in tensors if tensor.local is None} for tensors in (reads, writes))


def needed_launches(program: Program, wanted: Collection[str]) -> tuple[int, ...]:
    """Return the indices of the launches on which wanted results depend."""
    missing, found = set(wanted), []
    for number, launch in reversed(list(enumerate(program.launches))):
        reads, writes = reads_and_writes(launch)
        if writes & missing:
            found.append(number)
            missing |= reads
    return tuple(reversed(found))


def lifetimes(program: Program, launches: Sequence[int]) -> dict[str, Span]:
    """Return the lifetime of every tensor that these launches access."""
    found: dict[str, Span] = {}
    for number in launches:
        for name in set.union(*reads_and_writes(program.launches[number])):
            found[name] = (found.get(name, (number,))[0], number)
    return found


def assign_offsets(spans: Mapping[str, Span], sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Place tensors so that those alive at once do not overlap: the largest first, each at the lowest free offset.

    Args:
        sizes: in bytes.

    Returns:
        Byte offset of every tensor, and total size.
    """
    offsets: dict[str, int] = {}
    total = 0
    for name in sorted(spans, key=lambda each: -sizes[each]):
        first, last = spans[name]
        neighbours = sorted((offsets[other], offsets[other] + sizes[other]) for other in offsets
                        if spans[other][0] <= last and first <= spans[other][1])
        begin = 0
        for start, end in neighbours:
            if begin + sizes[name] <= start:
                break
            begin = max(begin, -(-end // ALIGNMENT) * ALIGNMENT)
        offsets[name] = begin
        total = max(total, begin + sizes[name])
    return offsets, total


class _Workspace(threading.local):
    """Buffer of a thread, as large as the largest run so far.

    A run acquires and releases it. If a signal handler or finaliser interrupts a run and starts another one, that one
    finds no buffer here and allocates its own.
    """

    def __init__(self) -> None:
        self._buffers: list[np.ndarray] = []  # one, or none while it is in use

    def acquire(self, count: int) -> np.ndarray:
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = None
        if buffer is None or buffer.size < count:
            del buffer  # free it first
            buffer = aligned((count,), np.uint8)
        return buffer

    def release(self, buffer: np.ndarray) -> None:
        if not self._buffers:
            self._buffers.append(buffer)


@cache
def _workspace() -> _Workspace:
    return _Workspace()


def _entry(entries: np.ndarray | int) -> int:
    return entries.ctypes.data if isinstance(entries, np.ndarray) else entries
