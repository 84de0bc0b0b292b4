"""spmm, sddmm and csr_attention as users call them: results, operands of every kind, what is refused, what is kept."""

import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

import sparloom
from sparloom.dispatch import Decision, PlanCache, Race
from sparloom.dispatch.csr import CsrChoice, CsrDecider, CsrPolicy, Prepared, decide, sample_rows
from sparloom.dispatch.csr.contest import Contest
from sparloom.errors import NotDecided
from sparloom.ops import SDDMM, CsrAttention, Operands, SpMM, SpmmMax, assert_close
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc


@pytest.fixture(autouse=True, scope="module")
def cache(own_cache):
    """A cache of their own, with rates that are measured once."""
    return PlanCache.of_this_user()


def matrix(rows=300, cols=200, seed=0):
    return scipy.sparse.random_array((rows, cols), density=0.05, format="csr", dtype=np.float32,
                                     rng=np.random.default_rng(seed))


def dense(*shape, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def close(op, a, dense, found):
    operands = Operands(SparseMatrix(Pattern(a.shape, a.indptr, a.indices), a.data), dense)
    assert_close(found, op.oracle(operands), terms=op.terms(operands.matrix.pattern, operands.width),
                 scale=op.scale(operands))


@pytest.mark.parametrize("width", [1, 32, 100])
def test_results_are_right(width):
    a, x, q = matrix(), dense(200, width), dense(300, width)
    for _ in range(2):
        close(SpMM(), a, {"B": x}, sparloom.spmm(a, x))
        close(SDDMM(), a, {"B": q, "C": x}, sparloom.sddmm(a, q, x))
    heads = {"Q": q.reshape(300, 1, width), "K": x.reshape(200, 1, width), "V": dense(200, 1, 17)}
    found = sparloom.csr_attention(a, *heads.values())
    close(CsrAttention(), a, heads, found)
    flat = sparloom.csr_attention(a, *(array[:, 0] for array in heads.values()))
    assert np.array_equal(flat, found[:, 0])


def test_mean_divides_by_what_a_row_has():
    a, x = matrix(), dense(200, 16)
    lengths = np.maximum(np.diff(a.indptr), 1)[:, None]
    np.testing.assert_allclose(sparloom.spmm(a, x, reduce="mean"), sparloom.spmm(a, x) / lengths, atol=1e-6)


def test_the_maximum_is_taken_of_what_a_row_has():
    a, x = matrix(), dense(200, 16)
    close(SpmmMax(), a, {"B": x}, sparloom.spmm(a, x, reduce="max"))


@pytest.mark.parametrize("libraries", [{}, {"spmm_max": {"other": lambda matrix, threads: None}}],
                         ids=["own", "library"])
def test_the_places_of_maxima(tmp_path, monkeypatch, libraries):
    """Those of our own kernel, whoever else was chosen for the maxima alone."""
    if libraries:
        monkeypatch.setattr(CsrDecider, "decide", lambda *_: (CsrChoice(library="other"), Decision("rule", "chosen")))
    a = matrix()
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), libraries=libraries)
    lengths = np.diff(a.indptr)
    for x, values in ((dense(200, 16), None), (dense(200, 16, seed=4), None), (dense(200, 16), -a.data)):
        result, places = ready.spmm_max(x, values=values)
        products = (a.data if values is None else values)[:, None] * x[a.indices]
        assert (places[lengths == 0] == -1).all()
        assert (result[lengths == 0] == 0).all()
        filled = places[lengths > 0]
        assert np.array_equal(result[lengths > 0], products[filled, np.arange(16)])
        assert np.array_equal(result[lengths > 0], np.maximum.reduceat(products, a.indptr[:-1][lengths > 0]))
        assert (np.searchsorted(a.indptr, filled, side="right") - 1 == np.flatnonzero(lengths)[:, None]).all()
    assert ready.plan("spmm_max", B=x).choice.library == ("other" if libraries else "")


def test_places_are_not_found_without_a_decision(tmp_path):
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), replay_only=True)
    with pytest.raises(NotDecided, match="no plan for spmm_max"):
        ready.spmm_max(dense(200, 8))
    with pytest.raises(ValueError, match=r"X has shape \(199, 8\): it must be \(200, width\)"):
        ready.spmm_max(dense(199, 8))


def test_other_values_on_the_same_pattern_need_no_new_decision(cache):
    a, x = matrix(seed=5), dense(200, 24)
    sparloom.spmm(a, x)
    kept = sorted(cache.folder.iterdir())
    other = scipy.sparse.csr_array((2 * a.data, a.indices, a.indptr), shape=a.shape)
    close(SpMM(), other, {"B": x}, sparloom.spmm(other, x))
    assert sorted(cache.folder.iterdir()) == kept


