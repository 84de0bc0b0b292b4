"""A small matrix with everything that goes wrong, on which every generated kernel is checked.

Compiled programs: built in batches, each checked once against the float64 oracle, called with packed operands.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import numpy as np

from sparloom.jit import Function, aligned, compile_c
from sparloom.measure import vector_lanes
from sparloom.ops import SDDMM, Op, Operands, SpMM, assert_close
from sparloom.platforms.cpu_schedules.lower import Program, lower
from sparloom.platforms.cpu_schedules.storage import Layout, Packed, Packer
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["Example", "Kernels", "arguments", "fresh_result", "register_columns", "unpack_result"]

OPS: Mapping[str, Op] = {"spmm": SpMM(), "sddmm": SDDMM()}
ROWS_TILE, COLS_TILE = 8, 16  # neither divides the matrix


class Example:
    """An empty row, an empty column, a hub row, and tiles that reach over the edge."""

    def __init__(self, op: str, width: int) -> None:
        self.op = op
        self.width = width

    @cached_property
    def operands(self) -> Operands:
        rng = np.random.default_rng(0)
        dense = rng.random((45, 70)) < 0.3
        dense[17], dense[5], dense[:, 3] = False, True, False
        pattern = Pattern.from_coo(*np.nonzero(dense), dense.shape)
        matrix = SparseMatrix(pattern, rng.uniform(0.5, 1.0, pattern.nnz).astype(np.float32))
        return OPS[self.op].operands(matrix, self.width, seed=0)

    def packed(self, program: Program) -> tuple[Layout, Packed]:
        """Pack the matrix as `program` wants it."""
        layout = Layout.of(
            self.operands.matrix.pattern.shape,
            rows_tile=ROWS_TILE,
            cols_tile=COLS_TILE if "jo" in program.levels else "all",
            order=_with_column_tiles(program.levels),
            formats="".join("UC"[compressed] for compressed in program.compressed),
        )
        return layout, self._packer.pack(layout, locate=True)

    def check(self, program: Program, result: np.ndarray) -> None:
        """Compare a result, in the oracle's order.

        Raises:
            AssertionError: names the program and the worst element.
        """
        terms = OPS[self.op].terms(self.operands.matrix.pattern, self.width)
        try:
            assert_close(result, self._oracle, terms=terms)
        except AssertionError as error:
            raise AssertionError(f"kernel {program.name} is wrong: {error}") from error

    @cached_property
    def _packer(self) -> Packer:
        return Packer(self.operands.matrix)

    @cached_property
    def _oracle(self) -> np.ndarray:
        return OPS[self.op].oracle(self.operands)


def _with_column_tiles(levels: tuple[str, ...]) -> tuple[str, ...]:
    """Put back the level jo where the program left it out."""
    place = levels.index("ji")
    return levels if "jo" in levels else (*levels[:place], "jo", *levels[place:])


class Kernels:
    """Programs by value; compiles what is missing.

    Args:
        threads: of every parallel loop.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._functions: dict[Program, Function] = {}
        self._examples: dict[tuple[str, int], Example] = {}

    def prepare(self, programs: Iterable[Program]) -> int:
        """Compile and check those programs that are not ready; returns how many those were.

        Raises:
            AssertionError: a compiled program differs from the oracle.
            CompileError: the compiler refused.
        """
        missing = [program for program in dict.fromkeys(programs) if program not in self._functions]
        if not missing:
            return 0
        library = compile_c([lower(program) for program in missing], jobs=self.threads)
        library.set_threads(self.threads)
        for program in missing:
            function = library.function(program.name)
            self._check(program, function)
            self._functions[program] = function
        return len(missing)

    def _check(self, program: Program, function: Function) -> None:
        example = self._examples.setdefault((program.op, program.width), Example(program.op, program.width))
        layout, packed = example.packed(program)
        result = fresh_result(program.op, packed, example.operands)
        result.fill(np.nan)
        _bound(function, arguments(layout, operands=example.operands, packed=packed, result=result, chunk=2))()
        example.check(program, unpack_result(program.op, packed, result))

    def bind(
        self, program: Program, layout: Layout, *, operands: Operands, packed: Packed, result: np.ndarray, chunk: int
    ) -> Callable[[], None]:
        """Return a call without arguments that overwrites `result`."""
        given = arguments(layout, operands=operands, packed=packed, result=result, chunk=chunk)
        return _bound(self._functions[program], given)


def arguments(
    layout: Layout, *, operands: Operands, packed: Packed, result: np.ndarray, chunk: int
) -> dict[str, np.ndarray | int]:
    """Name everything that a kernel may take: buffers and run-time numbers."""
    pattern = operands.matrix.pattern
    return {
        **packed.arrays,
        **operands.dense,
        "D": result,
        "rows": pattern.rows,
        "cols": pattern.cols,
        "rows_tile": layout.extent("ii"),
        "cols_tile": layout.extent("ji"),
        "row_tiles": layout.extent("io"),
        "col_tiles": layout.extent("jo"),
        "stored": packed.arrays["values"].size,
        "chunk": chunk,
    }


def fresh_result(op: str, packed: Packed, operands: Operands) -> np.ndarray:
    """Allocate what a kernel writes: D (rows, width) for SpMM, one value per stored position for SDDMM."""
    pattern = operands.matrix.pattern
    shape = (pattern.rows, operands.width) if op == "spmm" else (packed.arrays["values"].size,)
    return aligned(shape, np.float32, zero=True)


def unpack_result(op: str, packed: Packed, result: np.ndarray) -> np.ndarray:
    """Bring the result into the order of the oracle; SDDMM needs `packed.where`."""
    return result if op == "spmm" else result[packed.where]


def register_columns() -> int:
    """Count the dense columns whose values fill about half of the vector registers: 256 with AVX-512, else 64."""
    return 256 if vector_lanes() == 16 else 64


def _bound(function: Function, given: Mapping[str, np.ndarray | int]) -> Callable[[], None]:
    return function.bind(*(given[param.name] for param in function.params))
