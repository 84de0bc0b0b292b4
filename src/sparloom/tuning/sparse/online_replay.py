"""Calls of a program that decide how the calls after them run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from statistics import median
from typing import Any

from sparloom.ops import Operands
from sparloom.tuning.decision import Decision, Trial
from sparloom.tuning.load import LoadWatch
from sparloom.tuning.sparse.contest import CsrChoice, FewRows
from sparloom.tuning.sparse.decide import CsrDecider
from sparloom.tuning.sparse.online import OnlineRace
from sparloom.tuning.sparse.replay import Replay, TimedReplay

__all__ = ["OnlineReplay"]

log = logging.getLogger(__name__)

ALONE = 2  # calls before the race
SHORT = 10e-6  # seconds of a run, most of which are not the kernel's

Settle = Callable[[CsrChoice, Decision, Replay, str], None]
"""Takes what was decided, why, what runs it, and why the machine was busy meanwhile, "" where it was not."""


class OnlineReplay:
    """Computes each call by the candidate whose turn it is, until one is chosen.

    The first two run the safe configuration, as many programs make no more; they also say how long a call is. Then the
    race begins. A winner's result is compared with the baseline's before it is chosen. A candidate that fails is out.
    On a busy machine no library is chosen: one with a single thread is less held up there than a kernel with all.
    Where an exception, such as Ctrl-C, comes while a call is counted, the next call begins the race anew.

    Args:
        make: what runs a choice.
        settle: is called once.
        watch: makes what tells whether the machine is busy.
    """

    def __init__(
        self, decider: CsrDecider, make: Callable[[CsrChoice], TimedReplay], settle: Settle,
        watch: Callable[[], LoadWatch],
    ) -> None:
        self._decider, self._make, self._settle, self._watching = decider, make, settle, watch
        self._timer = decider.where.timer(decider.clock)
        self._restart()

    def _restart(self) -> None:
        """Forget all calls."""
        self._alone: list[float] = []  # seconds of calls before the race
        self._choices: list[CsrChoice] = []
        self._arms: dict[int, TimedReplay] = {}
        self._race: OnlineRace | None = None
        self._watch: LoadWatch | None = None  # from the second call on, when all threads have started
        self._beside = 0.0  # seconds that were not those of calls
        self._counting = False  # whether some of the above is changed and some is not yet

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Compute."""
        if self._counting:  # the call before was abandoned by an exception
            self._restart()
        start = self._decider.clock()
        if len(self._alone) < ALONE:
            return self._begun(operands, out)
        race = self._race or self._enter(operands)
        turn = race.turn
        self._watch.begin()
        try:
            result, seconds = self._arm(turn).timed(operands, out, self._timer)
        except Exception as error:
            if turn == 0:
                raise
            result = self._arm(0)(operands, out)  # which raises where it is the operands that are wrong
            log.warning("%s by %s fails: %r", self._decider.op.name, self._choices[turn], error)
            self._counting = True
            race.fail()
            self._counting = False
            return result
        self._watch.end(seconds)
        self._counting = True
        race.record(seconds)
        wrong = self._wrong(operands, result) if race.settled and turn == race.winner else ""
        self._beside += self._decider.clock() - start - seconds
        if race.settled and turn == race.winner:
            self._end(wrong)
        self._counting = False
        return self._arm(race.rival)(operands, out) if wrong else result

    def _begun(self, operands: Operands, out: Any | None) -> Any:
        """Run the safe configuration; where that is short, settle for it."""
        if not self._choices:
            self._choices = [CsrChoice(config=self._decider.where.safe(self._decider.op, operands).key)]
        arm = self._arm(0)
        if self._watch is not None:
            self._watch.begin()
        result, seconds = arm.timed(operands, out, self._timer)
        if self._watch is not None:
            self._watch.end(seconds)
        self._counting = True
        self._alone.append(seconds)
        if seconds < SHORT:
            reason = f"a run of {1e6 * seconds:.1f} us is too short for a race"
            self._settle(self._choices[0], Decision("rule", reason, executions=len(self._alone)), arm, "")
        elif self._watch is None:
            self._watch = self._watching()
        self._counting = False
        return result

    def _enter(self, operands: Operands) -> OnlineRace:
        policy = self._decider.policy
        choices, baselines = self._decider.entrants(operands, min(self._alone), self._watch.held_up)
        self._counting = True
        self._choices = choices
        self._race = OnlineRace(len(choices), baselines=baselines, effort=policy.effort,
                                guardrail=policy.guardrail, runs=policy.runs)
        self._counting = False
        return self._race

    def _arm(self, place: int) -> TimedReplay:
        if place not in self._arms:
            self._arms[place] = self._make(self._choices[place])
        return self._arms[place]

    def _wrong(self, operands: Operands, result: Any) -> str:
        """Say where the winner's result is another one than the best baseline's; "" if it is not."""
        race, decider = self._race, self._decider
        if race.winner == race.rival:
            return ""
        numbers = result[0] if isinstance(result, tuple) else result  # maxima without their places
        few = FewRows(decider.op, decider.where, operands)
        return few.difference(few.of(numbers), few.computed(self._choices[race.rival], decider.libraries))

    def _end(self, wrong: str) -> None:
        race, reason = self._race, self._race.reason
        winner = race.rival if wrong else race.winner
        if wrong:
            log.error("%s by %s is refused: %s", self._decider.op.name, self._choices[race.winner], wrong)
            reason = f"refused: {wrong}"
        busy = self._watch.close()
        if busy and self._choices[winner].library:
            winner, reason = 0, f"{self._choices[winner].library} was the fastest on a busy machine"
        usual = median(race.seconds[winner])
        longer = sum(seconds - usual for taken in race.seconds for seconds in taken)
        names = [choice.name for choice in self._choices]
        trials = [Trial(name, tuple(taken)) for name, taken in zip(names, race.seconds, strict=True)]
        if race.winner != race.rival:
            trials += [Trial(names[arm], tuple(race.paired(arm))) for arm in (race.winner, race.rival)]
        executions = ALONE + sum(map(len, race.seconds))
        decision = Decision("measured", f"{reason}; in {executions} calls", tuple(trials), executions,
                            max(0.0, self._beside + longer))
        self._settle(self._choices[winner], decision, self._arm(winner), busy)
