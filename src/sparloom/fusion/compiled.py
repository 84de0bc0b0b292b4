"""A program compiled for one set of argument types: its kernels, its dependence graph, and its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from sparloom.fusion.codegen import (
    GraphBuilder,
    graph_builder,
    listed_rows,
    lower_fused,
    lower_sizes,
    lower_unfused,
    shared_pattern,
)
from sparloom.fusion.dependence import Dependence, check_independent, check_trip_counts, dependences
from sparloom.fusion.program import Access, Array, Csr, FusedProgram, MarkedLoop
from sparloom.fusion.recognition import Arguments, Bodies, ProductRunner, recognise
from sparloom.fusion.schedule import FusedLoops, Loop, Reads, TileSchedule
from sparloom.fusion.symbolic import bound_checks
from sparloom.ir import DTYPES, Expr, Kernel, Load, Param, Ref, render_c, walk
from sparloom.jit import Library, compile_c
from sparloom.sparse import Pattern


@dataclass(frozen=True)
class Sizes:
    """Iterations of both loops, and shapes of the arrays that the function allocates, for one call.

    `whole` tells that the program is a matrix product whose loops cover whole, non-empty matrices.
    """

    iterations: tuple[int, int]
    shapes: Mapping[str, tuple[int, ...]]
    whole: bool


class CompiledProgram:
    """A program with its dependences and its kernels: fused loops, unfused loops, builders of the dependence graph.

    Arguments of its methods are those of the user's function by name, sparse ones as Csr. Programs whose loops cannot
    be fused raise Unfusable.
    """

    def __init__(self, program: FusedProgram) -> None:
        check_trip_counts(program)
        for nest in (program.first, program.second):
            check_independent(program, nest)
        self.program = program
        self.dependences: tuple[Dependence, ...] = dependences(program)
        self.fused = lower_fused(program)
        self.unfused = lower_unfused(program)
        self.product = recognise(program)
        self._products = None if self.product is None else ProductRunner(
            self.product, lambda arguments: self.sizes(arguments).whole)
        self._checks = bound_checks(program)
        self._equal = () if self.product is None else self.product.whole
        self._sizes = lower_sizes(program, self._checks, self._equal)

    @property
    def offsets(self) -> tuple[int, ...] | None:
        """The constants c if iteration j depends only on iterations j + c; None if there are other dependences."""
        found = {each.offset for each in self.dependences}
        return None if None in found else tuple(sorted(found))

    @property
    def pattern_of(self) -> str | None:
        """The argument whose pattern is the dependence graph, if there is one, so that none has to be built."""
        return shared_pattern(self.program, self.dependences[0]) if len(self.dependences) == 1 else None

    @cached_property
    def builders(self) -> tuple[GraphBuilder, ...]:
        """Graph builders, one per dependence whose offset is not known at compile time."""
        unknown = [each for each in self.dependences if each.offset is None]
        return tuple(graph_builder(self.program, each, f"{self.program.name}_graph_{number}")
                     for number, each in enumerate(unknown))

    def source(self) -> str:
        """Print the kernels as C."""
        return render_c(*self._kernels())

    def sizes(self, arguments: Arguments) -> Sizes:
        """Compute the sizes of a call; refuse subscripts that may be out of bounds."""
        made = self._made()
        extents = sum(len(array.extents) for array in made)
        checked = sum(len(check.numbers) for check in self._checks)
        numbers = np.empty(2 + extents + checked + len(self._equal), np.int64)
        self._call(self._sizes, arguments, {}, (numbers,))
        (ones, twos), rest = numbers[:2].tolist(), iter(numbers[2:].tolist())
        shapes = {array.name: tuple(next(rest) for _ in array.extents) for array in made}
        for check in self._checks:
            check.check((ones, twos)[check.nest], *(next(rest) for _ in check.numbers))
        whole = self.product is not None and not any(rest) and all(min(shape) > 0 for shape in shapes.values())
        return Sizes((ones, twos), shapes, whole)

    def graph(self, arguments: Arguments) -> Pattern:
        """Build the dependence graph: row j lists the iterations of the first loop that iteration j depends on."""
        ones, twos = self.sizes(arguments).iterations
        edges = [np.empty((2, 0), np.int64), *(self._edges(each, arguments) for each in self.builders)]
        for offset in (each.offset for each in self.dependences if each.offset is not None):
            later = np.arange(max(0, -offset), min(twos, ones - offset))
            edges.append(np.stack([later, later + offset]))
        later, earlier = np.concatenate(edges, axis=1)
        return Pattern.from_coo(later, earlier, (twos, ones))

    def loops(self, arguments: Arguments) -> FusedLoops:
        """Describe the loops for the inspector."""
        sizes = self.sizes(arguments)
        shapes = sizes.shapes | {array.name: _find(arguments, array.source).shape
                                 for array in self.program.arrays if array.origin == "argument"}
        rows = listed_rows(self.program, self.program.first)
        reads = (None if rows is None else _rows(arguments[rows], sizes.iterations[0], arguments[rows].shape[1]),
                 self._reads(arguments, sizes.iterations))
        first, second = self.program.first, self.program.second
        written = frozenset(access.array for access in first.accesses if access.writes)
        moved = (_traffic(self.program, first, shapes, frozenset()), _traffic(self.program, second, shapes, written))
        return FusedLoops(*(Loop(iterations, read, **counts)
                            for iterations, read, counts in zip(sizes.iterations, reads, moved, strict=True)))

    def _reads(self, arguments: Arguments, iterations: tuple[int, int]) -> Reads | None:
        """Return the graph for the inspector; None if it is one-to-one or empty at compile time."""
        if self.offsets in ((), (0,)):
            return None
        ones, twos = iterations
        if self.pattern_of is not None:
            return _rows(arguments[self.pattern_of], twos, ones)
        return Reads.of(self.graph(arguments))

    def run(
        self, arguments: Arguments, schedule: TileSchedule | None, *, threads: int, bodies: Bodies = "generated",
    ) -> Any:
        """Run both loops by a schedule, or unfused without one; for `bodies` see `fuse`."""
        if bodies == "recognised" and self._products is not None:
            result = self._products.run(arguments, schedule, threads=threads)
            if result is not None:
                return result
        shapes = self.sizes(arguments).shapes
        made = {array.name: (np.zeros if array.origin == "zeros" else np.empty)(
            shapes[array.name], DTYPES[array.type.scalar]) for array in self._made()}
        self._library.set_threads(threads)
        if schedule is None:
            self._call(self.unfused, arguments, made, ())
        else:
            arrays = (schedule.first, schedule.second, schedule.second_ptr)
            self._call(self.fused, arguments, made, (*arrays, *schedule.tiles))
        return self._results(arguments, made)

    def _edges(self, builder: GraphBuilder, arguments: Arguments) -> np.ndarray:
        """Run a graph builder; return (2, edges), iterations of the second and of the first loop."""
        iterations = self.sizes(arguments).iterations
        indptr = np.zeros(iterations[0 if builder.transposed else 1] + 1, np.int64)
        self._call(builder.count, arguments, {}, (indptr,))
        columns = np.empty(indptr[-1], np.int32)
        self._call(builder.fill, arguments, {}, (columns,))
        rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
        return np.stack([columns, rows] if builder.transposed else [rows, columns])

    def _call(
        self, kernel: Kernel, arguments: Arguments, made: Mapping[str, np.ndarray], extra: tuple[Any, ...],
    ) -> None:
        """Call a kernel with its arguments from the program, followed by `extra`."""
        own = kernel.params[: len(kernel.params) - len(extra)]
        sources = {each.name: each.source for each in (*self.program.scalars, *self.program.arrays)}
        found = [made[param.name] if param.name in made else _find(arguments, sources[param.name]) for param in own]
        values = [np.ascontiguousarray(value) if param.buffer and param.const else value
                  for param, value in zip(own, found, strict=True)]
        _check_copied(kernel, own, found, values)
        self._library.function(kernel.name)(*values, *extra)

    def _made(self) -> list[Array]:
        return [array for array in self.program.arrays if array.origin != "argument"]

    def _results(self, arguments: Arguments, made: Mapping[str, np.ndarray]) -> Any:
        arrays = [made[name] if name in made else _find(arguments, self.program.array(name).source)
                  for name in self.program.results]
        return arrays[0] if self.program.single else tuple(arrays) if arrays else None

    def _kernels(self) -> list[Kernel]:
        graph = [kernel for each in self.builders for kernel in (each.count, each.fill)]
        return [self.fused, self.unfused, *graph, self._sizes]

    @cached_property
    def _library(self) -> Library:
        return compile_c(self._kernels())


def _check_copied(kernel: Kernel, params: Sequence[Param], found: Sequence[Any], values: Sequence[Any]) -> None:
    """Reject results that overlap an argument that is read from a copy; `Function` checks the others."""
    written = [(param, value) for param, value in zip(params, values, strict=True) if param.buffer and not param.const]
    for param, given, value in zip(params, found, values, strict=True):
        if param.buffer and value is not given:
            for other, result in written:
                if np.may_share_memory(given, result):
                    raise ValueError(f"arguments {other.name} and {param.name} of kernel {kernel.name} overlap: pass a "
                                     "copy of one")


def _rows(matrix: Csr, rows: int, extent: int) -> Reads:
    """View the first rows of a sparse argument; copy them only to convert types."""
    indptr = np.ascontiguousarray(matrix.p[: rows + 1], np.int64)
    return Reads(indptr, np.ascontiguousarray(matrix.i[: indptr[-1]], np.int32), extent)


def _find(arguments: Arguments, source: tuple[str | int, ...]) -> Any:
    """Resolve a path: ("A", "shape", 0) gives arguments["A"].shape[0]."""
    value = arguments[source[0]]
    for step in source[1:]:
        value = value[step] if isinstance(step, int) else getattr(value, step)
    return value


def _traffic(
    program: FusedProgram, nest: MarkedLoop, shapes: Mapping[str, tuple[int, ...]], written: frozenset[str],
) -> dict[str, int]:
    """Count the bytes that a loop moves per iteration, per index and per distinct index (Equation 4).

    Each distinct access counts once, according to its subscripts:

        the marked iterator itself                  a row per iteration:       B[i, k], A.p[i]
        an iterator whose bounds are indices        an element per index:      A.x[e], A.i[e]
        an element of an index array                a row per distinct index:  D1[A.i[e], k]
        none of these                               nothing, since it stays in cache

    A row is all that follows the first subscript.

    Rows of `written`, which the first loop wrote, are not loaded again by the second.
    """
    moved: dict[tuple[str, str], int] = {}
    for access in nest.accesses:
        unit = _traffic_unit(access, nest)
        if unit is not None and not (unit == "iteration_bytes" and access.array in written):
            element = np.dtype(DTYPES[program.array(access.array).type.scalar]).itemsize
            row = 1 if unit == "nonzero_bytes" else prod(shapes[access.array][1:])
            moved[access.array, unit] = row * element
    return {unit: sum(count for (_, of), count in moved.items() if of == unit)
            for unit in ("iteration_bytes", "nonzero_bytes", "column_bytes")}


def _traffic_unit(access: Access, nest: MarkedLoop) -> str | None:
    parts = [node for each in access.subscripts if each is not None for node in walk(each)]
    if any(isinstance(node, Load) for node in parts) or None in access.subscripts:
        return "column_bytes"
    names = {node.name for node in parts if isinstance(node, Ref)}
    if nest.iterator.name in names:
        return "iteration_bytes"
    listed = {loop.name for loop in access.loops if _has_load(loop.lo) or _has_load(loop.hi)}
    return "nonzero_bytes" if names & listed else None


def _has_load(expr: Expr | None) -> bool:
    return expr is not None and any(isinstance(node, Load) for node in walk(expr))
