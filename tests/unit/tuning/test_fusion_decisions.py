"""Decisions on a simulated clock: rule, shortlist, guardrail, and reported cost."""

import numpy as np
import pytest

from sparloom.ops import GemmSpmm
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import FusionConfig, MeasurementBudget, Problem
from sparloom.tuning.fusion import Decider

N = 4000


def problem(reach: int) -> Problem:
    """Make a problem in which every row reads 5 nearby columns."""
    columns = np.clip(np.arange(N)[:, None] + np.array([-reach, -1, 0, 1, reach]), 0, N - 1)
    pattern = Pattern.from_coo(np.repeat(np.arange(N), 5), columns.ravel(), (N, N))
    return Problem.of(GemmSpmm(), GemmSpmm().operands(SparseMatrix(pattern, np.ones(pattern.nnz)), 64, seed=0))


class Machine:
    """Machine with given seconds for fused and unfused loops, slightly more for variants that do not stream D."""

    def __init__(self, fused: float, unfused: float) -> None:
        self.seconds = {True: fused, False: unfused}
        self.now, self.runs = 0.0, 0

    def clock(self) -> float:
        return self.now

    def bind(self, choices):
        return [lambda choice=choice: self._run(choice) for choice in choices]

    def _run(self, choice: FusionConfig) -> None:
        self.runs += 1
        self.now += self.seconds[choice.fused] * (1.0 if choice.variant.stream else 1.1)


class Model:
    """Model that prefers large tiles, and variants that stream D."""

    def score(self, problem, configs):
        return np.array([-config["ct_size"] - config["cache"] - config["stream"] for config in configs], np.float64)


def decider(problem: Problem, machine: Machine, **options) -> Decider:
    return Decider(problem, machine.bind, 2, Model, 1e5, clock=machine.clock, **options)


def test_fused_loops_that_are_faster_are_taken():
    machine = Machine(fused=0.008, unfused=0.010)
    deciding = decider(problem(10), machine)
    unfused = deciding.never()
    choice, decision = deciding.auto(unfused)
    assert not unfused[0].fused
    assert unfused[0].variant.stream
    assert choice.fused
    assert choice.variant.stream
    assert decision.reason.startswith("accepted: 0.800")


@pytest.mark.parametrize("fused", [0.0098, 0.012])
def test_fused_loops_that_are_not_faster_are_refused(fused):
    deciding = decider(problem(10), Machine(fused=fused, unfused=0.010))
    unfused = deciding.never()
    choice, decision = deciding.auto(unfused)
    assert choice == unfused[0]
    assert decision.origin == "measured"
    assert decision.reason.startswith("refused")


def test_every_run_is_counted_and_bounded():
    machine = Machine(fused=0.008, unfused=0.010)
    deciding = decider(problem(10), machine, effort=MeasurementBudget(executions=30))
    _, decision = deciding.auto(deciding.never())
    assert decision.executions == machine.runs <= 3 * 30
    assert decision.seconds == pytest.approx(machine.now)
    assert sum(len(trial.seconds) for trial in decision.trials) < decision.executions


def test_nothing_is_measured_where_next_to_nothing_can_be_fused():
    machine = Machine(fused=0.001, unfused=0.010)
    deciding = decider(problem(1999), machine)
    unfused = deciding.never()
    before = machine.runs
    choice, decision = deciding.auto(unfused)
    assert choice == unfused[0]
    assert machine.runs == before
    assert decision.origin == "rule"
    assert decision.reason == "0.1% of loop two could be fused"


def test_nothing_is_measured_where_all_lies_in_caches():
    machine = Machine(fused=0.001, unfused=0.010)
    small = Decider(problem(10), machine.bind, 2, Model, 1e9, clock=machine.clock)
    choice, decision = small.auto(small.never())
    assert not choice.fused
    assert "lie in the caches of the cores" in decision.reason


def test_always_takes_a_fused_candidate():
    choice, decision = decider(problem(10), Machine(fused=0.012, unfused=0.010)).always()
    assert choice.fused
    assert choice.ct_size == 16384
    assert len(decision.trials) <= MeasurementBudget().candidates
