"""A race that takes no runs of its own: each call of a program is computed by the candidate whose turn it is.

    all candidates, the most promising ones first -> rounds of those that are near the fastest, in turn ->
    the fastest and the best baseline in turn -> the fastest, if it passes the guardrail

What is measured is what runs: all rows, the operands of the program, the state in which it leaves the caches. So a
call counts in the comparison of the last two that follows one of the same candidate, as others meet what another one
has left in the caches: a turn has two calls, or one after a turn of the same. Who stays until then is told by the
fastest of all calls of each, as a call may be interrupted whoever computes it, and so is what candidates cost: how much
longer they take than the baseline. That has a limit, in runs and in seconds, until two are left; as the second one was
not slower then, their calls have one in number only.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from sparloom.tuning.guardrail import Guardrail, Verdict
from sparloom.tuning.racing import Effort

__all__ = ["OnlineRace"]

FIRST = 0.5  # who is so much slower than the fastest in its very first call, ...
COLD = 0.3e-3  # ... and by so many seconds more, as that meets cold caches or is interrupted, has no other call
LEAST = 0.5e-3  # seconds that candidates may take longer in any case
ROUNDS = 0.6  # share of all calls that the rounds may take; those of the last two have the rest


class OnlineRace:
    """Says whose turn it is, and who wins.

    `winner` and `reason` say who was chosen and why, `rival` who the best baseline was; `seconds` those of all calls.

    Args:
        arms: candidates, by number: a baseline, which computed the call before the race, then the more promising ones
            first.
        baselines: which of them are baselines.
        effort: `repetitions` and `tolerance` of the rounds, `pairs` of the last two; twice `seconds` is a limit of what
            others may take longer than the first baseline, `executions` that of all calls.
        guardrail: what the fastest one must pass, against the best baseline.
        runs: of the first baseline, another limit of what others may take longer, or LEAST where that is more.
    """

    def __init__(
        self, arms: int, *, baselines: Sequence[int] = (0,), effort: Effort, guardrail: Guardrail, runs: float,
    ) -> None:
        self.seconds: list[list[float]] = [[] for _ in range(arms)]
        self.winner, self.rival, self.reason = 0, 0, ""
        self._counted: list[list[float]] = [[] for _ in range(arms)]  # seconds of calls that follow one of the same arm
        self._last = 0  # who computed the call before
        self._baselines, self._effort, self._guardrail, self._runs = tuple(baselines), effort, guardrail, runs
        self._round, self._alive, self._duel = 0, list(range(arms)), False
        self._order = list(self._alive)
        self._executions = 0
        self._since: dict[int, int] = {}  # the last two -> where those runs begin that both took in the same rounds

    @property
    def settled(self) -> bool:
        """Whether it is known who wins, and why."""
        return bool(self.reason)

    @property
    def turn(self) -> int:
        """Whose it is; the winner's from the end on."""
        return self.winner if self.settled else self._order[0]

    def record(self, seconds: float) -> None:
        """Take the seconds of a call by the arm whose turn it is."""
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

    def fail(self) -> None:
        """Put the arm out whose turn it was: it cannot compute, and the first baseline does so in its place."""
        arm = self._order.pop(0)
        self._alive.remove(arm)
        self._baselines = tuple(each for each in self._baselines if each != arm)
        self.seconds[arm], self._counted[arm], self._last = [], [], 0
        if self._duel:
            self.winner = self.rival = 0 if arm == self.rival else self.rival
            self.reason = "refused: it failed"
        elif not self._order:
            self._next_round()

    def paired(self, arm: int) -> list[float]:
        """Give the seconds of one of the last two that are compared."""
        begin = self._since[arm]
        return self._counted[arm][begin : begin + self._pairs]

    def _hopeless(self, arm: int, seconds: float) -> bool:
        return not self._counted[arm] and seconds > (1 + FIRST) * min(map(min, filter(None, self._counted))) + COLD

    def _at_limit(self) -> bool:
        if self._duel:
            return self._executions >= self._effort.executions
        usual = median(self._counted[0])
        longer = sum(len(taken) * max(0.0, self._least(arm) - usual) for arm, taken in enumerate(self.seconds) if taken)
        limit = min(max(self._runs * usual, LEAST), 2 * self._effort.seconds)
        return longer > limit or self._executions >= ROUNDS * self._effort.executions

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
        """Let the fastest meet the best baseline; where they are the same there is nothing to win."""
        self._duel = True
        self.winner = min(self._alive, key=self._least)
        self.rival = min((arm for arm in self._baselines if self._counted[arm]), key=self._least)
        self._alive = [self.rival, self.winner]
        together = len(self._counted[self.rival]) == len(self._counted[self.winner])  # in every round so far
        self._since = {arm: 0 if together else len(self._counted[arm]) for arm in self._alive}
        if self.winner == self.rival:
            self.reason = "no candidate was faster than the best baseline"
        else:
            self._judge()

    def _judge(self) -> None:
        least, most = self._effort.pairs
        if self._pairs < most and (self._pairs < least or not self._verdict.sure):
            self._turns()
        else:
            self._settle()

    def _settle(self) -> None:
        if self._pairs < self._effort.pairs[0]:
            self.reason = f"refused: the limit left room for {self._pairs} pairs only"
        else:
            self.reason = self._verdict.text
        if self._pairs < self._effort.pairs[0] or not self._verdict.accepted:
            self.winner = self.rival

    @property
    def _pairs(self) -> int:
        """How often the last two had their turns in the same round."""
        return min(len(self._counted[arm]) - begin for arm, begin in self._since.items())

    @property
    def _verdict(self) -> Verdict:
        return self._guardrail.judge(self.paired(self.winner), self.paired(self.rival))

    def _least(self, arm: int) -> float:
        """Of all its calls: so few count that one which is interrupted would put it out."""
        return min(self.seconds[arm])

    def _turns(self) -> None:
        shift = self._round % len(self._alive)
        self._order = self._alive[shift:] + self._alive[:shift]
