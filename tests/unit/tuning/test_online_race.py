"""Online race: winner, cost and end."""

import numpy as np
import pytest

from sparloom.tuning import Guardrail, MeasurementBudget, OnlineRace
from sparloom.tuning.online_race import CLEAR_PAIRS, COLD_SECONDS, MIN_EXTRA_SECONDS
from sparloom.tuning.sparse import CsrPolicy

USUAL = CsrPolicy.online()
EFFORT = MeasurementBudget(candidates=6, repetitions=3, pairs=(5, 12), executions=40, seconds=0.2, short_seconds=0.1e-3)


def raced(usual, *, unit=1e-3, noise=0.0, cold=1.0, seed=0, **changes):
    """Run a race of candidates with these milliseconds; the first call takes `cold` times as long."""
    rng, settings = np.random.default_rng(seed), {
        "baselines": (0,), "effort": EFFORT, "guardrail": Guardrail(alpha=0.95), "runs": 7.0} | changes
    race = OnlineRace(len(usual), **settings)
    while not race.settled:
        first = not race.seconds[race.turn]
        race.record(unit * usual[race.turn] * (cold if first else 1.0) * float(np.exp(noise * abs(rng.normal()))))
        assert sum(map(len, race.seconds)) <= settings["effort"].executions
    return race


def longer(race):
    """Return the extra time of all calls over the baseline, in runs of the baseline."""
    usual = np.median(race.seconds[0])
    return sum(max(0.0, each - usual) for taken in race.seconds for each in taken) / usual


@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize("fastest", range(6))
def test_the_fastest_wins(fastest, noise):
    usual = [1.0, 1.1, 1.05, 1.3, 1.0, 1.2]
    usual[fastest] = 0.7
    race = raced(usual, noise=noise, seed=fastest)
    assert race.winner == fastest
    assert ("accepted" in race.reason) is (fastest > 0)


def test_a_candidate_within_the_margin_does_not_win():
    assert raced([1.0, 0.97, 1.2]).winner == 0
    assert raced([1.0, 0.97, 1.2], guardrail=Guardrail(alpha=0.98)).winner == 1


@pytest.mark.parametrize("settings", [{}, {"effort": USUAL.effort, "runs": USUAL.runs}], ids=["thorough", "usual"])
def test_a_candidate_that_is_faster_once_by_chance_does_not_win(settings):
    wins = sum(raced([1.0] * 4, noise=0.1, seed=seed, **settings).winner > 0 for seed in range(200))
    assert wins <= 10


@pytest.mark.parametrize("fastest", range(6))
def test_the_fastest_wins_with_the_usual_settings(fastest):
    usual = [1.0, 1.1, 1.05, 1.3, 1.0, 1.2]
    usual[fastest] = 0.7
    race = raced(usual, noise=0.03, seed=fastest, effort=USUAL.effort, runs=USUAL.runs)
    assert race.winner == fastest
    assert len(race.paired(race.winner)) >= CLEAR_PAIRS or not fastest


def test_short_calls_have_more_time_than_some_runs():
    race = raced([1.0] + [1.4] * 5, unit=60e-6, effort=USUAL.effort, runs=1.0)
    assert all(race.seconds)
    beyond = sum(max(0.0, each - 60e-6) for taken in race.seconds for each in taken)
    assert 60e-6 < beyond < MIN_EXTRA_SECONDS + 24e-6


def test_few_pairs_suffice_for_a_clear_winner():
    clear, close = (raced([1.0, usual], effort=USUAL.effort, guardrail=USUAL.guardrail, noise=0.01)
                    for usual in (0.7, 0.93))
    assert clear.winner == close.winner == 1
    assert len(clear.paired(1)) < len(close.paired(1))