def test_operands_of_every_kind():
    a, x = matrix(), dense(200, 8)
    expected = sparloom.spmm(a, x)
    wide = scipy.sparse.csr_array((a.data, a.indices.astype(np.int64), a.indptr.astype(np.int64)), shape=a.shape)
    shuffled = a.copy()
    shuffled.indices[:2], shuffled.data[:2] = a.indices[1::-1], a.data[1::-1]
    shuffled.has_sorted_indices = shuffled.has_canonical_format = False
    for each in (wide, a.tocsc(), a.tocoo(), scipy.sparse.csr_matrix(a), shuffled, (a.indptr, a.indices, a.data),
                  (wide.indptr, wide.indices, a.data, a.shape), SparseMatrix(Pattern.from_scipy(a), a.data)):
        assert_close(sparloom.spmm(each, x), expected.astype(np.float64), terms=40)
    for each in (np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2], memoryless(x)):
        assert np.array_equal(sparloom.spmm(a, each), expected)


def memoryless(array):
    """An object that speaks DLPack and nothing else."""
    class Foreign:
        ndim, shape = array.ndim, array.shape

        def __dlpack__(self, **options):
            return array.__dlpack__(**options)

        def __dlpack_device__(self):
            return array.__dlpack_device__()

    return Foreign()


@pytest.mark.parametrize(("given", "error", "message"), [
    (lambda a: a.toarray(), TypeError, "A is ndarray: give a SciPy matrix"),
    (lambda a: a.astype(np.float64), TypeError, r"values of A are float64: pass A.astype\(numpy.float32\)"),
    (lambda a: (a.indptr, a.indices), TypeError, "A is a tuple of 2"),
    (lambda a: (a.indptr, a.indices.astype(float), a.data), TypeError, "indices of A is float64"),
    (lambda a: (a.indptr, a.indices + 150, a.data), ValueError, "indices of A run from .* columns are 0 to 199"),
    (lambda a: (a.indptr[::-1].copy(), a.indices, a.data), ValueError, "indptr of A must be 301 numbers that rise"),
    (lambda a: (a.indptr[:-1], a.indices, a.data), ValueError, "indptr of A must be 300 numbers"),
    (lambda a: (a.indptr, a.indices, a.data[1:]), ValueError, "values for .* indices"),
    (lambda a: (a.indptr[None], a.indices, a.data), ValueError, "indptr of A has shape"),
])
def test_matrices_that_are_none_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        sparloom.spmm(given(matrix()), dense(200, 8))


@pytest.mark.parametrize(("given", "error", "message"), [
    (dense(199, 8), ValueError, r"X has shape \(199, 8\): it must be \(200, width\)"),
    (dense(200), ValueError, r"X has shape \(200,\)"),
    (dense(200, 0), ValueError, r"X has shape \(200, 0\)"),
    (dense(200, 8).astype(np.float64), TypeError, "X is float64"),
    ([[1.0]], TypeError, "X is list: give a NumPy array"),
])
def test_dense_operands_that_do_not_fit_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        sparloom.spmm(matrix(), given)


def test_shapes_must_agree():
    a = matrix()
    with pytest.raises(ValueError, match=r"Q has shape \(300, 8\) and K \(200, 9\)"):
        sparloom.sddmm(a, dense(300, 8), dense(200, 9))
    with pytest.raises(ValueError, match="V has 3 heads and Q 2"):
        sparloom.csr_attention(a, dense(300, 2, 8), dense(200, 2, 8), dense(200, 3, 8))
    with pytest.raises(ValueError, match="reduce='min': give one of sum, mean, max"):
        sparloom.spmm(a, dense(200, 8), reduce="min")


@settings(max_examples=30, deadline=None)
@given(pattern=patterns(max_rows=40), width=st.integers(1, 40), threads=st.integers(1, 3))
def test_any_pattern_is_right(pattern, width, threads):
    values = np.random.default_rng(0).uniform(-1, 1, pattern.nnz).astype(np.float32)
    ready = sparloom.prepare(SparseMatrix(pattern, values), threads=threads)
    x, q = dense(pattern.cols, width), dense(pattern.rows, width)
    a = ready.matrix.to_scipy()
    close(SpMM(), a, {"B": x}, ready.spmm(x))
    close(SDDMM(), a, {"B": q, "C": x}, ready.sddmm(q, x))


