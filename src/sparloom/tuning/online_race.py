"""Online races: the calls of a program decide which of several candidates computes them from then on."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from sparloom.tuning.racing import Guardrail, MeasurementBudget, Verdict

__all__ = ["OnlineRace"]

SLOW_FIRST_CALL = 0.5  # a candidate is dropped whose first call is slower than the fastest by this share ...
COLD_SECONDS = 0.3e-3  # ... and by so many seconds, as a first call meets cold caches or is interrupted
MIN_EXTRA_SECONDS = 1.5e-3  # that candidates may cost in any case
ROUNDS_SHARE = 0.6  # of the budget that the rounds may take; the last two candidates have the rest
CLEAR = 0.85  # of the seconds of the best baseline, up to which fewer pairs suffice, ...
CLEAR_PAIRS = 2  # ... so many
CLOSE = 0.02  # a candidate that was slower than the best baseline by this share in the rounds still meets it


class OnlineRace:
    """Online tuning: user calls rotate through the candidates, so no extra runs are made.

        all candidates, the most promising ones first -> rounds of those that are near the fastest, in turn ->
        the best of them and the best baseline in turn -> the candidate, if it passes the guardrail

    What is measured is what runs: all rows, the operands of the program, the caches as the program leaves them. The
    last two are compared by calls that follow one of the same candidate, as other calls meet caches filled by another
    one: a turn has two calls, or one after a turn of the same candidate. Before that, candidates are compared by their
    fastest calls, as any call may be interrupted.

    One budget covers the whole race: what candidates take longer than the first baseline, in rounds and in the duel,
    and what else they cost, such as sorting rows, see `charge`. Candidates that are as fast as the baseline cost
    nothing, so the number of calls has a limit of its own.

    `winner` and `reason` say what was chosen and why, `baseline` which the best baseline was, `loser` which one was
    second in the duel (None if there was none); `seconds` are those of all calls.

    Args:
        arms: number of candidates: a baseline, which computed the call before the race, then the most promising ones.
        baselines: indices of baselines.
        effort: `repetitions` and `tolerance` of the rounds, `pairs` of the last two; rounds and duel may each cost
            twice `seconds`, and all calls are at most `executions`.
        guardrail: that the best candidate must pass, against the best baseline.
        runs: of the first baseline: the budget; rounds and duel may each cost MIN_EXTRA_SECONDS in any case.
    """

    def __init__(
        self, arms: int, *, baselines: Sequence[int] = (0,), effort: MeasurementBudget, guardrail: Guardrail,
        runs: float,
    ) -> None:
        self.seconds: list[list[float]] = [[] for _ in range(arms)]
        self.winner, self.baseline, self.reason = 0, 0, ""
        self._counted: list[list[float]] = [[] for _ in range(arms)]  # seconds of calls that follow one of the same arm
        self._charged = self._spent_before = 0.0
        self._last = 0  # arm that computed the previous call
        self._baselines, self._effort, self._guardrail, self._runs = tuple(baselines), effort, guardrail, runs
        self._round, self._alive, self._duel = 0, list(range(arms)), False
        self._order = list(self._alive)
        self._executions = 0
        self._since: dict[int, int] = {}  # of the last two: index of the first call that both made in the same rounds

    @property
    def settled(self) -> bool:
        """Tell whether the winner is known."""
        return bool(self.reason)

    @property
    def turn(self) -> int:
        """Arm that computes the next call; the winner at the end."""
        return self.winner if self.settled else self._order[0]

    def record(self, seconds: float) -> None:
        """Record the seconds of a call by the arm whose turn it was."""
        turn = self.turn
        self.seconds[turn].append(seconds)
        if self.settled:
            return
        follows, self._last = turn == self._last, turn
        if follows:
            self._counted[turn].append(seconds)
            self._order.pop(0)
        elif self._hopeless(turn, seconds):
            self._order.pop(0)
            self._alive.remove(turn)
        self._executions += 1
        if self._at_limit():
            self._limited()
        elif not self._order:
            self._next_round()

    def charge(self, seconds: float) -> None:
        """Take seconds from the budget that the next call costs besides its own, such as those of sorting rows."""
        self._charged += seconds

    @property
    def loser(self) -> int | None:
        """The other one of the last two, once the winner is known; None if the winner met nobody."""
        if not self._since or len(self._since) < 2:
            return None
        others = [arm for arm in self._since if arm != self.winner]
        return others[0]

    def fail(self) -> None:
        """Drop the arm whose turn it was, because it failed and the first baseline computed its call."""
        arm = self._order.pop(0)
        self._alive.remove(arm)
        self._baselines = tuple(each for each in self._baselines if each != arm)
        self.seconds[arm], self._counted[arm], self._last = [], [], 0
        if self._duel:
            self.winner = self.baseline = 0 if arm == self.baseline else self.baseline
            self.reason = "refused: it failed"
        elif not self._order:
            self._next_round()

    def paired(self, arm: int) -> list[float]:
        """Seconds of one of the last two that are compared."""
        begin = self._since[arm]
        return self._counted[arm][begin : begin + self._pairs]

    def _hopeless(self, arm: int, seconds: float) -> bool:
        fastest = min(map(min, filter(None, self._counted)))
        return not self._counted[arm] and seconds > (1 + SLOW_FIRST_CALL) * fastest + COLD_SECONDS

    def _at_limit(self) -> bool:
        share = ROUNDS_SHARE if not self._duel else 1 - ROUNDS_SHARE
        calls = ROUNDS_SHARE if not self._duel else 1
        limit = min(max(share * self._runs * median(self._counted[0]), MIN_EXTRA_SECONDS), 2 * self._effort.seconds)
        return self._spent() > limit or self._executions >= calls * self._effort.executions

    def _spent(self) -> float:
        """Seconds of the budget that were spent, in the duel since its begin."""
        usual = median(self._counted[0])
        longer = sum(len(taken) * max(0.0, self._least(arm) - usual) for arm, taken in enumerate(self.seconds) if taken)
        return self._charged + longer - self._spent_before

    def _limited(self) -> None:
        if self._duel:
            self._settle()
        else:
            self._alive = [arm for arm in self._alive if self._counted[arm]]
            self._begin_duel()

    def _next_round(self) -> None:
        self._round += 1
        if self._duel:
            self._judge()
            return
        limit = (1 + self._effort.tolerance / self._round) * min(map(self._least, self._alive))
        self._alive = [arm for arm in self._alive if not arm or self._least(arm) <= limit]
        if self._round >= self._effort.repetitions or len(self._alive) <= 2:
            self._begin_duel()
        else:
            self._turns()

    def _begin_duel(self) -> None:
        """Let the best candidate meet the best baseline; there is no duel if it is clearly slower."""
        self._spent_before, self._duel = self._spent(), True
        self.baseline = min((arm for arm in self._baselines if self._counted[arm]), key=self._least)
        self.winner = min((arm for arm in self._alive if arm not in self._baselines), key=self._least,
                          default=self.baseline)
        if self._least(self.winner) > (1 + CLOSE) * self._least(self.baseline):
            self.winner = self.baseline
        self._alive = [self.baseline, self.winner]
        together = len(self._counted[self.baseline]) == len(self._counted[self.winner])  # in every round so far
        self._since = {arm: 0 if together else len(self._counted[arm]) for arm in self._alive}
        if self.winner == self.baseline:
            self.reason = "no candidate was faster than the best baseline"
        else:
            self._judge()

    def _judge(self) -> None:
        if self._enough and (self._pairs >= self._effort.pairs[1] or self._verdict.sure):
            self._settle()
        else:
            self._turns()

    def _settle(self) -> None:
        if self._enough:
            self.reason = self._verdict.text
        else:
            self.reason = f"refused: the limit left room for {self._pairs} pairs only"
        if not self._enough or not self._verdict.accepted:
            self.winner = self.baseline

    @property
    def _enough(self) -> bool:
        """Whether there are enough pairs for a verdict."""
        return self._pairs >= self._effort.pairs[0] or (self._pairs >= CLEAR_PAIRS and self._verdict.ratio <= CLEAR)

    @property
    def _pairs(self) -> int:
        """Number of rounds in which both of the last two had their turns."""
        return min(len(self._counted[arm]) - begin for arm, begin in self._since.items())

    @property
    def _verdict(self) -> Verdict:
        return self._guardrail.judge(self.paired(self.winner), self.paired(self.baseline))

    def _least(self, arm: int) -> float:
        """Least seconds of all its calls: so few count that a single interrupted one would drop it."""
        return min(self.seconds[arm])

    def _turns(self) -> None:
        shift = self._round % len(self._alive)
        self._order = self._alive[shift:] + self._alive[:shift]