@pytest.mark.parametrize("seed", range(20))
def test_a_winner_is_not_clear_by_one_interrupted_pair(seed):
    race = OnlineRace(2, effort=USUAL.effort, guardrail=USUAL.guardrail, runs=USUAL.runs)
    interrupted, calls = np.random.default_rng(seed).random(1000) < 0.2, 0
    while not race.settled:
        race.record((1.02 if race.turn else 1.0) * (1e-3 + (0.5e-3 if interrupted[calls] else 0.0)))
        calls += 1
    assert race.winner == 0


def test_a_cold_first_call_is_no_reason_to_have_no_other():
    for beyond, again in ((0.9 * COLD_SECONDS, True), (1.1 * COLD_SECONDS, False)):
        race = OnlineRace(2, effort=USUAL.effort, guardrail=USUAL.guardrail, runs=USUAL.runs)
        race.record(1e-6)
        race.record(1.5e-6 + beyond)
        assert (race.turn == 1) is again


@pytest.mark.parametrize("interrupted", range(5))
def test_interruptions_neither_end_the_race_nor_put_out_the_fastest(interrupted):
    usual, calls = [1.0, 1.1, 0.8, 1.2, 1.05, 1.3], 0
    race = OnlineRace(6, effort=USUAL.effort, guardrail=USUAL.guardrail, runs=USUAL.runs)
    while not race.settled:
        race.record(50e-6 * usual[race.turn] + (0.25e-3 if calls % 5 == interrupted else 0.0))
        calls += 1
    assert race.winner == 2
    assert len(race.paired(2)) >= CLEAR_PAIRS


@pytest.mark.parametrize("others", [[3.0] * 5, [30.0, 0.8], [1.15] * 20, [2.0, 1.5, 1.2, 1.1, 1.05] * 3])
def test_the_extra_time_of_candidates_is_limited(others):
    race = raced([1.0, *others])
    assert longer(race) < 7 + max(others)


def test_a_race_of_long_calls_has_a_limit_in_seconds():
    race = raced([10.0, 13.0, 13.0, 8.0, 13.0], unit=1.0)  # of 0.4 s
    assert sum(map(len, race.seconds)) <= 3
    assert race.winner == 0
    assert "no candidate" in race.reason


def test_the_best_of_several_baselines_must_be_beaten():
    assert raced([1.0, 0.8, 0.78], baselines=(0, 1)).winner == 1
    race = raced([1.0, 0.8, 0.7], baselines=(0, 1))
    assert (race.winner, race.baseline) == (2, 1)
    assert raced([1.0, 0.8, 0.9], baselines=(0, 1)).winner == 1


def test_slow_ones_run_once_and_the_baseline_in_every_round():
    race = raced([1.0, 2.5, 0.8, 0.85])
    assert len(race.seconds[1]) == 1
    assert len(race.seconds[0]) >= len(race.seconds[2]) - 1


def test_cold_first_runs_do_not_decide():
    usual = [1.0, 0.7, 0.9, 1.1]
    assert raced(usual, cold=1.6).winner == 1


def test_only_runs_that_were_taken_in_turn_are_compared():
    drift = iter(range(10**6))  # the machine gets slower from run to run
    race = OnlineRace(3, baselines=(0, 1), effort=EFFORT, guardrail=Guardrail(alpha=0.95), runs=70.0)
    while not race.settled:
        race.record(1e-3 * [2.0, 1.6, 1.0][race.turn] * 1.05 ** next(drift))
    assert (race.winner, race.baseline) == (2, 1)
    ratios = np.divide(race.paired(2), race.paired(1)) * 1.6
    assert np.abs(ratios - 1).max() < 0.11  # two calls apart
    assert ratios.min() < 1 < ratios.max()  # in both orders


