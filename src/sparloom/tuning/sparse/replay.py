"""Replays: what runs the calls of one operation on one matrix, from the first call on.

`OnlineReplay` runs them while it is undecided which kernel or library is the fastest; then `NativeReplay` runs a kernel
and `LibraryReplay` a library, or `ProvisionalReplay` either of them until it is decided again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from statistics import median
from time import monotonic as clock
from typing import Any, Protocol

from sparloom.measure import LoadWatch
from sparloom.ops import Operands
from sparloom.platforms import DeviceKernels, Family, SpmmMaxKernels
from sparloom.space import Config
from sparloom.tuning.online_race import OnlineRace
from sparloom.tuning.racing import Clock, Decision, Guardrail, MeasurementBudget, Timer, trials_of
from sparloom.tuning.sparse.backend import Arrays, CsrChoice, Product, RowCheck
from sparloom.tuning.sparse.tuner import CsrDecider

__all__ = [
    "ArgmaxReplay", "EmptyReplay", "LibraryReplay", "NativeReplay", "OnlineReplay", "ProvisionalReplay", "Replay",
    "TimedReplay",
]

log = logging.getLogger(__name__)

ALONE = 2  # calls before an online race
SHORT_SECONDS = 10e-6  # of a run, most of which are not the kernel's
CHECKED_CALLS = 16  # of a provisional replay, one of which reads the clock

REMATCH_SECONDS = 180.0  # until the two best ones of a race meet again
REMATCH = MeasurementBudget(candidates=2, repetitions=1, pairs=(3, 3), executions=12)
REMATCH_RUNS = 3.0  # that a rematch may cost
REMATCH_GUARD = Guardrail(alpha=0.97, errors=0.0)
REMATCH_SPEEDUP = 1.2  # of the winner over the second in the race, up to which they meet again


class Replay(Protocol):
    """Computes again and again for operands of one pattern and of the same shapes."""

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Compute, into `out` if it is given; one thread at a time.

        Raises:
            ValueError: `out` is read-only, of another type or not contiguous.
        """


class TimedReplay(Replay, Protocol):
    """A replay that can time itself."""

    def timed(self, operands: Operands, out: Any | None, timer: Timer) -> tuple[Any, float]:
        """Compute; also returns the seconds, without those of what is done only once."""


class NativeReplay:
    """One of our kernels: bound by the first call, pointed to other arrays by later ones."""

    def __init__(self, family: Family, config: Config) -> None:
        self._family, self._config = family, config
        self._call = None

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        result = self._pointed(operands, out)
        self._call()
        self._call.lent = ()
        return result

    def timed(self, operands: Operands, out: Any | None, timer: Timer) -> tuple[Any, float]:
        result = self._pointed(operands, out)
        seconds = timer(self._call, 1)
        self._call.lent = ()
        return result, seconds

    def _pointed(self, operands: Operands, out: Any | None) -> Any:
        result = self._family.result(operands) if out is None else out
        if self._call is None:
            self._call = self._family.bind(operands, self._config, result)
        else:
            self._family.rebind(self._call, operands, result)
        return result


class ArgmaxReplay(NativeReplay):
    """The maximum of products by one of our kernels, with the argmax: which nonzero each maximum comes from.

    Raises:
        ValueError: there are too many nonzeros to count them in int32.
    """

    def __init__(self, family: SpmmMaxKernels | DeviceKernels, config: Config) -> None:
        super().__init__(family, config)

    def _pointed(self, operands: Operands, out: None) -> tuple[Any, Any]:
        both = self._family.result(operands), self._family.argmax(operands)
        if self._call is None:
            self._call = self._family.bind(operands, self._config, *both)
        else:
            self._family.rebind(self._call, operands, *both)
        return both


class ProvisionalReplay:
    """Replay that runs until it is time to decide again.

    Kernels of ours are called as `NativeReplay` does, without a call in between, and the clock is read in the first of
    so many calls only.

    Args:
        replay: computes until then.
        until: by the clock.
        renew: makes what computes from then on.
    """

    def __init__(self, replay: Replay, until: float, renew: Callable[[Operands], Replay], *, clock: Clock) -> None:
        self._replay, self._until, self._renew, self._clock = replay, until, renew, clock
        self._native = replay if isinstance(replay, NativeReplay) else None
        self._left = 0  # calls before one that reads the clock

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        if self._left:
            self._left -= 1
        else:
            self._left = CHECKED_CALLS - 1
            if self._clock() >= self._until:
                self._replay, self._native, self._until = self._renew(operands), None, math.inf
        native = self._native
        if native is None:
            return self._replay(operands, out)
        result = native._pointed(operands, out)
        native._call()
        native._call.lent = ()
        return result


