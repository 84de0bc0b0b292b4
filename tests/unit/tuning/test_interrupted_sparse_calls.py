"""Calls interrupted by an exception at any point, by another call of the same thread, or by other threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from csr_operands import close, dense, matrix

import sparloom
from sparloom.jit import NativeCall
from sparloom.ops import SpMM
from sparloom.platforms.cpu_kernels import SpmmKernels
from sparloom.tuning import PlanCache
from sparloom.tuning.sparse import CsrDecider

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]



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
    "allocation": (SpmmKernels, "result"), "pointing": (SpmmKernels, "rebind"), "run": (NativeCall, "__call__"),
    "binding": (SpmmKernels, "bind"), "choosing": (CsrDecider, "decide"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_call_that_interrupts_another_one_is_right_and_so_is_the_other(tmp_path, monkeypatch, place):
    a, one, two = matrix(5000, 200), dense(200, 16), dense(200, 16, seed=2)
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), threads=2, tune=True)
    wanted = [a.astype(np.float64) @ x for x in (one, two)]
    inner = []
    runs = interrupting(monkeypatch, *PLACES[place], lambda: inner.append(ready.spmm(two)))
    for _ in range(3):
        np.testing.assert_allclose(ready.spmm(one), wanted[0], atol=1e-4)
    for result in inner:
        np.testing.assert_allclose(result, wanted[1], atol=1e-4)
    assert runs


def test_threads_that_share_a_matrix_get_their_own_results(tmp_path):
    a = matrix(5000, 200)
    ready = sparloom.prepare(a, cache=PlanCache(tmp_path), threads=2, tune=True)
    operands = [dense(200, 16, seed=seed) for seed in range(4)]

    def several(x):
        return [ready.spmm(x) for _ in range(30)]

    with ThreadPoolExecutor(4) as pool:
        for x, results in zip(operands, pool.map(several, operands), strict=True):
            for result in results[::10]:
                close(SpMM(), a, {"B": x}, result)