def test_the_first_call_after_another_kernel_does_not_count():
    usual, race, last = [1.0, 0.8, 1.2], OnlineRace(
        3, effort=EFFORT, guardrail=Guardrail(alpha=0.95), runs=7.0), 0
    while not race.settled:
        turn = race.turn
        race.record(1e-3 * usual[turn] * (1.0 if turn == last else 1.4))
        last = turn
    assert race.winner == 1
    assert "0.800" in race.reason


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("run", [0, 1, 2, 5])
def test_a_failing_candidate_is_eliminated(place, run):
    usual = [1.0, 0.65, 0.6, 0.65]
    race = OnlineRace(4, baselines=(0, 1), effort=EFFORT, guardrail=Guardrail(alpha=0.95), runs=7.0)
    runs = 0
    while not race.settled:
        if race.turn == place and len(race.seconds[place]) == run:
            race.fail()
        else:
            race.record(1e-3 * usual[race.turn])
        runs += 1
        assert runs < 100
    assert not race.seconds[place]
    assert place not in (race.winner, race.baseline)
    assert race.seconds[race.winner]


def test_the_number_of_runs_is_limited():
    race = raced([1.0] * 40, effort=MeasurementBudget(
        candidates=40, repetitions=30, pairs=(5, 12), executions=40, seconds=0.2))
    assert sum(map(len, race.seconds)) <= 40


def test_one_candidate_alone_is_chosen_at_once():
    race = raced([1.0])
    assert race.winner == 0
    assert sum(map(len, race.seconds)) == 1


def test_the_winner_has_all_turns_afterwards():
    race = raced([1.0, 0.7])
    race.record(0.7)
    assert race.turn == race.winner == 1
    assert race.settled


def test_what_a_candidate_costs_besides_its_calls_is_part_of_the_budget():
    race = OnlineRace(4, effort=USUAL.effort, guardrail=USUAL.guardrail, runs=USUAL.runs)
    race.record(1e-3)
    race.charge(4e-3)  # more than the share of the rounds
    race.record(0.9e-3)
    assert race.settled or set(race._since) == {0}
    assert not race.seconds[2]


@pytest.mark.parametrize("seed", range(40))
def test_a_usual_race_costs_less_than_nine_calls(seed):
    rng = np.random.default_rng(seed)
    usual, binding = 1e-3 * np.array([1.0, *rng.uniform(0.7, 3.0, 3)]), 1e-3 * rng.uniform(0, 1, 4)
    race, bound = OnlineRace(4, effort=USUAL.effort, guardrail=USUAL.guardrail, runs=USUAL.runs), {0}
    while not race.settled:
        turn = race.turn
        if turn not in bound:
            bound.add(turn)
            race.charge(binding[turn])
        race.record(usual[turn])
    beyond = sum(max(0.0, each - 1e-3) for taken in race.seconds for each in taken)
    assert beyond + sum(binding[list(bound - {0})]) < 9e-3


@pytest.mark.parametrize("usual", [
    [1.0, 0.96, 0.95, 1.2], [1.0, 1.03, 1.02, 0.93], [1.0, 0.97, 0.9, 0.91], [1.0, 1.1, 1.3, 1.05],
    [1.0, 0.98, 0.99, 1.005]])
def test_ten_programs_decide_alike_or_for_candidates_that_are_within_three_percent(usual):
    alike = 0
    for seed in range(20):
        winners = []
        for program in range(10):
            rng = np.random.default_rng((seed, program))
            race = OnlineRace(4, effort=USUAL.effort, guardrail=USUAL.guardrail, runs=USUAL.runs)
            while not race.settled:
                interrupted = rng.exponential(0.3) if rng.random() < 0.04 else 0.0
                race.record(1e-3 * usual[race.turn] * float(np.exp(0.02 * rng.normal())) * (1 + interrupted))
            winners.append(race.winner)
        seconds = [usual[winner] for winner in winners]
        most = max(winners.count(winner) for winner in winners)
        alike += most >= 9 or max(seconds) <= 1.03 * min(seconds)
    assert alike >= 19


def test_the_loser_of_a_duel_is_known():
    assert raced([1.0, 0.7, 2.5]).loser == 0
    assert raced([1.0, 1.01, 2.5]).loser == 1
    assert raced([1.0, 1.5, 2.5]).loser is None
    assert raced([1.0]).loser is None
