"""Every method of a bench of fused products computes the product, and a wrong one is noticed."""

import numpy as np
import pytest

from sparloom.errors import Unsupported
from sparloom.experiments.fusion import (
    METHODS,
    Case,
    FusionBench,
    Methods,
    PairCheck,
    decide,
    fusion_set,
    reuse,
    score,
)
from sparloom.fusion import schedule_tiles, spmm_spmm_loops
from sparloom.fusion.schedule import Reads
from sparloom.measure import TimingProtocol
from sparloom.ops import GemmSpmm, SpmmGemm, SpmmSpmm
from sparloom.sparse import AnchorCorpus, MatrixEntry, Pattern, SparseMatrix, row_bin
from sparloom.tuning import PlanCache, Problem, plan_pair

OPS = {op.name: op for op in (GemmSpmm(), SpmmSpmm(), SpmmGemm())}
ONLY_GEMM_SPMM = {"gemv", "blas_gemv", "listing"}
NOT_SPMM_GEMM = {"atomic", "overlapped", *ONLY_GEMM_SPMM}
QUICK = TimingProtocol(rounds=1, repetitions=2, short_seconds=0.0, most_repetitions=2, slow_factor=100.0,
                       steal_ratio=1.5, retakes=0, seed=0)


@pytest.fixture(scope="module")
def matrix():
    return AnchorCorpus(1 / 256, reordered=False).load("rmat17")


def made(op, matrix, tmp_path, gemv_flops=1e12, width=16, threads=1):
    operands = op.operands(matrix, width, 0)
    cache = PlanCache(tmp_path)
    plans = {name: plan_pair(op, operands, fuse=fuse, threads=threads, cache=cache)
             for name, fuse in (("unfused", "never"), ("auto", "auto"))}
    result = plans["auto"].executor.result(operands)
    return operands, result, Methods(op, operands, result, threads=threads, plans=plans, gemv_flops=gemv_flops)


@pytest.mark.cc
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_computes_the_product(op, name, matrix, tmp_path):
    operands, result, methods = made(op, matrix, tmp_path)
    refused = NOT_SPMM_GEMM if op.name == "spmm_gemm" else ONLY_GEMM_SPMM if op.name == "spmm_spmm" else ()
    if name in refused:
        with pytest.raises(Unsupported):
            methods.make(name)
        return
    try:
        method = methods.make(name)
    except Unsupported as missing:
        pytest.skip(str(missing))
    result.fill(np.nan)
    method.call()
    PairCheck(op, operands, seed=0).check(method.in_place(result))


@pytest.mark.cc
@pytest.mark.parametrize("op", [OPS["gemm_spmm"], OPS["spmm_spmm"]], ids=lambda op: op.name)
def test_matrices_that_hardly_fuse_are_reordered_with_their_data(op, tmp_path):
    rows = 4096
    row = np.repeat(np.arange(rows), 2)
    far = np.where(np.tile([True, False], rows), row, (row + rows // 2) % rows)  # pairs that lie far apart
    matrix = SparseMatrix(Pattern.from_coo(row, far, (rows, rows)), np.linspace(-1, 1, 2 * rows))
    operands, result, methods = made(op, matrix, tmp_path, threads=2)
    method = methods.make("fused")
    assert method.facts["reordered"]
    assert method.facts["fused_rows"] == 1
    result.fill(np.nan)
    method.call()
    PairCheck(op, operands, seed=0).check(method.in_place(result))
    with pytest.raises(AssertionError):
        PairCheck(op, operands, seed=0).check(result)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_wrong_element_is_detected_at_any_position(op, matrix):
    operands = op.operands(matrix, 8, 0)
    check = PairCheck(op, operands, seed=0)
    right = op.oracle(operands).astype(np.float32)
    check.check(right)
    check.check(right)
    for place in range(0, right.shape[0], 97):
        wrong = right.copy()
        wrong[place, 3] = np.nan if place % 2 else wrong[place, 3] + 1e6
        with pytest.raises(AssertionError):
            check.check(wrong)


@pytest.mark.cc
def test_cached_decisions_are_found_and_scored(matrix, tmp_path):
    bench = FusionBench(OPS, QUICK, PlanCache(tmp_path), gemv_flops=1.0, seed=0)
    case = Case("anchors", "rmat17", "gemm_spmm", 16, 1, ("unfused", "auto", "fused", "coarse", "scipy", "gemv"))
    decided = {row["method"]: row for row in decide(bench, case, matrix)}
    rows = {row["method"]: row for row in score(bench, case, matrix)}
    assert set(decided) == {"unfused", "auto"}
    assert decided["auto"]["decision_seconds"] > 0
    assert set(rows) == set(case.methods)
    assert rows["gemv"]["failure"].startswith("Unsupported")
    timed = [row for row in rows.values() if "failure" not in row]
    assert all(0 < row["seconds_p10"] <= row["seconds"] <= row["seconds_p90"] for row in timed)
    assert all(row["flops"] == OPS["gemm_spmm"].work(matrix.pattern, 16).flops for row in timed)
    assert rows["fused"]["build_seconds"] > 0
    assert 0 < rows["coarse"]["reused_flops"] <= 1
    assert rows["fused"]["access_cycles"] > 4
    if rows["auto"]["same"]:
        assert rows["auto"]["seconds"] == rows["unfused"]["seconds"]


def test_reuse_counts_fused_rows_and_what_they_read():
    pattern = Pattern((4, 4), np.arange(5), np.array([0, 1, 2, 0], dtype=np.int32))
    loops = spmm_spmm_loops(Reads.of(pattern), Reads.of(pattern), width=1, element_bytes=4)
    schedule = schedule_tiles(loops, threads=2, cache_bytes=1 << 20, ct_size=2)
    assert schedule.fused == 3  # row 3 reads row 0 of the other tile
    found = reuse(schedule, Problem(OPS["gemm_spmm"], pattern, None, 5, 1, "float32"))
    assert found["reused_flops"] == pytest.approx((3 * 5 + 3) / (4 * 5 + 4))
    assert found["kept_rows"] == pytest.approx(3 / 4)


def entry(name, rows, nnz, *, kind="graph", spd=False, cols=None):
    return MatrixEntry(name, name, rows, cols or rows, nnz, False, kind, row_bin(rows), spd)


def test_the_set_is_square_and_positive_definite_or_a_graph():
    class Listed:
        def entries(self):
            return (entry("a", 10, 200), entry("b", 10, 200, kind="thermal problem", spd=True),
                    entry("c", 10, 200, kind="thermal problem"), entry("d", 10, 200, cols=11), entry("e", 10, 100),
                    entry("f", 10, 200, kind="undirected graph"))

    assert [found.name for found in fusion_set(Listed(), least_nonzeros=100)] == ["a", "b", "f"]
