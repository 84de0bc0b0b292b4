"""Patterns, files, orders and statistics on drawn matrices."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import matrices, patterns

from sparloom.sparse import (
    MATRIX_ENDINGS,
    STATISTICS,
    Pattern,
    SparseMatrix,
    locality_order,
    read_matrix,
    reorder,
    statistics,
    write_matrix,
)


@given(patterns())
def test_transposing_twice_changes_nothing(pattern):
    flipped = pattern.transpose()
    assert flipped.transpose() == pattern
    assert np.array_equal(flipped.to_scipy().toarray(), pattern.to_scipy().toarray().T)


@given(patterns(), st.randoms(use_true_random=False))
def test_coordinates_in_any_order_give_the_same_pattern(pattern, random):
    order = list(range(pattern.nnz)) * 2
    random.shuffle(order)
    places = np.array(order, dtype=np.int64)
    assert Pattern.from_coo(pattern.row_ids()[places], pattern.indices[places], pattern.shape) == pattern


@given(patterns())
def test_row_ids_and_lengths_agree_with_the_pointers(pattern):
    assert np.array_equal(np.bincount(pattern.row_ids(), minlength=pattern.rows), pattern.row_lengths())
    assert pattern.row_lengths().sum() == pattern.nnz


@settings(deadline=None)
@given(matrices(), st.sampled_from(MATRIX_ENDINGS))
def test_files_keep_every_bit(matrix, ending):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"m{ending}"
        write_matrix(path, matrix)
        again = read_matrix(path)
    assert again == matrix


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from(MATRIX_ENDINGS))
def test_arbitrary_bytes_are_refused_with_the_name_of_the_file(content, ending):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"m{ending}"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"m{ending}: "):
            read_matrix(path)


@settings(deadline=None)
@given(st.text(alphabet="0123456789 +-.eE%\n\tnaif", max_size=80), st.sampled_from(["coordinate", "array"]),
       st.sampled_from(["real", "integer", "pattern"]), st.sampled_from(["general", "symmetric", "skew-symmetric"]))
def test_any_body_is_read_or_refused_with_the_name_of_the_file(body, layout, field, symmetry):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.mtx"
        path.write_text(f"%%MatrixMarket matrix {layout} {field} {symmetry}\n{body}")
        outcome = _read(path)
    if isinstance(outcome, SparseMatrix):
        assert np.isfinite(outcome.values).all()
    else:
        assert outcome.startswith(f"{path}: ")


def _read(path: Path) -> SparseMatrix | str:
    try:
        return read_matrix(path)
    except ValueError as error:
        return str(error)


@given(patterns(), st.randoms(use_true_random=False))
def test_reorder_moves_every_nonzero(pattern, random):
    rows_perm, cols_perm = list(range(pattern.rows)), list(range(pattern.cols))
    random.shuffle(rows_perm)
    random.shuffle(cols_perm)
    rows_perm, cols_perm = np.array(rows_perm, dtype=int), np.array(cols_perm, dtype=int)
    moved = reorder(pattern, rows_perm, cols_perm)
    assert np.array_equal(moved.to_scipy().toarray(), pattern.to_scipy().toarray()[rows_perm][:, cols_perm])
    assert reorder(moved, np.argsort(rows_perm), np.argsort(cols_perm)) == pattern


@settings(deadline=None)
@given(patterns())
def test_locality_order_is_a_pair_of_permutations(pattern):
    rows_perm, cols_perm = locality_order(pattern)
    assert np.array_equal(np.sort(rows_perm), np.arange(pattern.rows))
    assert np.array_equal(np.sort(cols_perm), np.arange(pattern.cols))


@settings(deadline=None)
@given(patterns())
def test_statistics_are_finite_and_within_their_ranges(pattern):
    result = statistics(pattern)
    assert tuple(result) == STATISTICS
    assert np.isfinite(list(result.values())).all()
    shares = ("density", "row_gini", "row_top1", "row_empty", "fill_4", "fill_64", "tiles", "diagonal", "symmetry")
    assert all(-1e-12 <= result[name] <= 1 + 1e-12 for name in shares)
    assert result["reuse_4"] <= result["reuse_32"] <= max(1, pattern.rows)


@settings(deadline=None)
@given(patterns(square=True))
def test_statistics_of_columns_are_those_of_the_transposed_rows(pattern):
    result, flipped = statistics(pattern), statistics(pattern.transpose())
    for name in ("mean", "cv", "max", "p99", "gini", "top1", "empty"):
        assert result[f"col_{name}"] == pytest.approx(flipped[f"row_{name}"])
    assert result["symmetry"] == pytest.approx(flipped["symmetry"])
