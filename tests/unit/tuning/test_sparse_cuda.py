"""spmm, sddmm and attention for arrays on an emulated GPU: results, decisions, caching and refusals."""

import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from csr_operands import dense
from device_operands import COLS, LIBRARIES, POLICY, ROWS, WIDTH, close, host, parts, prepared
from emulated_gpu import EmulatedGpu, Foreign
from gpu_here import on_a_gpu

import sparloom
from sparloom.errors import NotDecided, Unsupported
from sparloom.ops import SDDMM, CsrAttention, Operands, SpMM, SpmmMax, assert_close
from sparloom.platforms import CudaDevice
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import PlanCache, list_plans
from sparloom.tuning.sparse import CsrDecider, CudaBackend, Prepared, tuner

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sheet_rates")]


@pytest.mark.parametrize("wide", [False, True])
def test_results_are_right_and_on_the_device(here, wide):
    a, x, q = host(), dense(COLS, WIDTH), dense(ROWS, WIDTH, seed=2)
    given = parts(a, wide=wide)
    for _ in range(2):
        close(SpMM(), a, {"B": x}, sparloom.spmm(given, Foreign(x)))
        close(SDDMM(), a, {"B": q, "C": x}, sparloom.sddmm(given, Foreign(q), Foreign(x)))


def test_attention_is_right_for_any_heads(here, second_wins):
    a, rng = host(), np.random.default_rng(3)
    for heads, width, wide in ((1, WIDTH, WIDTH), (2, 4, 3)):
        given = {"Q": rng.standard_normal((ROWS, heads, width), np.float32),
                 "K": rng.standard_normal((COLS, heads, width), np.float32),
                 "V": rng.standard_normal((COLS, heads, wide), np.float32)}
        for _ in range(2):
            close(CsrAttention(heads), a, given, sparloom.csr_attention(parts(a), *map(Foreign, given.values())))


def test_maxima_and_their_argmax_are_right(where, tmp_path, second_wins):
    a, ready = host(), prepared(where, tmp_path)
    for seed in (1, 2):
        x = dense(COLS, WIDTH, seed=seed) - np.float32(0.5)
        close(SpmmMax(), a, {"B": x}, ready.spmm(Foreign(x), reduce="max"))
        found, places = ready.spmm_max(Foreign(x))
        products = np.where(places < 0, 0, a.values[places] * np.take_along_axis(x, a.pattern.indices[places], axis=0))
        np.testing.assert_array_equal(found, products)
        np.testing.assert_array_equal(found, ready.spmm(Foreign(x), reduce="max"))
        assert ((places < 0) == (a.pattern.row_lengths() == 0)[:, None]).all()


def test_cached_decisions_are_replayed_without_a_measurement(where, tmp_path, second_wins, monkeypatch):
    x = dense(COLS, WIDTH)
    plan = prepared(where, tmp_path).plan("spmm", B=where.gpu.upload(x))
    assert plan.choice.config == plan.decision.trials[1].candidate
    assert plan.decision.origin == "measured"
    assert {"library", plan.choice.config} <= {trial.candidate for trial in plan.decision.trials if trial.seconds}
    monkeypatch.setattr(CsrDecider, "decide", None)
    again = prepared(where, tmp_path, replay_only=True)
    close(SpMM(), host(), {"B": x}, again.spmm(Foreign(x)))
    assert again.plan("spmm", B=where.gpu.upload(x)).decision.from_cache
    close(SpMM(), host(), {"B": 2 * x}, again.spmm(Foreign(2 * x)))


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_decisions_are_measured_by_the_clock_of_the_device(where, tmp_path, monkeypatch, op):
    timed = []
    repeat = where.gpu.repeat
    monkeypatch.setattr(EmulatedGpu, "repeat", lambda self, call: timed.append(call) or repeat(call))
    given = {"B": dense(COLS if op == "spmm" else ROWS, WIDTH)} | ({} if op == "spmm" else {"C": dense(COLS, WIDTH)})
    decision = prepared(where, tmp_path).plan(op, **{name: where.gpu.upload(x) for name, x in given.items()}).decision
    assert decision.origin == "measured"
    assert len(timed) > len(decision.trials)
    assert set(LIBRARIES[op]) <= {trial.candidate for trial in decision.trials if trial.seconds}


