"""Compiled programs: built in batches, each checked once against the float64 oracle, called with packed operands."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from sparloom.jit import Function, aligned, compile_c
from sparloom.measure import vector_lanes
from sparloom.ops import Operands
from sparloom.platforms.cpu.example import Example
from sparloom.platforms.cpu.nest import lower
from sparloom.platforms.cpu.program import Program
from sparloom.platforms.cpu.storage import Layout, Packed

__all__ = ["Kernels", "arguments", "fresh_result", "register_columns", "unpack_result"]


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
