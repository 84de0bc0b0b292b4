"""Measuring where it is asked for: `tune`, `prepare(tune=True)`, `with tuning()`; everything else measures nothing."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
from csr_operands import close, dense, matrix

import sparloom
from sparloom.ops import SpMM
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.sparse import CsrDecider

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]


@pytest.fixture
def decided(monkeypatch):
    """List the operations that are measured."""
    measured, decide = [], CsrDecider.decide
    monkeypatch.setattr(CsrDecider, "decide", lambda self, given: measured.append(self.op.name) or decide(self, given))
    return measured


def test_calls_and_prepared_matrices_measure_nothing(decided):
    a, x = matrix(5000, 200), dense(200, 64)
    ready = sparloom.prepare(a)
    for _ in range(30):
        sparloom.spmm(a, x)
        ready.spmm(x)
    assert ready.plan("spmm", B=x).decision.origin == "rule"
    assert decided == []


@pytest.mark.parametrize("op", ["spmm", "spmm_max", "sddmm", "attention"])
def test_a_tuned_operation_is_measured_once_and_used_by_later_calls(decided, op):
    a = matrix(5000, 200)
    plan = sparloom.tune(a, op, width=16, heads=2)
    assert plan.decision.origin == "measured"
    assert len(plan.decision.trials) > 2
    assert decided == [op]
    again = sparloom.tune(a, op, width=16, heads=2)
    assert (again.choice, again.decision.from_cache) == (plan.choice, True)
    x, q = dense(200, 16), dense(5000, 16)
    heads = dense(5000, 2, 16), dense(200, 2, 16), dense(200, 2, 16)
    call = {"spmm": lambda: sparloom.spmm(a, x), "spmm_max": lambda: sparloom.spmm(a, x, reduce="max"),
            "sddmm": lambda: sparloom.sddmm(a, q, x), "attention": lambda: sparloom.csr_attention(a, *heads)}[op]
    first = call()
    assert np.array_equal(call(), first)
    again = sparloom.prepare(a).plan(op, **{
        "spmm": {"B": x}, "spmm_max": {"B": x}, "sddmm": {"B": q, "C": x},
        "attention": dict(zip("QKV", heads, strict=True))}[op])
    assert again.choice == plan.choice
    assert again.decision.from_cache
    assert decided == [op]


def test_a_tuned_matrix_follows_its_values_and_reported_changes():
    a, x = matrix(5000, 200), dense(200, 16)
    sparloom.tune(a, "spmm", width=16)
    a.data[:] = 2 * a.data
    close(SpMM(), a, {"B": x}, sparloom.spmm(a, x))
    other = matrix(5000, 200, seed=3)[:, ::-1].tocsr()
    other.sum_duplicates()
    count = min(a.nnz, other.nnz)
    a.indptr[:], a.indices[:count] = np.minimum(other.indptr, count), other.indices[:count]
    a.indptr[-1] = a.nnz
    changed = scipy.sparse.csr_array((a.data, a.indices, a.indptr), shape=a.shape)
    np.testing.assert_allclose(sparloom.spmm(a, x, changed=True), changed @ x, rtol=1e-3, atol=1e-3)


def test_within_a_block_whatever_is_new_is_measured(decided):
    a, x = matrix(5000, 200), dense(200, 24)
    with sparloom.tuning():
        for _ in range(3):
            close(SpMM(), a, {"B": x}, sparloom.spmm(a, x))
        close(SpMM(), a, {"B": x}, sparloom.spmm(a.tocsc(), x))
        sparloom.sddmm(a, dense(5000, 24), x)
    assert decided == ["spmm", "sddmm"]  # the same pattern in CSC finds the stored decision
    sparloom.spmm(matrix(400, 200), x)
    assert decided == ["spmm", "sddmm"]


def test_an_unknown_operation_is_refused():
    with pytest.raises(ValueError, match="op='spnn': give one of spmm, spmm_max, sddmm, attention"):
        sparloom.tune(matrix(), "spnn")


SCRIPT = """
import hashlib, sys
import numpy as np, scipy.sparse, sparloom
a = scipy.sparse.random(9000, 4000, 0.01, format="csr", dtype=np.float32, random_state=0)
x = np.random.default_rng(0).random((4000, 48), dtype=np.float32)
digest = lambda array: hashlib.sha256(array.tobytes()).hexdigest()
plain = {digest(sparloom.spmm(a, x, threads=2)) for _ in range(20)}
ready = sparloom.prepare(a, threads=2)
prepared = {digest(ready.spmm(x)) for _ in range(20)}
assert len(plain) == len(prepared) == 1
print(*plain, *prepared)
"""


def test_results_have_the_same_bits_in_every_call_and_every_process():
    results = {subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
               for _ in range(2)}
    assert len(results) == 1


def test_a_library_that_fails_is_left_out(tmp_path, caplog):
    def broken(matrix, threads):
        raise RuntimeError("no such format")

    a, x = matrix(20000, 1500), dense(1500, 16)
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), tune=True, threads=2, libraries={"spmm": {"broken": broken}})
    close(SpMM(), a, {"B": x}, ready.spmm(x))
    assert ready.plan("spmm", B=x).choice.config
    assert "no such format" in caplog.text