@pytest.mark.parametrize("other", [{"driver": 13000}, {"device": CudaDevice.named("a100")}])
def test_plans_of_another_device_or_driver_are_not_used(where, tmp_path, other):
    x = dense(COLS, WIDTH)
    prepared(where, tmp_path).spmm(Foreign(x))
    elsewhere = CudaBackend(EmulatedGpu(tmp_path / "elsewhere", **other), LIBRARIES)
    with pytest.raises(NotDecided, match="no plan for spmm"):
        prepared(elsewhere, tmp_path, replay_only=True).spmm(Foreign(x))


def test_a_kernel_that_is_wrong_is_refused(where, tmp_path, second_wins, monkeypatch):
    ready = prepared(where, tmp_path)
    monkeypatch.setattr(tuner.CandidateSet, "_computed", lambda self, place, operands: where.gpu.upload(
        np.full((operands.matrix.pattern.rows, WIDTH), place, np.float32)))
    plan = ready.plan("spmm", B=where.gpu.upload(dense(COLS, WIDTH)))
    assert plan.choice.config == plan.decision.trials[0].candidate
    assert "refused: other than the baseline: element" in plan.decision.reason


def test_one_array_may_be_both_operands(where, tmp_path, second_wins):
    square = SparseMatrix(Pattern.identity(30), np.ones(30))
    ready = Prepared(where.matrix(square), where=where, cache=PlanCache(tmp_path), policy=POLICY)
    q, k = dense(30, WIDTH), dense(30, WIDTH, seed=4)
    same = Foreign(q)
    close(SDDMM(), square, {"B": q, "C": q}, ready.sddmm(same, same))
    close(SDDMM(), square, {"B": q, "C": k}, ready.sddmm(same, Foreign(k)))


def test_means_and_other_values(where, tmp_path):
    ready, x = prepared(where, tmp_path), dense(COLS, WIDTH)
    lengths = np.maximum(host().pattern.row_lengths(), 1)[:, None]
    np.testing.assert_allclose(ready.spmm(Foreign(x), reduce="mean"), ready.spmm(Foreign(x)) / lengths, atol=1e-5)
    values = dense(host().pattern.nnz, seed=9)
    close(SpMM(), host().with_values(values), {"B": x}, ready.spmm(Foreign(x), values=Foreign(values)))


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_values_may_change_in_place(here, reduce):
    x = Foreign(dense(COLS, WIDTH))
    for given in (parts(host()), sparloom.prepare(parts(host()))):
        call = given.spmm if isinstance(given, Prepared) else partial(sparloom.spmm, given)
        before = np.array(call(x, reduce=reduce))
        values = given.matrix.values if isinstance(given, Prepared) else given[2].array
        values *= 2
        np.testing.assert_array_equal(np.asarray(call(x, reduce=reduce)), 2 * before)


def test_changes_in_place_are_detected_on_request(here):
    a, x = host(), dense(COLS, WIDTH)
    given = parts(a)
    sparloom.spmm(given, Foreign(x))
    last = given[0].array[8] - 2  # of the full row: its last columns but one
    given[1].array[last:last + 2] = COLS - 2, COLS - 1
    given[2].array[:] = 0.5
    changed = SparseMatrix(Pattern((ROWS, COLS), given[0].array, given[1].array), np.full(a.pattern.nnz, 0.5))
    close(SpMM(), changed, {"B": x}, sparloom.spmm(given, Foreign(x), changed=True))


def test_operands_on_two_devices_are_refused(here):
    a, x = host(), dense(COLS, WIDTH)
    with pytest.raises(TypeError, match=r"X is ndarray, not on the GPU: pass cupy.asarray\(X\)"):
        sparloom.spmm(parts(a), x)
    with pytest.raises(TypeError, match=r"indptr is ndarray, not on the GPU"):
        sparloom.spmm((a.pattern.indptr, *parts(a)[1:]), Foreign(x))
    with pytest.raises(TypeError, match=r"X cannot be read by the processor \(it is on a GPU\): move it there, or all"):
        sparloom.spmm(a, Foreign(x))


