"""Measurements of a decision on a clock of our own: who drops out, when it ends, what is counted."""

import pytest

from sparloom.dispatch import Effort, Guardrail, duel, race
from sparloom.dispatch.csr import CsrPolicy
from sparloom.dispatch.racing import Race


class Clock:
    """Seconds that pass only while a call runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs = 0

    def __call__(self) -> float:
        return self.now

    def call(self, *seconds: float):
        """A call that takes these seconds in turn, the last ones for ever."""
        left = list(seconds)

        def run() -> None:
            self.runs += 1
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_fastest_wins_and_the_slow_drop_out(clock):
    run = race([clock.call(0.013), clock.call(0.010), clock.call(0.0101)], effort=Effort(), clock=clock)
    assert run.winner == 1
    assert [len(taken) for taken in run.seconds] == [1, 5, 5]
    assert run.executions == clock.runs == 3 + 1 + 5 + 5


def test_the_hopeless_run_once_but_for_the_first_which_bears_what_all_need(clock):
    run = race([clock.call(0.09, 0.0099), clock.call(0.01), clock.call(0.08)], effort=Effort(), clock=clock)
    assert run.winner == 0
    assert [len(taken) for taken in run.seconds] == [5, 5, 1]
    assert run.executions == clock.runs


def test_who_is_interrupted_once_stays(clock):
    run = race([clock.call(0.011), clock.call(0.010, 0.1, 0.010)], effort=Effort(), clock=clock)
    assert run.winner == 1


def test_executions_are_bounded(clock):
    calls = [clock.call(0.01 + place * 1e-5) for place in range(30)]
    run = race(calls, effort=Effort(candidates=30, executions=40), clock=clock)
    assert clock.runs == run.executions <= 40
    assert run.seconds[-1] == ()


def test_seconds_are_bounded_but_two_are_compared(clock):
    run = race([clock.call(2.0), clock.call(1.9), clock.call(1.0)], effort=Effort(seconds=0.5), clock=clock)
    assert [len(taken) for taken in run.seconds] == [1, 1, 0]
    assert run.winner == 1
    last = duel([(clock.call(2.0), clock.call(1.9))], decided=lambda _: False, effort=Effort(seconds=0.5), clock=clock)
    assert [len(taken) for taken in last.seconds] == [1, 1]


def test_short_runs_are_repeated(clock):
    run = race([clock.call(1e-4), clock.call(1e-4)], effort=Effort(short_seconds=1e-3), clock=clock)
    assert clock.runs == 2 + 2 * 5 * 10
    assert run.executions == 12


def test_a_duel_ends_when_it_is_decided(clock):
    effort = Effort(pairs=(3, 9))
    calls = clock.call(0.01), clock.call(0.02)
    assert len(duel([calls], decided=lambda _: True, effort=effort, clock=clock).seconds[0]) == 3
    assert len(duel([calls], decided=lambda _: False, effort=effort, clock=clock).seconds[0]) == 9


def test_no_effort_is_refused():
    with pytest.raises(ValueError, match="must be above 0"):
        Effort(executions=0)


@pytest.mark.parametrize(("challenger", "accepted"), [
    ([0.9] * 5, True),
    ([0.98] * 5, False),  # faster, but by less than it must be
    ([0.5, 1.4, 0.9, 1.3, 0.6], False),  # faster, but not beyond doubt
    ([1.2] * 5, False),
])
def test_the_guardrail_accepts_what_is_faster_beyond_doubt(challenger, accepted):
    assert Guardrail().judge(challenger, [1.0] * 5).accepted is accepted


def test_the_guardrail_believes_least_seconds_too():
    verdict = Guardrail().judge([0.9] * 5, [1.0, 1.0, 1.0, 0.9, 1.0])
    assert not verdict.accepted
    assert verdict.ratio == 1.0
    assert verdict.text == "refused: 1.000 of the seconds of the baseline, standard error 0.000"


def test_the_winner_is_among_those_measured_most_often():
    assert Race(((0.5,), (1.0, 1.1), (0.9, 1.2)), 5).winner == 2


@pytest.mark.parametrize("policy", [CsrPolicy(), CsrPolicy.online()], ids=["sample", "online"])
@pytest.mark.parametrize(("share", "accepted"), [(0.94, True), (0.96, False), (1.0, False), (1.04, False)])
def test_a_sparse_kernel_must_be_a_twentieth_faster_than_the_baseline(policy, share, accepted):
    """Without noise the margin alone decides."""
    assert policy.guardrail.judge([share] * 8, [1.0] * 8).accepted is accepted


def test_the_margin_is_kept_by_one_standard_error_of_the_median():
    """Repetitions that scatter by a tenth, their median shifted to just inside and just outside of the limit."""
    scattered = [0.85, 0.95, 1.05] * 9
    standard_error = Guardrail().judge(scattered, [1.0] * 27).noise
    assert standard_error == pytest.approx(1.2533 * 1.4826 * 0.1 / 27**0.5, rel=1e-6)
    for distance, accepted in ((0.9, False), (1.1, True)):
        shifted = [0.97 - distance * standard_error - 0.95 + each for each in scattered]
        assert Guardrail().judge(shifted, [1.0] * 27).accepted is accepted
