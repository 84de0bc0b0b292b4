"""Calls interrupted by an exception at any point, by another call of the same thread, or by other threads."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from csr_operands import close, dense, matrix

import sparloom
from sparloom.jit import NativeCall, ResultPool
from sparloom.ops import SpMM
from sparloom.platforms.cpu_kernels import SparseCall, SpmmKernels
from sparloom.tuning import OnlineRace, PlanCache, Rates, machine_rates, put_rates
from sparloom.tuning.sparse import CpuBackend, CsrDecider, CsrPolicy, OnlineReplay, Prepared, ProbeLog

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

A, X = matrix(), dense(200, 16)
EFFORT = replace(CsrPolicy.online().effort, candidates=3, repetitions=2, pairs=(2, 3))
POLICY = CsrPolicy.online(effort=EFFORT, runs=1e6)
MOST = 40  # calls until a decision
FILES = frozenset(str(Path(sparloom.__file__).parent / name) for name in (
    "measure/machine.py", "tuning/racing.py", "tuning/online_race.py", "tuning/cache.py", "tuning/records.py",
    "tuning/sparse/prepared.py", "tuning/sparse/replay.py", "tuning/sparse/tuner.py", "tuning/sparse/backend.py"))


@pytest.fixture
def paced(monkeypatch):
    """Fake runs of about a millisecond, longer for earlier candidates, so that decisions are deterministic."""
    def timed(call, runs):
        call()
        return 1e-3

    monkeypatch.setattr(CpuBackend, "timer", lambda self, clock: timed)


@pytest.fixture(scope="module")
def rates(tmp_path_factory) -> Rates:
    """Rates of this machine, measured once."""
    return machine_rates(PlanCache(tmp_path_factory.mktemp("rates")), threads=2, kernels="sparse")


@pytest.fixture
def cache(tmp_path, rates) -> PlanCache:
    """Make a cache without decisions in which only candidates have to be measured."""
    return with_rates(tmp_path, rates)


def with_rates(folder: Path, rates: Rates) -> PlanCache:
    made = PlanCache(folder)
    put_rates(made, rates, threads=2, kernels="sparse")
    return made


class Points:
    """The points of calls at which the interpreter runs signal handlers, and an exception at one of them.

    These are the beginning of a Python function, and where a function, or one in C, has returned.
    """

    def __init__(self, at: int, exception: type[BaseException]) -> None:
        self.passed: list[str] = []
        self._at, self._exception = at, exception

    @contextmanager
    def watched(self) -> Iterator[None]:
        sys.setprofile(self._step)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _step(self, frame: FrameType, event: str, argument: Any) -> None:
        code: CodeType = frame.f_code
        if event in ("call", "return", "c_return") and code.co_filename in FILES and not (
                code.co_qualname.startswith(("DiskCache.", "_write", "_checked"))):  # tested by test_disk_cache.py
            called = getattr(argument, "__name__", "") if event == "c_return" else ""
            self.passed.append(f"{code.co_qualname}:{frame.f_lineno} {event} {called}")
            if len(self.passed) == self._at:
                sys.setprofile(None)
                raise self._exception


def run(calls: int, call: Callable[[], Any], at: int, exception: type[BaseException]) -> Points:
    """Call this many times, or until the exception is raised."""
    points = Points(at, exception)
    try:
        with points.watched():
            for _ in range(calls):
                call()
    except exception:
        pass
    return points


@pytest.mark.parametrize(("exception", "step"), [(KeyboardInterrupt, 3), (MemoryError, 30)])
def test_an_exception_at_any_point_leaves_a_matrix_that_computes_and_decides(tmp_path, rates, paced, exception, step):
    def prepared(name: str) -> Prepared:
        return sparloom.prepare(A, cache=with_rates(tmp_path / name, rates), policy=POLICY, threads=2)

    ready = prepared("all")
    passed = run(30, lambda: ready.spmm(X), 0, exception).passed
    assert ready.decided("spmm", B=X)
    first = {point: at for at, point in reversed(list(enumerate(passed, 1)))}
    last = {point: at for at, point in enumerate(passed, 1)}
    assert len(first) > 200
    for at in sorted({*first.values(), *last.values()})[::step]:
        ready = prepared(str(at))
        points = run(30, lambda ready=ready: ready.spmm(X), at, exception)
        for _ in range(MOST):
            result = ready.spmm(X)
            if ready.decided("spmm", B=X) and not isinstance(next(iter(ready._replays.values())), OnlineReplay):
                break
        else:
            pytest.fail(f"{points.passed[-1]}: no decision after {MOST} calls")
        close(SpMM(), A, {"B": X}, result)
        close(SpMM(), A, {"B": X}, ready.spmm(X))


def test_a_library_that_fails_on_a_sample_is_left_out(tmp_path, rates, caplog):
    def broken(matrix, threads):
        raise RuntimeError("no such format")

    a, x = matrix(20000, 1500), dense(1500, 16)
    for policy in (CsrPolicy.online(runs=1e6), CsrPolicy(calibrate="full")):
        ready = sparloom.prepare(a, cache=with_rates(tmp_path / policy.calibrate, rates), policy=policy, threads=2,
                                 libraries={"spmm": {"broken": broken}})
        while not ready.decided("spmm", B=x):
            result = ready.spmm(x)
        assert ready.plan("spmm", B=x).choice.config
        close(SpMM(), a, {"B": x}, result)
    assert "no such format" in caplog.text


def interrupting(monkeypatch, owner: type, name: str, call: Callable[[], None]) -> list[int]:
    """Run a call, but not within itself, at the beginning and the end of a method: what a signal handler may do.

    Returns:
        A list that grows with every run.
    """
    method, runs, running = getattr(owner, name), [], []

    def interrupt() -> None:
        if not running:
            running.append(1)
            call()
            running.clear()
            runs.append(1)

    def wrapped(self, *args, **kwargs):
        interrupt()
        result = method(self, *args, **kwargs)
        interrupt()
        return result

    monkeypatch.setattr(owner, name, wrapped)
    return runs


PLACES = {
    "allocation": (ResultPool, "empty"), "buffers": (ResultPool, "_buffer"), "pointing": (SpmmKernels, "rebind"),
    "run": (NativeCall, "__call__"), "counting": (OnlineRace, "record"), "decision": (Prepared, "_store"),
    "lines": (ProbeLog, "_append"), "binding": (SpmmKernels, "bind"), "choosing": (CsrDecider, "candidates"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_call_that_interrupts_another_one_is_right_and_so_is_the_other(cache, monkeypatch, place):
    a, one, two = matrix(5000, 200), dense(200, 16), dense(200, 16, seed=2)
    ready = sparloom.prepare(a, cache=cache, threads=2, libraries={}, policy=POLICY)
    wanted = [a.astype(np.float64) @ x for x in (one, two)]
    inner = []

    def call() -> None:
        inner[:] = [ready.spmm(two)]
        if ready.decided("spmm", B=one):
            inner.append(ready.spmm(two))

    runs = interrupting(monkeypatch, *PLACES[place], call)
    for _ in range(25):
        outer = ready.spmm(one)
        np.testing.assert_allclose(outer, wanted[0], atol=1e-4)
        for result in inner:
            np.testing.assert_allclose(result, wanted[1], atol=1e-4)
    assert runs
    while not ready.decided("spmm", B=one):
        ready.spmm(one)


@pytest.mark.parametrize("place", ["pointing", "run", "counting"])
def test_a_plan_requested_during_a_call_is_made(cache, monkeypatch, place):
    ready = sparloom.prepare(matrix(5000, 200), cache=cache, threads=2, libraries={}, policy=POLICY)
    x = dense(200, 16)
    plans = []
    interrupting(monkeypatch, *PLACES[place], lambda: plans.append(ready.plan("spmm", B=x)))
    for _ in range(4):
        ready.spmm(x)
    assert plans[0] is ready.plan("spmm", B=x)


def test_threads_that_share_a_matrix_get_their_own_results(cache):
    a = matrix(5000, 200)
    ready = sparloom.prepare(a, cache=cache, threads=2)
    operands = [dense(200, 16, seed=seed) for seed in range(4)]

    def several(x):
        return [ready.spmm(x) for _ in range(30)]

    with ThreadPoolExecutor(4) as pool:
        for x, results in zip(operands, pool.map(several, operands), strict=True):
            for result in results[::10]:
                close(SpMM(), a, {"B": x}, result)


def test_values_of_a_call_that_was_abandoned_are_not_read(monkeypatch):
    a, x = matrix(), dense(200, 16)
    ready = sparloom.prepare(a, cache=PlanCache(None), threads=1, libraries={}, policy=POLICY)
    own = np.ones(a.nnz, np.float32)
    while not ready.decided("spmm", B=x):
        ready.spmm(x, values=own)
    set_attribute = SparseCall.__setattr__

    def abandoned(call, name, value):
        if name == "_values" and value is not None:
            raise KeyboardInterrupt
        set_attribute(call, name, value)

    monkeypatch.setattr(SparseCall, "__setattr__", abandoned)
    with pytest.raises(KeyboardInterrupt):
        ready.spmm(x, values=np.zeros(a.nnz, np.float32))
    monkeypatch.undo()
    ones = scipy.sparse.csr_array((own, a.indices, a.indptr), shape=a.shape)
    close(SpMM(), ones, {"B": x}, ready.spmm(x, values=own))
