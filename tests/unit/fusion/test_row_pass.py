"""The pass over rows against NumPy in float64: each step alone and all together."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

from sparloom.fusion import RowPass, RowSteps
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc


def problem(pattern: Pattern, width: int, out: int, right: int, dtype: str = "float32") -> RowSteps:
    """Draw all operands; results hold values that must be overwritten."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, shape).astype(dtype)

    def unset(*shape: int) -> np.ndarray:
        return np.full(shape, np.nan, dtype)

    rows = pattern.rows
    matrix = SparseMatrix(pattern, drawn(pattern.nnz), dtype)
    return RowSteps(
        matrix, drawn(pattern.cols, width), g=unset(rows, width), c=drawn(width, out), bias=drawn(out),
        d=unset(rows, out), right=drawn(rows, right), s=unset(width, right), summed=drawn(rows, right),
        sums=unset(right))


def expected(steps: RowSteps) -> dict[str, np.ndarray]:
    """Compute all results in float64."""
    wide = {name: array.astype(np.float64) for name, array in steps.arrays().items()}
    g = steps.matrix.to_scipy().astype(np.float64) @ wide["y"] if steps.matrix is not None else wide.get("g")
    results = {"g": g}
    if "c" in wide:
        results["d"] = g @ (wide["c"].T if steps.c_transposed else wide["c"]) + wide.get("bias", 0)
    if "right" in wide:
        results["s"] = wide.get("left", g).T @ wide["right"]
    if "summed" in wide:
        results["sums"] = wide["summed"].sum(0)
    return {name: result for name, result in results.items() if getattr(steps, name) is not None}


def assert_computed(steps: RowSteps, results: dict[str, np.ndarray]) -> None:
    """Compare with a tolerance that grows with the length of the sums."""
    for name, result in results.items():
        actual = getattr(steps, name)
        tolerance = 50 * np.finfo(actual.dtype).eps * max(1.0, np.abs(result).max(initial=0))
        np.testing.assert_allclose(actual, result, rtol=0, atol=tolerance * np.sqrt(max(1, steps.width)), err_msg=name)


def grid(rows: int = 300, cols: int = 300) -> Pattern:
    """Rows of many lengths, some empty, one full."""
    rng = np.random.default_rng(1)
    dense = rng.random((rows, cols)) < rng.random((rows, 1)) ** 4
    dense[rows // 2], dense[: rows // 10] = True, False
    return Pattern.from_coo(*np.nonzero(dense), dense.shape)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("extents", [(1, 1, 1), (32, 32, 32), (33, 7, 70), (5, 130, 48), (600, 20, 9)])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_all_steps_at_once(dtype: str, extents: tuple[int, int, int], threads: int) -> None:
    steps = problem(grid(), *extents, dtype)
    results = expected(steps)
    RowPass(steps.matrix.pattern, threads=threads)(steps)
    assert_computed(steps, results)


def test_each_step_alone() -> None:
    steps = problem(grid(), 40, 24, 16)
    given, run = np.ascontiguousarray(steps.right), RowPass(steps.matrix.pattern, threads=2)
    transposed = np.ascontiguousarray(steps.c.T)
    for alone in (
        RowSteps(steps.matrix, steps.y, g=steps.g), RowSteps(steps.matrix, steps.y, c=steps.c, d=steps.d),
        RowSteps(steps.matrix, steps.y, c=transposed, c_transposed=True, d=steps.d),
        RowSteps(steps.matrix, steps.y, right=given, s=steps.s), RowSteps(g=steps.g, c=steps.c, d=steps.d),
        RowSteps(left=steps.g, right=given, s=steps.s), RowSteps(summed=given, sums=steps.sums),
    ):
        results = expected(alone)
        run(alone)
        assert_computed(alone, results)


@settings(max_examples=60, deadline=None)
@given(pattern=patterns(), width=st.integers(1, 40), out=st.integers(1, 40))
def test_any_pattern(pattern: Pattern, width: int, out: int) -> None:
    steps = problem(pattern, width, out, out)
    results = expected(steps)
    RowPass(pattern, threads=2)(steps)
    assert_computed(steps, results)


def test_results_are_reproducible_to_the_bit() -> None:
    steps = problem(grid(2000, 200), 32, 32, 32)
    run = RowPass(steps.matrix.pattern, threads=2)
    run(steps)
    first = steps.s.copy()
    for _ in range(5):
        run(steps)
        np.testing.assert_array_equal(steps.s, first)


def test_results_may_be_stored_past_the_caches(monkeypatch) -> None:
    monkeypatch.setattr("sparloom.fusion.row_pass.STREAM_SHARE", 0.0)
    for widths in ((32, 48, 16), (33, 20, 16)):
        steps = problem(grid(), *widths)
        for part in (steps, replace(steps, bias=None), replace(steps, c=None, d=None, bias=None, right=None, s=None)):
            results = expected(part)
            RowPass(part.matrix.pattern, threads=2)(part)
            assert_computed(part, results)


def test_rows_with_equal_columns() -> None:
    rows = np.repeat(np.arange(40), 5)[:, None] % 13 + np.arange(0, 60, 9)
    pattern = Pattern.from_coo(np.repeat(np.arange(200), 7), rows.ravel(), (200, 80))
    steps = problem(pattern, 32, 32, 32)
    results = expected(steps)
    RowPass(pattern, threads=2)(steps)
    assert_computed(steps, results)


def test_mismatched_arrays_are_rejected() -> None:
    steps = problem(grid(), 8, 8, 8)
    run = RowPass(steps.matrix.pattern, threads=1)
    with pytest.raises(ValueError, match=r"y has shape \(299, 8\), not \(300, 8\)"):
        run(replace(steps, y=steps.y[1:]))
    with pytest.raises(ValueError, match="not a contiguous array of"):
        run(replace(steps, y=np.asfortranarray(steps.y)))
    with pytest.raises(ValueError, match="not a contiguous array of"):
        run(replace(steps, right=steps.right.astype(np.float64)))
    with pytest.raises(ValueError, match="c and d: give both or neither"):
        run(replace(steps, d=None))
    with pytest.raises(ValueError, match="left without s"):
        run(RowSteps(steps.matrix, steps.y, g=steps.g, left=steps.y))
    with pytest.raises(ValueError, match="nothing gives G"):
        run(RowSteps(right=steps.right, s=steps.s))
    with pytest.raises(ValueError, match="A and Y come together"):
        run(RowSteps())
    with pytest.raises(ValueError, match="make a pass for its pattern"):
        run(replace(steps, matrix=SparseMatrix(grid(), steps.matrix.values)))
    with pytest.raises(ValueError, match="0 threads: give at least 1"):
        RowPass(steps.matrix.pattern, threads=0)


def test_overlapping_results_are_rejected():
    steps = problem(grid(), 8, 8, 8)
    run = RowPass(steps.matrix.pattern, threads=2)
    read = {"y": steps.y, "c": steps.c, "summed": steps.summed, "indices of A": steps.matrix.pattern.indices,
            "indptr of A": steps.matrix.pattern.indptr, "values of A": steps.matrix.values}
    for name, array in read.items():
        room = array.view(np.uint8).reshape(-1)[:32].view(np.float32)
        with pytest.raises(ValueError, match=f"sums overlaps {name}: give an array of its own"):
            run(replace(steps, sums=room))
    with pytest.raises(ValueError, match="s overlaps d"):
        run(replace(steps, s=steps.d[:8]))