def test_replay_measures_nothing(tmp_path):
    cache, x = PlanCache(tmp_path), dense(200, 8)
    with pytest.raises(NotDecided, match=r"no plan for spmm with .* call it once without replay_only"):
        Prepared(SparseMatrix(Pattern.from_scipy(matrix()), matrix().data), cache=cache, replay_only=True).spmm(x)
    first = sparloom.prepare(matrix(), cache=cache)
    expected = first.spmm(x)
    again = sparloom.prepare(matrix(), cache=cache, replay_only=True)
    assert np.array_equal(again.spmm(x), expected)
    assert again.plan("spmm", B=x).choice == first.plan("spmm", B=x).choice
    assert again.plan("spmm", B=x).decision.from_cache


def test_what_is_damaged_is_decided_anew(tmp_path, caplog):
    cache, x = PlanCache(tmp_path), dense(200, 8)
    sparloom.prepare(matrix(), cache=cache).spmm(x)
    (kept,) = tmp_path.glob("schedule-*.json")
    for text in ("", "{", "[]", kept.read_text().replace("natural", "sideways").replace("column", "sideways")):
        kept.write_text(text)
        with caplog.at_level(logging.WARNING):
            close(SpMM(), matrix(), {"B": x}, sparloom.prepare(matrix(), cache=cache).spmm(x))
        assert "decided anew" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("choice", [
    {"config": 5}, {"config": None}, {"config": ["natural"]}, {"library": 5}, {"library": {}}, {}, [], 5, "natural"])
def test_what_was_chosen_has_another_type_and_is_decided_anew(tmp_path, caplog, choice):
    cache, x = PlanCache(tmp_path), dense(200, 8)
    sparloom.prepare(matrix(), cache=cache).spmm(x)
    (path,) = tmp_path.glob("schedule-*.json")
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"choice": kept["choice"] | {"choice": choice}}))
    close(SpMM(), matrix(), {"B": x}, sparloom.prepare(matrix(), cache=cache).spmm(x))
    assert "decided anew" in caplog.text
    assert json.loads(path.read_text())["choice"]["choice"] == kept["choice"]["choice"]


def test_the_evidence_is_kept(tmp_path):
    effort = replace(CsrPolicy().effort, seconds=60.0)
    policy = CsrPolicy(least_nonzeros=1000, least_seconds=0, runs=1e6, effort=effort)
    ready = sparloom.prepare(matrix(2000, 2000), cache=PlanCache(tmp_path), policy=policy)
    decision = ready.plan("spmm", B=dense(2000, 32)).decision
    assert decision.origin == "measured"
    assert "of 2000 rows" in decision.reason
    assert {trial.candidate for trial in decision.trials if trial.seconds} > {"scipy"}
    assert all(trial.seconds for trial in decision.trials[:2])


def test_torch_is_not_imported():
    code = ("import sys, numpy, scipy.sparse, sparloom; a = scipy.sparse.eye_array(5, format='csr', dtype='float32'); "
            "x = numpy.ones((5, 3), 'float32'); assert (sparloom.spmm(a, x) == x).all(); "
            "assert 'torch' not in sys.modules")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_where_a_probe_would_cost_too_much_nothing_is_measured(tmp_path):
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=CsrPolicy(least_seconds=10.0))
    decision = ready.plan("spmm", B=dense(200, 8)).decision
    assert decision.origin == "rule"
    assert "7 runs of" in decision.reason
    assert not decision.trials
    assert decision.executions == 0  # what is short by its flops and bytes is not even run


def test_no_rates_are_measured_where_nothing_is(tmp_path, monkeypatch):
    monkeypatch.setattr(PlanCache, "rates", None)
    small = scipy.sparse.eye_array(5, format="csr", dtype=np.float32)
    ready = sparloom.prepare(small, cache=PlanCache(tmp_path))
    assert ready.plan("spmm", B=dense(5, 3)).decision.origin == "rule"


def test_where_too_few_runs_on_the_sample_would_fit_nothing_is_measured(tmp_path):
    policy = CsrPolicy(least_nonzeros=10**9, least_seconds=0, runs=5.0)  # the sample is all rows
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=policy)
    decision = ready.plan("spmm", B=dense(200, 8)).decision
    assert decision.origin == "rule"
    assert "too short for 10 runs" in decision.reason
    assert 1 <= decision.executions <= 3


