"""Races on a simulated clock: elimination, limits and counts."""

import pytest

from sparloom.tuning import Guardrail, MeasurementBudget, duel, race
from sparloom.tuning.sparse import CsrPolicy


class Clock:
    """Clock that advances only while a call runs."""

    def __init__(self) -> None:
        self.now = 128.0  # a clock begins anywhere
        self.runs = 0

    def __call__(self) -> float:
        return self.now

    def call(self, *seconds: float):
        """Make a call that takes these seconds in turn, then the last one repeatedly."""
        left = list(seconds)

        def run() -> None:
            self.runs += 1
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_fastest_wins_and_the_slow_drop_out(clock):
    run = race([clock.call(0.013), clock.call(0.010), clock.call(0.0101)], effort=MeasurementBudget(), clock=clock)
    assert run.winner == 1
    assert [len(taken) for taken in run.seconds] == [1, 5, 5]
    assert run.executions == clock.runs == 3 + 1 + 5 + 5


def test_far_slower_candidates_run_once_except_the_first(clock):
    run = race([clock.call(0.09, 0.0099), clock.call(0.01), clock.call(0.08)], effort=MeasurementBudget(), clock=clock)
    assert run.winner == 0
    assert [len(taken) for taken in run.seconds] == [5, 5, 1]
    assert run.executions == clock.runs == 13
    assert run.seconds[2] == pytest.approx((0.08,))


@pytest.mark.parametrize(("slower", "repetitions"), [(1.3, 1), (1.15, 2), (1.08, 3), (1.03, 5)])
def test_a_candidate_behind_by_an_nth_of_the_tolerance_is_eliminated_after_n_repetitions(clock, slower, repetitions):
    run = race([clock.call(1.0), clock.call(slower)], effort=MeasurementBudget(seconds=1000.0), clock=clock)
    assert [len(taken) for taken in run.seconds] == [5, repetitions]


@pytest.mark.parametrize(("first", "started"), [(0.45, True), (0.5, True), (0.55, False)])
def test_the_third_is_started_within_a_third_of_the_seconds(clock, first, started):
    run = race([clock.call(first)] * 3, effort=MeasurementBudget(repetitions=1, seconds=3.0), clock=clock)
    assert bool(run.seconds[2]) is started


@pytest.mark.parametrize(("limits", "repetitions"), [
    ({"executions": 7}, 2), ({"executions": 8}, 3), ({"seconds": 7.5}, 3), ({"seconds": 8.0}, 4)])
def test_a_round_begins_within_the_limits(clock, limits, repetitions):
    effort = MeasurementBudget(**{"executions": 1000, "seconds": 1000.0, **limits})
    run = race([clock.call(1.0)] * 2, effort=effort, clock=clock)
    assert [len(taken) for taken in run.seconds] == [repetitions] * 2


def test_a_candidate_that_fails_is_left_out_and_the_first_may_not(clock, caplog):
    def fails() -> None:
        raise RuntimeError("no such instruction")

    run = race([clock.call(1.0), fails, clock.call(0.98)], effort=MeasurementBudget(seconds=1000.0), clock=clock)
    assert [len(taken) for taken in run.seconds] == [5, 0, 5]
    assert caplog.messages == ["candidate 1 fails and is left out: RuntimeError('no such instruction')"]
    with pytest.raises(RuntimeError, match="no such instruction"):
        race([fails, clock.call(1.0)], effort=MeasurementBudget(), clock=clock)


def test_repetitions_are_mean_seconds_of_as_many_runs_as_are_short(clock):
    effort = MeasurementBudget(repetitions=2, seconds=1000.0, short_seconds=0.5)
    run = race([clock.call(0.125)], effort=effort, clock=clock)
    assert run.seconds == ((0.125, 0.125),)
    assert (clock.runs, run.executions) == (1 + 2 * 4, 3)


@pytest.mark.parametrize(("limits", "pairs"), [
    ({"executions": 11}, 4), ({"executions": 12}, 5), ({"seconds": 7.5}, 3), ({"seconds": 8.0}, 4)])
def test_a_duel_ends_at_its_limits_and_the_two_begin_in_turn(clock, limits, pairs):
    order, seen = [], []

    def first() -> None:
        order.append(0)
        clock.now += 1.0

    def second() -> None:
        order.append(1)
        clock.now += 1.0

    effort = MeasurementBudget(**{"pairs": (1, 10), "executions": 1000, "seconds": 1000.0, **limits})
    met = duel([(first, second)], decided=lambda taken: seen.append(taken.seconds) or False, effort=effort, clock=clock)
    assert [len(taken) for taken in met.seconds] == [pairs, pairs]
    assert met.seconds == ((1.0,) * pairs,) * 2
    assert order == [0, 1, *([1, 0, 0, 1] * 5)[:2 * pairs]]
    assert met.executions == len(order)
    assert [len(taken[0]) for taken in seen] == [*range(1, pairs)]


def test_seconds_are_bounded_but_two_are_compared(clock):
    run = race([clock.call(2.0), clock.call(1.9), clock.call(1.0)], effort=MeasurementBudget(seconds=0.5), clock=clock)
    assert [len(taken) for taken in run.seconds] == [1, 1, 0]
    assert run.winner == 1
    last = duel([(clock.call(2.0), clock.call(1.9))], decided=lambda _: False,
                effort=MeasurementBudget(seconds=0.5), clock=clock)
    assert [len(taken) for taken in last.seconds] == [1, 1]


def test_a_duel_ends_when_it_is_decided(clock):
    effort = MeasurementBudget(pairs=(3, 9))
    calls = clock.call(0.01), clock.call(0.02)
    assert len(duel([calls], decided=lambda _: True, effort=effort, clock=clock).seconds[0]) == 3
    assert len(duel([calls], decided=lambda _: False, effort=effort, clock=clock).seconds[0]) == 9


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


@pytest.mark.parametrize(("policy", "share", "accepted"), [
    (CsrPolicy(), 0.94, True), (CsrPolicy(), 0.96, False), (CsrPolicy(), 1.0, False), (CsrPolicy(), 1.04, False)])
def test_a_sparse_kernel_must_be_faster_than_the_baseline_by_a_margin(policy, share, accepted):
    """By a twentieth; without noise only the margin decides."""
    assert policy.guardrail.judge([share] * 8, [1.0] * 8).accepted is accepted


def test_the_margin_is_kept_by_one_standard_error_of_the_median():
    """Repetitions that scatter by a tenth, their median shifted to just inside and just outside of the limit."""
    scattered = [0.85, 0.95, 1.05] * 9
    standard_error = Guardrail().judge(scattered, [1.0] * 27).noise
    assert standard_error == pytest.approx(1.2533 * 1.4826 * 0.1 / 27**0.5, rel=1e-6)
    for distance, accepted in ((0.9, False), (1.1, True)):
        shifted = [0.97 - distance * standard_error - 0.95 + each for each in scattered]
        assert Guardrail().judge(shifted, [1.0] * 27).accepted is accepted