class EmptyReplay:
    """The result for dense operands without columns or heads: it has no elements, or all of them are empty sums."""

    def __init__(self, family: Family, arrays: Arrays, *, argmax: bool) -> None:
        self._family, self._arrays, self._argmax = family, arrays, argmax

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Return zeros, for a maximum with its argmax if that is asked for."""
        result = self._family.result(operands)
        result.fill(0)
        if self._argmax:
            return result, self._family.argmax(operands)
        if out is None:
            return result
        self._arrays.copy(result, out)
        return out


class LibraryReplay:
    """The product of a library, prepared for the pattern."""

    def __init__(self, product: Product, arrays: Arrays) -> None:
        self._product, self._arrays = product, arrays

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        result = self._product(operands)
        if out is None:
            return result
        self._arrays.copy(result, out)
        return out

    def timed(self, operands: Operands, out: Any | None, timer: Timer) -> tuple[Any, float]:
        results: list[Any] = []
        seconds = timer(lambda: results.append(self(operands, out)), 1)
        return results[-1], seconds


Settle = Callable[[CsrChoice, Decision, Replay, str, bool], None]
"""Takes the choice, its evidence, its replay, why the machine was busy meanwhile ("" if it was not), and whether this
is the outcome of a rematch; a rematch on a busy machine leaves the choice as it was."""


class OnlineReplay:
    """Online tuning: each call is computed by the candidate whose turn it is, until one is chosen.

    The first two calls run the default configuration, as many programs make no more; they also tell how long a call
    is. Then the race begins. The winner's result is compared with the baseline's before it is chosen, and a candidate
    that fails is dropped. On a busy machine no library is chosen: a single thread is held up less than a kernel with
    all threads. If an exception such as Ctrl-C comes while a call is recorded, the next call restarts the race.

    Args:
        make: makes the replay of a choice.
        settle: called once, and again after a rematch.
        watch: makes a watch of the load of the machine.
        rivals: a rematch of the choice, which comes first, and the second of an earlier race; it may cost less.
    """

    def __init__(
        self, decider: CsrDecider, make: Callable[[CsrChoice], TimedReplay], settle: Settle,
        watch: Callable[[], LoadWatch], rivals: Sequence[CsrChoice] = (),
    ) -> None:
        self._decider, self._make, self._settle, self._watching = decider, make, settle, watch
        self._rivals = rivals
        self._timer = decider.backend.timer(decider.clock)
        self._restart()

    def _restart(self) -> None:
        """Forget all calls."""
        self._alone: list[float] = []  # seconds of calls before the race
        self._choices: list[CsrChoice] = []
        self._arms: dict[int, TimedReplay] = {}
        self._race: OnlineRace | None = None
        self._watch: LoadWatch | None = None  # from the second call on, when all threads have started
        self._overhead = 0.0  # seconds that were not those of calls
        self._recording = False  # whether some of the above has changed and some has not yet

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        """Compute."""
        if self._recording:  # the previous call was abandoned by an exception
            self._restart()
        start = self._decider.clock()
        if len(self._alone) < ALONE:
            return self._first_calls(operands, out)
        online = self._race or self._start_race(operands)
        turn = online.turn
        bound = turn in self._arms
        self._watch.begin()
        try:
            began = self._decider.clock()
            result, seconds = self._arm(turn).timed(operands, out, self._timer)
            binding = 0.0 if bound else self._decider.clock() - began - seconds
        except Exception as error:
            if turn == 0:
                raise
            result = self._arm(0)(operands, out)  # which raises if the operands are wrong
            log.warning("%s by %s fails: %r", self._decider.op.name, self._choices[turn], error)
            self._recording = True
            online.fail()
            self._recording = False
            return result
        self._watch.end(seconds)
        self._recording = True
        online.charge(binding)
        online.record(seconds)
        wrong = self._wrong(operands, result) if online.settled and turn == online.winner else ""
        self._overhead += self._decider.clock() - start - seconds
        if online.settled and turn == online.winner:
            self._end(wrong)
        self._recording = False
        return self._arm(online.baseline)(operands, out) if wrong else result

    def _first_calls(self, operands: Operands, out: Any | None) -> Any:
        """Run the default configuration; if that is short, settle for it."""
        if not self._choices:
            default = self._decider.backend.default_config(self._decider.op, operands)
            self._choices = [*self._rivals[:1]] or [CsrChoice(config=default.key)]
        arm = self._arm(0)
        if self._watch is not None:
            self._watch.begin()
        result, seconds = arm.timed(operands, out, self._timer)
        if self._watch is not None:
            self._watch.end(seconds)
        self._recording = True
        self._alone.append(seconds)
        if seconds < SHORT_SECONDS and not self._rivals:
            reason = f"a run of {1e6 * seconds:.1f} us is too short for a race"
            self._settle(self._choices[0], Decision("rule", reason, executions=len(self._alone)), arm, "", False)
        elif self._watch is None:
            self._watch = self._watching()
        self._recording = False
        return result

    def _start_race(self, operands: Operands) -> OnlineRace:
        policy = self._decider.policy
        if self._rivals:
            choices, baselines = list(self._rivals), [0]
            race = OnlineRace(2, effort=REMATCH, guardrail=REMATCH_GUARD, runs=REMATCH_RUNS)
        else:
            run = min(self._alone)
            choices, baselines = self._decider.candidates(operands, run, self._watch.held_up)
            race = OnlineRace(len(choices), baselines=baselines, effort=policy.effort_of(run),
                              guardrail=policy.guardrail, runs=policy.runs)
        self._recording = True
        self._choices, self._race = choices, race
        self._recording = False
        return self._race

    def _arm(self, index: int) -> TimedReplay:
        if index not in self._arms:
            self._arms[index] = self._make(self._choices[index])
        return self._arms[index]

    def _wrong(self, operands: Operands, result: Any) -> str:
        """Describe where the winner's result differs from the best baseline's; "" if it does not."""
        online, decider = self._race, self._decider
        if online.winner == online.baseline:
            return ""
        values = result[0] if isinstance(result, tuple) else result  # maxima without their argmax
        check = RowCheck(decider.op, decider.backend, operands)
        expected = check.computed(self._choices[online.baseline], decider.libraries)
        return check.difference(check.of(values), expected)

    def _end(self, wrong: str) -> None:
        online, reason = self._race, self._race.reason
        winner = online.baseline if wrong else online.winner
        if wrong:
            log.error("%s by %s is refused: %s", self._decider.op.name, self._choices[online.winner], wrong)
            reason = f"refused: {wrong}"
        busy = self._watch.close()
        if busy and (self._rivals or self._choices[winner].library):
            winner, reason = 0, f"{self._choices[winner].name} was the fastest on a busy machine"
        usual = median(online.seconds[winner])
        longer = sum(seconds - usual for taken in online.seconds for seconds in taken)
        names = [choice.name for choice in self._choices]
        trials = trials_of(names, online.seconds)
        if online.winner != online.baseline:
            duel = online.winner, online.baseline
            trials += trials_of([names[arm] for arm in duel], [online.paired(arm) for arm in duel])
        reason = f"again after some minutes: {reason}" if self._rivals else reason
        executions = ALONE + sum(map(len, online.seconds))
        decision = Decision("measured", f"{reason}; in {executions} calls", trials, executions,
                            max(0.0, self._overhead + longer))
        rival = None if wrong or busy or self._rivals else self._rival(winner)
        replay = self._arm(winner) if rival is None else self._until_rematch(winner, rival)
        self._settle(self._choices[winner], decision, replay, busy, bool(self._rivals))

    def _rival(self, winner: int) -> CsrChoice | None:
        """Return the second of the duel if it was so close that it may win in another state of the machine."""
        online = self._race
        if online.loser is None or winner == online.loser:
            return None
        pairs = list(zip(online.paired(winner), online.paired(online.loser), strict=True))
        close = bool(pairs) and median(other / max(one, 1e-9) for one, other in pairs) <= REMATCH_SPEEDUP
        return self._choices[online.loser] if close else None

    def _until_rematch(self, winner: int, rival: CsrChoice) -> ProvisionalReplay:
        """Run the winner for some minutes, then let both meet again; other candidates are not kept until then."""
        decider, make, settle, watching = self._decider, self._make, self._settle, self._watching
        rivals = self._choices[winner], rival
        return ProvisionalReplay(
            self._arm(winner), clock() + REMATCH_SECONDS,
            lambda operands: OnlineReplay(decider, make, settle, watching, rivals), clock=clock)
