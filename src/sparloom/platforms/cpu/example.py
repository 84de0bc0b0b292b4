"""A small matrix with everything that goes wrong, on which every generated kernel is checked."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from sparloom.ops import SDDMM, Op, Operands, SpMM, assert_close
from sparloom.platforms.cpu.program import Program
from sparloom.platforms.cpu.storage import Layout, Packed, Packer
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["Example"]

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
