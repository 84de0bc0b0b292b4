"""Estimated tiles of a pattern agree with those of the inspector."""

import numpy as np
import pytest

from sparloom.fusion import schedule_tiles
from sparloom.ops import GemmSpmm, SpmmGemm, SpmmSpmm
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import Problem

UNLIMITED = 1 << 62


def grid(side: int) -> Pattern:
    """A five-point stencil."""
    number = np.arange(side * side).reshape(side, side)
    pairs = [(number, number), (number[1:], number[:-1]), (number[:, 1:], number[:, :-1])]
    rows, cols = (np.concatenate([pair[place].ravel() for pair in pairs]) for place in (0, 1))
    return Pattern.from_coo(np.concatenate([rows, cols]), np.concatenate([cols, rows]), (side * side, side * side))


def problem(op, pattern: Pattern) -> Problem:
    return Problem.of(op, op.operands(SparseMatrix(pattern, np.ones(pattern.nnz)), 16, seed=0))


@pytest.mark.cc
@pytest.mark.parametrize("op", [GemmSpmm(), SpmmSpmm(), SpmmGemm()], ids=lambda op: op.name)
@pytest.mark.parametrize("ct_size", [100, 500, 4000])
def test_unsplit_tiles_are_those_of_the_inspector(op, ct_size):
    asked = problem(op, grid(40))
    tiling = asked.sketch.tiling(ct_size=ct_size, cache_bytes=UNLIMITED, threads=2)
    schedule = schedule_tiles(asked.loops(), threads=2, cache_bytes=UNLIMITED, ct_size=ct_size)
    assert tiling.tiles == schedule.tiles[0]
    assert tiling.fused_rows == pytest.approx(schedule.fused_rows)
    assert tiling.needed_rows == pytest.approx(schedule.needed.mean(), abs=0.25)


def test_smaller_caches_make_smaller_tiles():
    sketch = problem(SpmmSpmm(), grid(40)).sketch
    tilings = [sketch.tiling(ct_size=4000, cache_bytes=size, threads=2) for size in (UNLIMITED, 1 << 16, 1 << 13)]
    assert tilings[0].tiles < tilings[1].tiles < tilings[2].tiles
    assert tilings[2].fused_rows < tilings[0].fused_rows
    assert tilings[2].bytes <= 1 << 13
