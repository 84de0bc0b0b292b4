"""Orders and pieces of the rows: every row once, equal work."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import patterns

from sparloom.platforms.cpu_kernels import Traversal
from sparloom.sparse import Pattern

BALANCES = ("rows", "nonzeros", "dynamic")
PIECES = 8  # of each thread


@pytest.mark.cc
@given(pattern=patterns())
def test_rows_come_by_their_middle_column_and_empty_ones_last(pattern):
    def middle(row):
        columns = pattern.indices[pattern.indptr[row] : pattern.indptr[row + 1]]
        return columns[columns.size // 2] if columns.size else pattern.cols

    assert Traversal.by_column(pattern).original_row.tolist() == sorted(range(pattern.rows), key=middle)


@pytest.mark.cc
@given(pattern=patterns(), column=st.booleans())
def test_orders_keep_every_row(pattern, column):
    walk = Traversal.by_column(pattern) if column else Traversal.natural(pattern)
    assert sorted(walk.original_row) == list(range(pattern.rows))
    for place, row in enumerate(walk.original_row):
        there = slice(walk.indptr[place], walk.indptr[place + 1])
        stored = slice(pattern.indptr[row], pattern.indptr[row + 1])
        assert walk.indices[there].tolist() == pattern.indices[stored].tolist()
        assert walk.source[place] == pattern.indptr[row]


@pytest.mark.cc
@given(pattern=patterns(), column=st.booleans())
def test_equal_rows_have_equal_columns(pattern, column):
    walk = Traversal.by_column(pattern) if column else Traversal.natural(pattern)
    columns = [tuple(walk.indices[walk.indptr[row] : walk.indptr[row + 1]]) for row in range(walk.rows)]
    for row, count in enumerate(walk.equal):
        run = 1
        while run < 4 and row + run < walk.rows and columns[row] and columns[row + run] == columns[row]:
            run += 1
        assert count == run


@given(pattern=patterns(), balance=st.sampled_from(BALANCES), threads=st.integers(1, 4))
def test_pieces_follow_each_other(pattern, balance, threads):
    walk = Traversal.natural(pattern)
    pieces = walk.pieces(balance, threads)
    assert (pieces.rows[0], pieces.nonzeros[0]) == (0, 0)
    assert (pieces.rows[-1], pieces.nonzeros[-1]) == (pattern.rows, pattern.nnz)
    assert (np.diff(pieces.rows) >= 0).all()
    assert (np.diff(pieces.nonzeros) >= 0).all()
    assert (pieces.nonzeros >= walk.indptr[pieces.rows]).all()
    assert (pieces.nonzeros <= walk.indptr[np.minimum(pieces.rows + 1, pattern.rows)]).all()
    assert pieces.cut == bool((pieces.nonzeros > walk.indptr[pieces.rows]).any())
    if balance != "dynamic":
        assert pieces.rows.size == (1 if threads == 1 else PIECES * threads) + 1


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_a_long_row_is_cut_for_equal_work(threads):
    rows, cols = np.array([2] + [30] * 9000), np.array([5, *range(9000)])
    pieces = Traversal.natural(Pattern.from_coo(rows, cols, (60, 9000))).pieces("nonzeros", threads)
    assert pieces.cut
    assert np.diff(pieces.nonzeros).max() <= 1.1 * 9001 / (PIECES * threads)