def test_the_parts_of_a_sample_are_its_rows_and_have_hubs():
    lengths = np.full(6400, 5)
    lengths[::640] = 300
    pattern = Pattern((6400, 6400), np.concatenate([[0], np.cumsum(lengths)]),
                      np.concatenate([np.arange(length) for length in lengths]))
    sample = sample_rows(pattern, nonzeros=pattern.nnz // 4, parts=3, seed=0)
    assert np.array_equal(np.sort(np.concatenate(sample.parts)), sample.rows)
    assert sample.rows.size < 6400 / 2
    held = [lengths[rows] for rows in sample.parts]
    assert len(held) == 3
    assert all((part == 300).any() and (part == 5).any() for part in held)
    assert sum(part.sum() for part in held) == pytest.approx(pattern.nnz / 4, rel=0.3)
    whole = sample_rows(pattern, nonzeros=pattern.nnz, parts=3, seed=0)
    assert np.array_equal(whole.rows, np.arange(6400))
    assert len(whole.parts) == 1


def test_rows_that_hold_most_are_in_the_sample_and_blocks_without_nonzeros_are_not():
    lengths = np.zeros(6400, np.int64)
    lengths[640:3200:7], lengths[700] = 2, 3000
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.concatenate([np.arange(length) for length in lengths])
    pattern = Pattern((lengths.size, 3000), indptr, indices.astype(np.int32))
    for seed in range(5):
        sample = sample_rows(pattern, nonzeros=200, parts=3, seed=seed)
        assert 700 in sample.rows
        assert lengths[sample.rows.reshape(-1, 64)].sum(1).min() > 0


@pytest.fixture
def second_wins(monkeypatch):
    """Seconds of races in which the second candidate is fastest, and of duels that it wins."""
    monkeypatch.setattr(decide, "race", lambda calls, **_: Race(
        tuple((1.0 if place == 1 else 2.0,) for place in range(len(calls))), 1))
    monkeypatch.setattr(decide, "duel", lambda rivals, **_: Race(((1.0,) * 6, (2.0,) * 6), 12))


def test_a_duel_for_which_there_is_no_time_is_not_begun(tmp_path, second_wins):
    effort = replace(CsrPolicy().effort, pairs=(10**6, 10**6))
    policy = CsrPolicy(least_nonzeros=1000, least_seconds=0, runs=1e6, effort=effort)
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=policy)
    decision = ready.plan("spmm", B=dense(200, 8)).decision
    assert "no time for 1000000 pairs" in decision.reason


@pytest.mark.parametrize("wrong", [False, True])
def test_a_kernel_that_is_wrong_is_refused(tmp_path, monkeypatch, caplog, second_wins, wrong):
    ready = sparloom.prepare(matrix(), cache=PlanCache(tmp_path), policy=CsrPolicy(least_seconds=0, runs=1e6))
    if wrong:
        monkeypatch.setattr(Contest, "_computed", lambda self, place, operands: np.full((300, 8), place, np.float32))
    plan = ready.plan("spmm", B=dense(200, 8))
    second = plan.decision.trials[1].candidate
    assert plan.choice.config == (plan.decision.trials[0].candidate if wrong else second)
    assert ("refused: other than the baseline: element" in plan.decision.reason) is wrong
    assert (f"spmm by {second} is refused" in caplog.text) is wrong


def test_results_go_where_the_caller_wants_them():
    a, x = matrix(), dense(200, 12)
    expected = sparloom.spmm(a, x)
    out = np.full((300, 12), 7, np.float32)
    assert sparloom.spmm(a, x, out=out) is out
    assert np.array_equal(out, expected)
    ready = sparloom.prepare(a)
    scores = np.empty(a.nnz, np.float32)
    assert ready.sddmm(dense(300, 12), x, out=scores) is scores
    with pytest.raises(ValueError, match=r"out is \(300, 11\): it must be an array of shape \(300, 12\)"):
        sparloom.spmm(a, x, out=out[:, :11])
    square = matrix(200, 200)
    with pytest.raises(ValueError, match="out lies in the memory of an operand"):
        sparloom.spmm(square, x, out=x)
    frozen = out.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="the result is read-only"):
        sparloom.spmm(a, x, out=frozen)


def test_a_change_in_place_is_seen_on_request():
    a, x = matrix(), dense(200, 8)
    sparloom.spmm(a, x)
    changed_columns(a)
    close(SpMM(), a, {"B": x}, sparloom.spmm(a, x, changed=True))
    close(SpMM(), a, {"B": x}, sparloom.spmm(a, x))


def changed_columns(a):
    """Move the last nonzero of the longest row, in place."""
    row = int(np.argmax(np.diff(a.indptr)))
    last = a.indptr[row + 1] - 1
    a.indices[last] = 199 if a.indices[last] != 199 else a.indices[last - 1] + 1


