"""Executors against the float64 oracles: every variant and element type, patterns of every kind."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns
from tile_schedules import brute_force, schedule_of

from sparloom.fusion import (
    Executor,
    Reads,
    Variant,
    check_schedule,
    gemm_spmm_loops,
    schedule_tiles,
    separated,
    spmm_spmm_loops,
    unfused_schedule,
)
from sparloom.ops import GemmSpmm, Operands, SpmmGemm, SpmmSpmm, assert_close
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

OPS = [GemmSpmm(), GemmSpmm(c_transposed=True), SpmmSpmm(), SpmmSpmm(addends=True), SpmmGemm()]
DTYPES = ["float32", "float64"]
VARIANTS = [
    Variant(), Variant(local=True), Variant(local=True, stream=True, prefetch_bytes=1024),
    Variant(stream=True, stream_first=True), Variant(prefetch_bytes=4096),
]
WIDTHS = [*range(1, 41), 64, 100, 128, 200]
INNERS = [*range(1, 41), 64, 128, 600]

ops = pytest.mark.parametrize("op", OPS, ids=lambda op: name(op))
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def name(op) -> str:
    flags = {"ct": "c_transposed", "addends": "addends"}
    return "_".join([op.name, *(short for short, flag in flags.items() if getattr(op, flag, False))])


def varied(rows: int = 90) -> Pattern:
    """A band with a full row, empty rows, far nonzeros, and rows with equal columns in runs of 2 to 6."""
    row, column = np.indices((rows, rows))
    dense = (np.abs(row - column) < 4) & (np.random.default_rng(0).random((rows, rows)) < 0.6)
    dense[40] = True
    dense[[10, 70], [80, 3]] = True
    for first, last in ((8, 10), (12, 15), (50, 56), (60, 64)):
        dense[first:last] = dense[first]
    dense[[0, 17, 18, rows - 1]] = False
    return Pattern.from_coo(*np.nonzero(dense), dense.shape)


def operands_of(op, pattern: Pattern, width: int) -> Operands:
    values = np.random.default_rng(1).uniform(-1, 1, pattern.nnz)
    return op.operands(SparseMatrix(pattern, values, op.dtype), width, seed=0)


def check(op, executor: Executor, operands: Operands, width: int) -> None:
    result = executor.result(operands)
    result.fill(np.nan)
    executor.bind(operands, result)()
    pattern = operands.matrix.pattern
    assert result.dtype == op.dtype
    assert_close(result, op.oracle(operands), terms=op.terms(pattern, width), scale=op.scale(operands))


@ops
@dtypes
@pytest.mark.parametrize("width", [1, 16, 33, 64, 128])
def test_every_variant_is_correct(op, dtype, width):
    op, pattern = replace(op, dtype=dtype), varied()
    operands, schedule = operands_of(op, pattern, width), schedule_of(op, pattern, [20, 45, 60])
    for variant in VARIANTS:
        for threads in (1, 3):
            check(op, Executor(op, schedule, threads=threads, variant=variant), operands, width)


@ops
@dtypes
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_results_are_correct_for_any_pattern_extent_and_tiles(op, dtype, data):
    pattern = data.draw(patterns(max_rows=40, square=True))
    width, inner = data.draw(st.sampled_from(WIDTHS)), data.draw(st.sampled_from(INNERS))
    op = replace(op, dtype=dtype) if op.name == "spmm_spmm" else replace(op, dtype=dtype, inner=inner)
    schedule = schedule_of(op, pattern, data.draw(st.lists(st.integers(0, pattern.rows), max_size=5)))
    threads, variant = data.draw(st.integers(1, 3)), data.draw(st.sampled_from(VARIANTS))
    executor = Executor(op, schedule, threads=threads, variant=variant)
    check(op, executor, operands_of(op, pattern, width), width)


@ops
@settings(max_examples=20, deadline=None)
@given(pattern=patterns(max_rows=40, square=True), threads=st.integers(1, 3), width=st.sampled_from(WIDTHS))
def test_unfused_schedules_are_correct(op, pattern, threads, width):
    operands = operands_of(op, pattern, width)
    plain = unfused_schedule(pattern, threads=threads)
    if op.name != "spmm_gemm":
        check_schedule(plain, pattern)
        tiles = separated(brute_force(pattern, [5, 11]), pattern)
        check_schedule(tiles, pattern)
        assert tiles.fused == 0
        check(op, Executor(op, tiles, threads=threads), operands, width)
    check(op, Executor(op, plain, threads=threads, variant=Variant(stream=True, stream_first=True)), operands, width)


@dtypes
@pytest.mark.parametrize("width", [8, 20, 40, 41])
def test_every_variant_gives_the_same_bits(dtype, width):
    op, pattern = SpmmSpmm(dtype=dtype, addends=True), varied()
    operands, found = operands_of(op, pattern, width), []
    for schedule in (unfused_schedule(pattern, threads=2), brute_force(pattern, [20, 45, 60])):
        for variant in VARIANTS:
            executor = Executor(op, schedule, threads=2, variant=variant)
            found.append(executor.result(operands))
            executor.bind(operands, found[-1])()
    assert all(np.array_equal(found[0], other) for other in found[1:])


@dtypes
@pytest.mark.parametrize("width", [1, 16, 37, 64, 100])
def test_changes_are_the_distance_between_both_iterates(dtype, width):
    op, pattern = SpmmSpmm(dtype=dtype, addends=True), varied()
    operands = operands_of(op, pattern, width)
    c, f = (operands.dense[name].astype(np.float64) for name in ("C", "F"))
    expected = ((operands.right.to_scipy().astype(np.float64) @ c + f - c) ** 2).sum(axis=0)
    for variant in VARIANTS:
        for schedule in (brute_force(pattern, [0, 20, 45, 60]), unfused_schedule(pattern, threads=2)):
            executor = Executor(op, schedule, threads=2, variant=variant)
            changes = np.full((schedule.tiles[0], width), np.nan, dtype)
            executor.bind(operands, executor.result(operands), changes=changes)()
            np.testing.assert_allclose(changes.sum(axis=0), expected, rtol=1e-5 if dtype == "float32" else 1e-13)


def test_invalid_changes_are_rejected():
    op, pattern = SpmmSpmm(), varied()
    operands, executor = operands_of(op, pattern, 8), Executor(op, brute_force(pattern, [50]), threads=1)
    with pytest.raises(ValueError, match=r"changes have shape \(3, 8\), not \(2, 8\)"):
        executor.bind(operands, executor.result(operands), changes=np.empty((3, 8), np.float32))
    dense, op = operands_of(GemmSpmm(), pattern, 8), GemmSpmm()
    executor = Executor(op, brute_force(pattern, [50]), threads=1)
    with pytest.raises(ValueError, match="need spmm_spmm with a square B"):
        executor.bind(dense, executor.result(dense), changes=np.empty((2, 8), np.float32))


def test_no_write_is_outside_the_result():
    op, pattern = GemmSpmm(), varied()
    operands = operands_of(op, pattern, 37)
    room = np.full((pattern.rows + 2, 37), 7, dtype=np.float32)
    for variant in VARIANTS:
        Executor(op, brute_force(pattern, [31]), threads=2, variant=variant).bind(operands, room[1:-1])()
        assert (room[[0, -1]] == 7).all()


def test_mismatched_operands_are_rejected():
    op, pattern = GemmSpmm(), varied()
    operands, schedule = operands_of(op, pattern, 8), brute_force(pattern, [50])
    executor = Executor(op, schedule, threads=1)
    result = executor.result(operands)
    with pytest.raises(ValueError, match=r"a schedule of \(90, 90\) iterations for loops of 99 and 99"):
        executor.bind(operands_of(op, varied(99), 8), result)
    with pytest.raises(ValueError, match=r"C has shape \(9, 8\), not \(8, 8\)"):
        executor.bind(replace(operands, dense={**operands.dense, "C": np.ones((9, 8), np.float32)}), result)
    with pytest.raises(ValueError, match="the result is float32 of shape"):
        executor.bind(operands, result[:, :4])
    with pytest.raises(ValueError, match="float64"):
        executor.bind(replace(operands, dense={**operands.dense, "B": np.ones((90, 8))}), result)
    affine, with_addends = SpmmSpmm(addends=True), operands_of(SpmmSpmm(addends=True), pattern, 8)
    wrong = replace(with_addends, dense={**with_addends.dense, "G": np.ones((9, 8), np.float32)})
    with pytest.raises(ValueError, match=r"G has shape \(9, 8\), not \(90, 8\)"):
        Executor(affine, schedule, threads=1).bind(wrong, result)
    with pytest.raises(ValueError, match="the result overlaps B"):
        executor.bind(operands, operands.dense["B"])
    with pytest.raises(ValueError, match="0 threads"):
        Executor(op, schedule, threads=0)
    with pytest.raises(ValueError, match="do not depend on each other"):
        Executor(SpmmGemm(), schedule, threads=1)
    with pytest.raises(ValueError, match="A has 90 columns: B must be sparse"):
        Executor(SpmmSpmm(), schedule, threads=1).bind(replace(operands, dense={"C": operands.dense["C"]}), result)


@pytest.mark.parametrize("local", [False, True])
def test_the_executor_runs_schedules_of_the_inspector(local):
    row, column = np.indices((600, 600))
    pattern = Pattern.from_coo(*np.nonzero(np.isin(row - column, (-25, -1, 0, 1, 25))), (600, 600))
    reads = Reads.of(pattern)
    loops = {
        "gemm_spmm": gemm_spmm_loops(reads, inner=32, width=32, element_bytes=4),
        "spmm_spmm": spmm_spmm_loops(reads, reads, width=32, element_bytes=4),
    }
    for op in (GemmSpmm(), SpmmSpmm()):
        schedule = schedule_tiles(loops[op.name], threads=2, cache_bytes=30_000, ct_size=128)
        assert 0 < schedule.fused < 600
        check(op, Executor(op, schedule, threads=2, variant=Variant(local=local)), operands_of(op, pattern, 32), 32)


def over(array: np.ndarray, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """A result that shares memory with an array."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return array.view(np.uint8).reshape(-1)[:size].view(dtype).reshape(shape)


@ops
def test_a_result_that_overlaps_an_operand_is_rejected(op):
    pattern = varied()
    operands = operands_of(op, pattern, 2)
    graph = Pattern.identity(pattern.rows) if op.name == "spmm_gemm" else pattern
    executor = Executor(op, unfused_schedule(graph, threads=1), 2)
    call = executor.bind(operands, executor.result(operands))
    shape = (pattern.rows, op.width(operands))
    arrays = {**operands.dense, "values of A": operands.matrix.values, "indptr of A": pattern.indptr,
              "indices of A": pattern.indices}
    if operands.right is not None and operands.right is not operands.matrix:
        arrays["indices of B"] = operands.right.pattern.indices
    for where, array in arrays.items():
        if array.nbytes >= 4 * shape[0] * shape[1]:
            for bound in (executor.bind, lambda *given: executor.rebind(call, *given)):
                with pytest.raises(ValueError, match=f"the result overlaps {where}: give an array of its own"):
                    bound(operands, over(array, shape, op.dtype))