def test_invalid_matrices_are_refused(here):
    indptr, indices, values, shape = parts(host())
    with pytest.raises(ValueError, match="no CSR matrix with columns that rise in every row"):
        sparloom.spmm((indptr, Foreign(indices.array[::-1].copy()), values, shape), Foreign(dense(COLS, WIDTH)))
    with pytest.raises(ValueError, match="values are float64"):
        sparloom.spmm((indptr, indices, Foreign(values.array.astype(float)), shape), Foreign(dense(COLS, WIDTH)))
    with pytest.raises(ValueError, match=r"X has shape \(41, 8\): it must be \(40, width\)"):
        sparloom.spmm((indptr, indices, values, shape), Foreign(dense(COLS + 1, WIDTH)))


@pytest.mark.parametrize("shape", [(0, 5), (5, 3), (1, 1)])
def test_nothing_stored_gives_zeros(where, tmp_path, shape):
    empty = SparseMatrix(Pattern.from_coo(np.empty(0, int), np.empty(0, int), shape), np.empty(0))
    ready = Prepared(where.matrix(empty), where=where, cache=PlanCache(tmp_path), policy=POLICY)
    found = ready.spmm(Foreign(dense(shape[1], WIDTH)))
    assert found.shape == (shape[0], WIDTH)
    assert not found.any()


def test_without_cupy_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(Unsupported, match=r"no CuPy .*: pip install .*\[gpu\]\"\), on a machine with an NVIDIA GPU"):
        sparloom.spmm(parts(host()), Foreign(dense(COLS, WIDTH)))


def test_plans_of_another_device_are_listed_as_foreign(where, tmp_path, monkeypatch):
    prepared(where, tmp_path).spmm(Foreign(dense(COLS, WIDTH)))
    plan, rates = sorted(list_plans(tmp_path, now=0.0), key=lambda kept: kept.kind)
    assert (plan.kind, plan.op, plan.state, plan.fault) == ("csr", "spmm", "foreign", "of another machine")
    assert (rates.kind, rates.threads, rates.state, rates.fault) == ("rates", 0, "foreign", "of another machine")
    monkeypatch.setattr("sparloom.platforms.cuda.device.CupyGpu.current", lambda: where.gpu)
    plan, rates = sorted(list_plans(tmp_path, now=0.0), key=lambda kept: kept.kind)
    assert (plan.state, rates.state) == ("own", "own")
    assert rates.choice == "50688 GFLOP/s, 2970 GB/s from memory"


def test_cupy_is_not_imported():
    code = ("import sys; sys.modules['cupy'] = None; import sparloom.tuning.sparse; "
            "import sparloom.platforms.cuda.sparse_kernels; "
            "from sparloom.tuning.sparse import CudaBackend; assert 'torch' not in sys.modules")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("width", [8, 33, 128])
def test_a_gpu_decides_and_is_right(tmp_path, width):
    import cupy

    a, where = host(), CudaBackend.here()
    policy = where.policy()
    patient = replace(policy, effort=replace(policy.effort, seconds=60.0))  # other tests use the GPU at the same time
    ready = Prepared(where.matrix(a), where=where, cache=PlanCache(tmp_path), policy=patient)
    x, q = dense(COLS, width), dense(ROWS, width, seed=2)
    heads = {"Q": q[:, None], "K": x[:, None], "V": dense(COLS, 1, width, seed=3)}
    for op, name, given in ((SpMM(), "spmm", {"B": x}), (SDDMM(), "sddmm", {"B": q, "C": x}),
                            (CsrAttention(), "attention", heads)):
        there = {key: cupy.asarray(array) for key, array in given.items()}
        for _ in range(2):
            found = getattr(ready, name)(*there.values()).get()
            assert_close(found, op.oracle(Operands(a, given)), terms=op.terms(a.pattern, width),
                         scale=op.scale(Operands(a, given)))
        trials = {trial.candidate for trial in ready.plan(name, **there).decision.trials if trial.seconds}
        assert trials >= set(where.libraries.get(name, ()))