@pytest.mark.parametrize("known", [(1, 2), (2, 1)])
@pytest.mark.parametrize("asked", [1, 3])
@pytest.mark.parametrize("there", [np.int32, np.int64])
def test_a_change_is_seen_whatever_the_number_of_threads(known, asked, there):
    a, x = matrix(), dense(200, 8)
    a.indices, a.indptr = a.indices.astype(there), a.indptr.astype(there)
    for threads in known:
        sparloom.spmm(a, x, threads=threads)
    changed_columns(a)
    close(SpMM(), a, {"B": x}, sparloom.spmm(a, x, changed=True, threads=asked))
    for threads in (*known, asked):
        close(SpMM(), a, {"B": x}, sparloom.spmm(a, x, threads=threads))


def test_what_did_not_change_stays_prepared(monkeypatch):
    a, x = matrix(seed=9), dense(200, 8)
    expected = sparloom.spmm(a, x)
    monkeypatch.setattr(Prepared, "__init__", None)
    assert np.array_equal(sparloom.spmm(a, x, changed=True), expected)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("bind", [
    lambda a: partial(sparloom.spmm, a), lambda a: partial(sparloom.spmm, (a.indptr, a.indices, a.data)),
    lambda a: partial(sparloom.spmm, SparseMatrix(Pattern(a.shape, a.indptr, a.indices), a.data)),
    lambda a: sparloom.prepare(a).spmm], ids=["bare", "tuple", "ours", "prepared"])
def test_values_may_change_in_place(bind, reduce):
    a, x = matrix(), dense(200, 8)
    call = bind(a)
    before = call(x, reduce=reduce)
    for factor in (2, 4):
        a.data *= 2
        assert np.array_equal(call(x, reduce=reduce), factor * before)


def test_masked_values_are_refused_though_the_indices_are_known():
    a, x, q = matrix(), dense(200, 8), dense(300, 8)
    sparloom.spmm(a, x)
    masked = (a.indptr, a.indices, np.ma.masked_array(a.data, a.data > 0.5), a.shape)
    ready = sparloom.prepare(a)
    for call in (lambda: sparloom.spmm(masked, x), lambda: sparloom.sddmm(masked, q, x),
                 lambda: sparloom.csr_attention(masked, q, x, x), lambda: ready.spmm(x, values=masked[2])):
        with pytest.raises(TypeError, match=r"values is a masked array: pass values.filled\(0\)"):
            call()


def test_tuples_are_known_again(monkeypatch):
    a, x = matrix(seed=9), dense(200, 8)
    parts = (a.indptr, a.indices, a.data)
    sparloom.spmm(parts, x)
    monkeypatch.setattr(Prepared, "__init__", None)  # nothing is prepared again
    close(SpMM(), a, {"B": x}, sparloom.spmm((a.indptr, a.indices, a.data), x))


def test_rows_out_of_order_are_right_each_time():
    a, x = matrix(seed=3), dense(200, 8)
    expected = sparloom.spmm(a, x)
    row = int(np.argmax(np.diff(a.indptr)))
    shuffled = (a.indptr, a.indices.copy(), a.data.copy())
    there = slice(a.indptr[row], a.indptr[row + 1])
    for array in shuffled[1:]:
        array[there] = array[there][::-1]
    for _ in range(2):
        assert_close(sparloom.spmm(shuffled, x), expected.astype(np.float64), terms=40)
    shuffled[2][there] *= 2
    assert not np.allclose(sparloom.spmm(shuffled, x)[row], expected[row])


@pytest.mark.parametrize("there", [np.int32, np.int64])
def test_rows_put_out_of_order_in_place_are_seen_on_request(there):
    a, x = matrix(seed=3), dense(200, 8)
    row = int(np.argmax(np.diff(a.indptr)))
    parts, part = (a.indptr.astype(there), a.indices.astype(there), a.data.copy()), slice(*a.indptr[row:row + 2])
    expected = sparloom.spmm(parts, x).astype(np.float64)
    for _ in range(2):
        for array in parts[1:]:
            array[part] = array[part][::-1].copy()
        for changed in (True, False):
            assert_close(sparloom.spmm(parts, x, changed=changed), expected, terms=40)


@pytest.mark.parametrize("rows", [300, 20_000])
def test_threads_may_share_what_is_prepared(rows):
    """Results of many rows take memory of others that are gone, never of those that are held."""
    ready, xs = sparloom.prepare(matrix(rows)), [dense(200, 8, seed=seed) for seed in range(16)]
    expected = [ready.spmm(x) for x in xs]
    copies = [each.copy() for each in expected]

    def held(place):
        found = [ready.spmm(xs[place]) for _ in range(3)]
        del found[0]
        found.append(ready.spmm(xs[place]))
        return all(np.array_equal(each, expected[place]) for each in found)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert all(pool.map(held, range(len(xs))))
    assert all(map(np.array_equal, expected, copies))
