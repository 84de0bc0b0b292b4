"""Run programs: compiled for a CPU, as CUDA text, or interpreted."""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sparloom.errors import IllegalSchedule
from sparloom.forks import forkable
from sparloom.ir import DTYPES, Ref, interpret, render_c, render_cuda, walk
from sparloom.jit import address, address_of, aligned, compile_c, compile_cpp
from sparloom.measure import checked_threads
from sparloom.ragged.layout import Access, evaluate, offset_steps, storage_size
from sparloom.ragged.lowering import Lowered, lower
from sparloom.ragged.nests import Launch, Program, rewrite
from sparloom.ragged.structure import Prelude, Structure
from sparloom.ragged.table_code import prelude_kernels
from sparloom.ragged.tensor import At, Table, Tensor

ALIGNMENT = 64  # bytes of a cache line
MOST_ARGUMENTS = 48  # of a kernel, as in kernels/cpu/launches.cpp

Names = frozenset[str]
Span = tuple[int, int]  # indices of the first and the last launch that access a tensor


class Executable:
    """Program compiled to C, for structures of any lengths.

    Calling it, `bind` and `kernels` allocate the storage that is not given. `run` and `prepare` work on the caller's,
    with little work per call: intermediate results are in a workspace shared by all programs of a thread, where tensors
    that are not alive at once share memory, and are overwritten by the next run.

    Args:
        hoisted, access: as in `lower`.
        threads: threads of parallel loops, by default OpenMP's.

    Raises:
        IllegalSchedule: as in `lower`; or a kernel has more than `MOST_ARGUMENTS` arguments.
        CompileError: the compiler failed, or is not installed.
    """

    def __init__(self, program: Program, *, hoisted: bool = True, access: Access = offset_steps,
                 threads: int | None = None) -> None:
        self.program = program
        self.lowered = lower(program, hoisted=hoisted, access=access)
        for each in self.lowered:
            if len(each.kernel.params) > MOST_ARGUMENTS:
                raise IllegalSchedule(f"kernel {each.kernel.name} has {len(each.kernel.params)} arguments, and kernels "
                                      f"are called with at most {MOST_ARGUMENTS}: fuse fewer operations")
        tables = prelude_kernels(_tables(program, self.lowered))
        self._library = compile_c([each.kernel for each in (*self.lowered, *tables)])
        self.prelude = Prelude(tables, self._library)
        self._entries = tuple(self._library.function(each.kernel.name).address for each in self.lowered)
        self._threads = None if threads is None else checked_threads(threads)
        if threads is None:
            checked_threads(self._library.threads, "OMP_NUM_THREADS")
        self._inputs = frozenset(program.inputs())
        tensors = {name: each for name, each in program.tensors().items() if each.local is None}
        self._types = {name: np.dtype(DTYPES[each.type.scalar]) for name, each in tensors.items()}
        self._tables: dict[At, Ref] = {}
        self._sizes = {name: rewrite(storage_size(each), self._named) for name, each in tensors.items()}
        self._spans: dict[Names, tuple[tuple[int, ...], Mapping[str, Span]]] = {}
        self._prepared: WeakKeyDictionary[Structure, _Prepared] = WeakKeyDictionary()

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
            ValueError: an array has the wrong size or type, is not contiguous, or is written but read-only or
                overlapping.
        """
        run, bound = self._bound(structure, arrays)
        return run.function(), bound

    def kernels(self, structure: Structure, **arrays: np.ndarray) -> tuple[
            dict[str, Callable[[], None]], dict[str, np.ndarray]]:
        """Bind every kernel separately, as `bind`: functions by the names of the launches, and all storage."""
        run, bound = self._bound(structure, arrays)
        return {launch.name: replace(run, plan=replace(run.plan, launches=(number,))).function()
                for number, launch in enumerate(self.program.launches)}, bound

    def _bound(self, structure: Structure, arrays: Mapping[str, np.ndarray]) -> tuple[BoundRun, dict[str, np.ndarray]]:
        bound = bind_arrays(self.program, structure, arrays)
        return self.prepare(structure, bound, bound.keys() - self._inputs), bound

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

    def elements(self, structure: Structure) -> Mapping[str, int]:
        """Return the number of elements of every tensor that is not local."""
        return self._for(structure).elements

    def prepare(self, structure: Structure, arrays: Mapping[str, np.ndarray], wanted: Collection[str] | None = None, *,
                fixed: Mapping[str, int] = MappingProxyType({})) -> BoundRun:
        """Check the storage for a run that computes the wanted results, without launches that they do not need.

        Args:
            arrays: storage of inputs and wanted results, C-contiguous, without overlap.
            wanted: results, by default the outputs of the program.
            fixed: addresses of further inputs, such as packed weights, which the caller checks and keeps alive.

        Raises:
            TypeError: a tensor is missing, unknown, or not a NumPy array.
            ValueError: an array has the wrong size or type, is not contiguous, or is written but read-only or
                overlapping.
        """
        prepared = self._for(structure)
        addresses = {name: self._address(name, array, prepared) for name, array in arrays.items()}
        self._check_apart(addresses, arrays)
        addresses |= fixed
        plan = self._plan(prepared, frozenset(self.program.outputs if wanted is None else wanted), frozenset(addresses))
        return BoundRun(self, self._entries, prepared, plan, addresses, [structure, arrays])

    def run(self, structure: Structure, arrays: Mapping[str, np.ndarray], wanted: Collection[str] | None = None
            ) -> None:
        """Compute the wanted results; arguments and errors are those of `prepare`."""
        run_bound([self.prepare(structure, arrays, wanted)])

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
            structure.prepare(self.prelude)
            numbers = {name.name: structure.number(table) for table, name in self._tables.items()}
            elements = {name: int(evaluate(each, numbers, structure.table)) for name, each in self._sizes.items()}
            arguments = []
            for each in self.lowered:
                meanings = (each.meaning[param.name] for param in each.kernel.params)
                arguments.append(tuple(meaning.name if isinstance(meaning, Tensor) else _entry(structure.table(meaning))
                                       for meaning in meanings))
            found = self._prepared[structure] = _Prepared(elements, tuple(arguments))
        return found

    def _named(self, node: object) -> Ref | None:
        """Make sizes read every table entry once."""
        return self._tables.setdefault(node, Ref(f"n{len(self._tables)}")) if isinstance(node, At) else None


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

    def function(self) -> Callable[[], None]:
        """Return a function that runs it; one call at a time, as they write to the same storage.

        The caller gave the storage of all tensors.
        """
        turn, words, count, call = forkable(threading.RLock()), array("q", self.words(0)), len(self.plan.launches), (
            _launches())

        def run() -> None:
            with turn:
                self.executable.set_threads()
                call(words.buffer_info()[0], count)

        return run


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
