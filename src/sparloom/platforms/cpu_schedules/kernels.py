"""Compiled programs: built in batches, each checked once on a small matrix with every edge case, then bound."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import numpy as np

from sparloom.jit import Function, aligned, compile_c
from sparloom.measure import vector_lanes
from sparloom.ops import SDDMM, Op, Operands, SpMM, assert_close
from sparloom.platforms.cpu_schedules.lowering import Program, lower
from sparloom.platforms.cpu_schedules.storage import Layout, Packed, Packer
from sparloom.sparse import Pattern, SparseMatrix

OPS: Mapping[str, Op] = {"spmm": SpMM(), "sddmm": SDDMM()}
ROWS_TILE, COLS_TILE = 8, 16  # neither divides the matrix


class Example:
    """A matrix with an empty row, an empty column, a hub row, and tiles that extend beyond its edge."""

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
        """Pack the matrix for `program`."""
        layout = Layout.of(
            self.operands.matrix.pattern.shape,
            rows_tile=ROWS_TILE,
            cols_tile=COLS_TILE if "jo" in program.levels else "all",
            order=_with_column_tiles(program.levels),
            formats="".join("UC"[compressed] for compressed in program.compressed),
        )
        return layout, self._packer.pack(layout, locate=True)

    def check(self, program: Program, result: np.ndarray) -> None:
        """Compare a result in the order of the oracle; an AssertionError names program and worst element."""
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


class Kernels:
    """Cache of compiled programs, whose parallel loops have `threads` threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._functions: dict[Program, Function] = {}
        self._examples: dict[tuple[str, int], Example] = {}

    def prepare(self, programs: Iterable[Program]) -> int:
        """Compile and check the programs that are missing, and return how many there were.

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
        _bind_named(function, arguments(layout, operands=example.operands, packed=packed, result=result, chunk=2))()
        example.check(program, unpack_result(program.op, packed, result))

    def bind(
        self, program: Program, layout: Layout, *, operands: Operands, packed: Packed, result: np.ndarray, chunk: int
    ) -> Callable[[], None]:
        """Return a call without arguments that overwrites `result`."""
        return _bind_named(self._functions[program],
                      arguments(layout, operands=operands, packed=packed, result=result, chunk=chunk))


def arguments(
    layout: Layout, *, operands: Operands, packed: Packed, result: np.ndarray, chunk: int
) -> dict[str, np.ndarray | int]:
    """Collect all arguments that a kernel may take, by name: buffers and run-time numbers."""
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
    """Allocate the result: D (rows, width) of SpMM, one value per stored position of SDDMM."""
    pattern = operands.matrix.pattern
    shape = (pattern.rows, operands.width) if op == "spmm" else (packed.arrays["values"].size,)
    return aligned(shape, np.float32, zero=True)


def unpack_result(op: str, packed: Packed, result: np.ndarray) -> np.ndarray:
    """Reorder the result as the oracle has it; SDDMM needs `packed.where`."""
    return result if op == "spmm" else result[packed.where]


def register_columns() -> int:
    """Count the dense columns whose values fill about half of the vector registers: 256 with AVX-512, else 64."""
    return 256 if vector_lanes() == 16 else 64


def _with_column_tiles(levels: tuple[str, ...]) -> tuple[str, ...]:
    """Insert the level jo if the program left it out."""
    position = levels.index("ji")
    return levels if "jo" in levels else (*levels[:position], "jo", *levels[position:])


def _bind_named(function: Function, named: Mapping[str, np.ndarray | int]) -> Callable[[], None]:
    return function.bind(*(named[param.name] for param in function.params))
