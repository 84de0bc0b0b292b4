"""Who takes part in a decision: candidates and baselines, bound to the parts of a sample.

A few rows of a matrix on which kernels behave as on all: what a probe runs on.

Rows are taken as blocks of neighbours, so what they share in the caches stays; all their columns are kept, and the
dense operands they read are whole. Blocks are drawn from strata of equal number by nonzeros; the block with most is
always among them, so hubs are in the sample, and blocks without any never are.

Departure from AutoSAGE, whose probe is an induced subgraph: that thins every row by the sampling fraction.

How one sparse operation is decided: a shortlist by an estimate, a race on sampled rows, a guardrail.

    the safe one, on a sample -> shortlist -> race of these, on the sample -> duel of the winner with the best baseline,
    on parts of the sample in turn -> the winner, if it passes

or, with calibrate="online", where the calls of the program are the race (`OnlineReplay`):

    the safe one, as the first calls -> shortlist, with the libraries that are not far behind it on a sample

Baselines are a safe configuration of our own space and other libraries; the best of them is what runs if nothing
passes. All of it takes no longer than some runs of the safe one on all rows, as its runs on the sample tell; where that
is too short to measure anything, that is taken.

Calls of a program that decide how the calls after them run.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from sparloom.ops import Op, Operands, assert_few_close, few_rows
from sparloom.platforms import Family
from sparloom.space import Config
from sparloom.sparse import Pattern
from sparloom.tuning.machine import LoadWatch
from sparloom.tuning.racing import Call, Clock, Decision, MeasurementBudget, OnlineRace, Race, Trial, duel, race
from sparloom.tuning.search import CsrCostModel, shortlist
from sparloom.tuning.sparse.backend import Backend, Library, Replay, TimedReplay
from sparloom.tuning.sparse.settings import CsrPolicy

__all__ = ["CandidateSet", "CsrChoice", "CsrDecider", "CsrPlan", "FewRows", "OnlineReplay", "Sample", "sample_rows"]

EPS: Mapping[str, float] = {"bfloat16": 2.0**-7}
"""Of types that are compared as float32."""


@dataclass(frozen=True)
class CsrChoice:
    """What runs: a library, or a configuration of our kernels.

    Args:
        library: its name, "" for our own kernels.
        config: key of a point of the space, "" for a library.
        threads: of the configuration; 0: all that the place has.
    """

    library: str = ""
    config: str = ""
    threads: int = 0

    def to_json(self) -> dict[str, Any]:
        """Write as JSON values; threads only where they are not all."""
        return {name: value for name, value in asdict(self).items() if value or name != "threads"}

    @property
    def name(self) -> str:
        """Name it among trials."""
        return self.library or (f"{self.config},threads={self.threads}" if self.threads else self.config)


@dataclass(frozen=True)
class CsrPlan:
    """How one operation on one matrix runs from now on.

    Args:
        space: name of that of our kernels.
    """

    choice: CsrChoice
    decision: Decision
    space: str = "cpu_kernels"

    @cached_property
    def config(self) -> Config:
        """Configuration of our kernels, where they were chosen."""
        return Config.parse(self.space, self.choice.config)


@dataclass(frozen=True)
class FewRows:
    """Some rows of a problem, in which results are compared."""

    op: Op
    where: Backend
    operands: Operands

    def of(self, result: Any) -> np.ndarray:
        """Take these rows of a result for all."""
        pattern = self.operands.matrix.pattern
        return self.where.some(result, pattern.nonzeros_of(self.rows) if self.op.name == "sddmm" else self.rows)

    def difference(self, found: np.ndarray, expected: np.ndarray) -> str:
        """Say where a result for them is other than the one of a baseline; "" if it is not."""
        few = self.where.few(self.operands, self.rows, self.op.name)
        eps = EPS.get(self.where.dtype(self.op.name, self.operands))
        try:
            assert_few_close(found, expected, self.op, few, eps=eps)
        except AssertionError as error:
            return f"other than the baseline: {error}"
        return ""

    def computed(self, choice: CsrChoice, libraries: Mapping[str, Library]) -> np.ndarray:
        """Compute them alone."""
        operands = self.where.take_rows(self.operands, self.rows, self.op.name)
        family = self.where.kernels(self.op, operands.width)
        result = _computed(choice, operands, family, libraries, self.where.threads)
        return self.where.some(result, np.arange(result.shape[0]))

    @cached_property
    def rows(self) -> np.ndarray:
        """Which they are."""
        return few_rows(self.operands.matrix.pattern)


class CandidateSet:
    """Candidates and baselines bound to the parts of a sample, when they are asked for.

    Args:
        own: configurations of our kernels, the safe one first; the libraries follow.
    """

    def __init__(
        self, op: Op, where: Backend, own: Sequence[Config], libraries: Mapping[str, Library],
        parts: Sequence[Operands],
    ) -> None:
        self.own, self.parts = own, parts
        self.names = [*(config.key for config in own), *libraries]
        self._op, self._where, self._libraries = op, where, libraries
        self._families = [where.kernels(op, part.width) for part in parts]
        self._results = [family.result(part) for family, part in zip(self._families, parts, strict=True)]

    def choice(self, place: int) -> CsrChoice:
        """Name a candidate."""
        name = self.names[place]
        return CsrChoice(config=name) if place < len(self.own) else CsrChoice(library=name)

    def call(self, place: int) -> Call:
        """Run a candidate on all parts, one after the other."""
        calls = [self._bound(place, part) for part in range(len(self.parts))]

        def run() -> None:
            for call in calls:
                call()

        return run

    def rivals(self, one: int, other: int) -> list[tuple[Call, Call]]:
        """Bind two candidates to each part."""
        return [(self._bound(one, part), self._bound(other, part)) for part in range(len(self.parts))]

    def difference(self, winner: int, baseline: int) -> str:
        """Say where, in some rows, the winner computes something else than the baseline; "" if it does not."""
        few = FewRows(self._op, self._where, self.parts[0])
        expected, found = (few.of(self._computed(place, self.parts[0])) for place in (baseline, winner))
        return few.difference(found, expected)

    def _bound(self, place: int, part: int) -> Call:
        operands = self.parts[part]
        if place < len(self.own):
            return self._families[part].bind(operands, self.own[place], self._results[part])
        product = self._libraries[self.names[place]](operands.matrix, self._where.threads)
        return lambda: product(operands)

    def _computed(self, place: int, operands: Operands) -> Any:
        return _computed(self.choice(place), operands, self._families[0], self._libraries, self._where.threads)


def _computed(
    choice: CsrChoice, operands: Operands, family: Family, libraries: Mapping[str, Library], threads: int,
) -> Any:
    """Run a choice once."""
    if choice.library:
        return libraries[choice.library](operands.matrix, threads)(operands)
    result = family.result(operands)
    family.bind(operands, Config.parse(family.space().name, choice.config), result)()
    return result


BLOCK = 64  # rows
STRATA = 8


@dataclass(frozen=True)
class Sample:
    """Rows, and a division of them into parts that are samples themselves.

    Args:
        rows: (sampled,) int64, rising.
        part: (sampled,) int64, of each of them; all 0 where there is one part.
    """

    rows: np.ndarray
    part: np.ndarray

    @property
    def parts(self) -> list[np.ndarray]:
        """Rows of each part, rising."""
        return [self.rows[self.part == number] for number in range(int(self.part.max(initial=0)) + 1)]


def sample_rows(pattern: Pattern, *, nonzeros: int, parts: int, seed: int) -> Sample:
    """Draw rows with about so many nonzeros; all rows, as one part, if the pattern has no more.

    Args:
        parts: at most; every stratum deals its blocks to them in turn.
    """
    if pattern.nnz <= nonzeros:
        return Sample(np.arange(pattern.rows), np.zeros(pattern.rows, np.int64))
    begins = np.arange(0, pattern.rows, BLOCK)
    held = np.diff(pattern.indptr[np.append(begins, pattern.rows)])
    begins, held = begins[held > 0], held[held > 0]
    rng, chosen = np.random.default_rng(seed), []
    *lighter, heavy = np.array_split(np.argsort(held, kind="stable"), min(STRATA, begins.size))
    drawn = [*map(rng.permutation, lighter), np.append(heavy[-1:], rng.permutation(heavy[:-1]))]
    for stratum in drawn:
        wanted, got = nonzeros * held[stratum].sum() / pattern.nnz, 0
        for block in stratum:
            if got + held[block] / 2 > wanted and block != heavy[-1]:
                break
            chosen.append(int(block))
            got += int(held[block])
    dealt = np.arange(len(chosen)) % min(parts, len(chosen))
    order = np.argsort(chosen)
    blocks = [np.arange(begins[block], min(begins[block] + BLOCK, pattern.rows)) for block in np.array(chosen)[order]]
    return Sample(np.concatenate(blocks), np.repeat(dealt[order], [rows.size for rows in blocks]))


log = logging.getLogger(__name__)

SLOW_FLOPS, SLOW_BYTES = 1e9, 4e9  # per second, of a thread and of the memory; hardly any kernel here is slower
RUNS = 3  # of the safe configuration on the sample before all, unless one shows that there is no time for more
ENOUGH = 10  # runs on the sample, with fewer left nothing is settled: two candidates twice, and the fewest pairs
RACE = 0.6  # share of the time that is left which the race may take; the duel has the rest
NEAR = 1.3  # times as long as the safe one on the sample, up to which a library computes calls of the program
LOOKS = 2  # runs of each on the sample for that
BINDING = 1.0  # runs that binding a candidate may take which computes calls of a program
STARTING = 0.5e-3  # seconds of all threads but one in a run, up to which starting them may take longer than they save
ASKING = 1e-3  # seconds of a run, from which on a model is asked, which takes about as long


@dataclass(frozen=True)
class CsrDecider:
    """Decides for one operation.

    Args:
        where: the operands are, and what runs there.
        libraries: baselines beside the safe configuration.
        model: makes what the shortlist is made by; asked when something is measured, as this may measure rates of the
            machine or read files, which is never part of what the measurements may take.
        clock: wall seconds; what is measured is timed as `where` says.
        allows: tells of a configuration whether it may be measured; the safe one always is.
        apart: what the model takes is, like what compiles kernels, not part of what the measurements may take, as it
            may be longer than a race; it is part of the seconds of the decision.
    """

    op: Op
    where: Backend
    libraries: Mapping[str, Library]
    policy: CsrPolicy
    model: Callable[[], CsrCostModel]
    clock: Clock = time.perf_counter
    allows: Callable[[Config], bool] = lambda config: True
    apart: bool = False

    def decide(self, operands: Operands) -> tuple[CsrChoice, Decision]:
        """Measure a few kernels on a sample; one that computes something else than the best baseline is refused."""
        watch, pattern, safe = _Watch(self.clock), operands.matrix.pattern, self.where.safe(self.op, operands)

        def unmeasured(reason: str, executions: int = 0) -> tuple[CsrChoice, Decision]:
            return CsrChoice(config=safe.key), Decision("rule", reason, (), executions, watch.seconds)

        if not pattern.nnz:
            return unmeasured("no nonzeros")
        slow = self._most_seconds(operands)
        if not self.policy.seconds(slow):
            return unmeasured(self._too_short(slow))
        parts = self._parts(operands)
        with watch.apart():
            alone = CandidateSet(self.op, self.where, self.where.able(self.op, parts[0], [safe]), {}, parts).call(0)
        share = sum(part.matrix.pattern.nnz for part in parts) / pattern.nnz
        sample_seconds, before = self._seconds(alone, share)
        allowed = self.policy.seconds(sample_seconds / share)
        if not allowed:
            return unmeasured(self._too_short(sample_seconds / share), before)
        if not self.policy.enough(watch.until(allowed) - self.clock(), ENOUGH, sample_seconds):
            return unmeasured(f"{1e3 * allowed:.1f} ms are too short for {ENOUGH} runs of {1e3 * sample_seconds:.3f} "
                              "ms on a sample", before)
        with watch.apart():
            model = self.model()
        with watch.apart() if self.apart else nullcontext():
            configs = self.where.configs(self.op, operands, sampled=parts[0] is not operands)
            candidates = self._candidates(model, safe, operands, configs)
        with watch.apart():
            able = self.where.able(self.op, parts[0], candidates)
        contest = CandidateSet(self.op, self.where, able, self.libraries, parts)
        chosen, reason, trials, executions = self._settled(
            contest, lambda seconds: watch.until(self.policy.seconds(seconds / share)), sample_seconds)
        rows = sum(part.matrix.pattern.rows for part in parts)
        return contest.choice(chosen), Decision("measured", f"{reason}; {rows} of {pattern.rows} rows", trials,
                                                before + executions, watch.seconds)

    def entrants(self, operands: Operands, run: float, busy: bool = False) -> tuple[list[CsrChoice], list[int]]:
        """Choose what is worth to compute a call of the program.

        Args:
            run: seconds of the safe one, as the program has called it.
            busy: the machine is, so that one thread may be faster than many.

        Returns:
            Choices, a baseline first and then the most promising ones; which of them are baselines.
        """
        safe = self.where.safe(self.op, operands)
        able = self.where.able(self.op, operands, self._few(operands, safe, run))
        own = [CsrChoice(config=config.key) for config in able]
        libraries = [CsrChoice(library=name) for name in self._near(operands, safe, run)]
        others = self.where.threads - 1
        alone = [replace(own[0], threads=1)] if others > 0 and (busy or others * run <= STARTING) else []
        rest = own[1:max(1, self.policy.effort.candidates - len(alone))]
        return [own[0], *libraries, *alone, *rest], list(range(1 + len(libraries)))

    def _few(self, operands: Operands, safe: Config, run: float) -> list[Config]:
        """Choose configurations of our kernels, the safe one first; of short runs, without asking a model."""
        where, pattern = self.where, operands.matrix.pattern

        def quick(configs: Sequence[Config]) -> list[Config]:
            return [config for config in configs
                    if self.allows(config) and where.binding_seconds(config, pattern) <= BINDING * run]

        portfolios, count = where.portfolios(self.op, operands), self.policy.effort.candidates
        if self.apart or run >= ASKING or max(map(len, portfolios), default=0) < count:
            configs = quick(where.configs(self.op, operands, sampled=False))
            return self._candidates(self.model(), safe, operands, configs)
        return [safe, *(config for config in max(map(quick, portfolios), key=len) if config != safe)][:count]

    def _near(self, operands: Operands, safe: Config, run: float) -> list[str]:
        """Name libraries that are not far behind the safe one on a sample, where there is time to ask."""
        if not self.libraries or self.policy.runs * run < self.policy.least_seconds:
            return []
        contest = CandidateSet(self.op, self.where, [safe], self.libraries, self._parts(operands)[:1])
        timed = self.where.timer(self.clock)
        taken = {}
        for place, name in enumerate(contest.names):
            try:
                call = contest.call(place)
                taken[name] = min(timed(call, 1) for _ in range(LOOKS))
            except Exception as error:
                if not place:
                    raise
                log.warning("%s by %s fails: %r", self.op.name, name, error)
        return [name for name in self.libraries if taken.get(name, math.inf) <= NEAR * taken[safe.key]]

    def _settled(
        self, contest: CandidateSet, end: Callable[[float], float], sample_seconds: float,
    ) -> tuple[int, str, tuple[Trial, ...], int]:
        """Measure candidates and baselines; say which to take and why, all trials, and runs on the sample.

        Args:
            end: of the measurements, where the safe one takes so many seconds on the sample; ...
            sample_seconds: ... these, as far as they are known; the race tells better.
        """
        names, own, begin = contest.names, len(contest.own), self.clock()
        run = race([_able(contest, place) for place in range(len(names))], clock=self.clock,
                   effort=self._until(begin + RACE * (end(sample_seconds) - begin)), timer=self.where.timer(self.clock))
        least = [min(seconds, default=math.inf) for seconds in run.seconds]
        winner = min(range(own), key=least.__getitem__)
        baseline = min((0, *range(own, len(names))), key=least.__getitem__)
        trials = tuple(Trial(name, taken) for name, taken in zip(names, run.seconds, strict=True))
        if least[winner] >= least[baseline]:
            return baseline, "no candidate was faster than the best baseline", trials, run.executions
        sample_seconds, pairs = min(sample_seconds, least[0]), self.policy.effort.pairs[0]
        runs = 2 * (1 + pairs / len(contest.parts))
        if not self.policy.enough(end(sample_seconds) - self.clock(), runs, sample_seconds):
            return baseline, f"refused: no time for {pairs} pairs", trials, run.executions
        last = duel(contest.rivals(winner, baseline), clock=self.clock, effort=self._until(end(sample_seconds)),
                    decided=lambda taken: self.policy.guardrail.judge(*taken.seconds).sure,
                    timer=self.where.timer(self.clock))
        accepted, reason = self._judged(last, len(contest.parts))
        difference = contest.difference(winner, baseline) if accepted else ""
        if difference:
            log.error("%s by %s is refused: %s", self.op.name, names[winner], difference)
            accepted, reason = False, f"refused: {difference}"
        trials += tuple(Trial(names[place], taken)
                        for place, taken in zip((winner, baseline), last.seconds, strict=True))
        return winner if accepted else baseline, reason, trials, run.executions + last.executions

    def _candidates(
        self, model: CsrCostModel, safe: Config, operands: Operands, configs: Sequence[Config],
    ) -> list[Config]:
        """Choose among configurations of our kernels, the safe one first."""
        allowed = [config for config in configs if self.allows(config)]
        listed = shortlist(model, self.op.name, operands, allowed, count=self.policy.effort.candidates,
                           kind=self.where.kind)
        return [safe, *(config for config in listed if config != safe)]

    def _too_short(self, run: float) -> str:
        return f"{self.policy.runs:g} runs of {1e3 * run:.3f} ms are too short to measure in"

    def _most_seconds(self, operands: Operands) -> float:
        """Guess the seconds of a slow run: what is short even so need not be run to be known."""
        work = self.op.work(operands.matrix.pattern, operands.width)
        return work.flops / (SLOW_FLOPS * max(1, self.where.threads)) + work.bytes / SLOW_BYTES

    def _seconds(self, call: Call, share: float) -> tuple[float, int]:
        """Seconds of the fastest run on the sample, with this share of the nonzeros; and how many it took to know."""
        timed = self.where.timer(self.clock)
        seconds = [timed(call, 1)]
        while len(seconds) < RUNS and self.policy.seconds(min(seconds) / share):
            seconds.append(timed(call, 1))
        return min(seconds), len(seconds)

    def _parts(self, operands: Operands) -> list[Operands]:
        """Take the sample; the operands as they are where it is all rows."""
        pattern, share = operands.matrix.pattern, 1.0 if self.policy.calibrate == "full" else self.policy.share
        sample = sample_rows(pattern, nonzeros=max(self.policy.least_nonzeros, int(share * pattern.nnz)),
                             parts=self.policy.parts, seed=self.policy.seed)
        if sample.rows.size == pattern.rows:
            return [operands]
        return [self.where.take_rows(operands, rows, self.op.name) for rows in sample.parts]

    def _until(self, end: float) -> MeasurementBudget:
        return replace(self.policy.effort, seconds=max(1e-9, end - self.clock()))

    def _judged(self, last: Race, parts: int) -> tuple[bool, str]:
        """Judge the winner, and say what it took in each part of the sample, as a share of the baseline's seconds."""
        verdict = self.policy.guardrail.judge(*last.seconds)
        if len(last.seconds[0]) < self.policy.effort.pairs[0]:
            return False, f"refused: time for {len(last.seconds[0])} pairs only"
        ratios = np.divide(*last.seconds)
        by_part = ", ".join(f"{np.median(ratios[number::parts]):.3f}" for number in range(min(parts, ratios.size)))
        return verdict.accepted, f"{verdict.text}; by part {by_part}"


def _able(contest: CandidateSet, place: int) -> Call:
    """Bind a candidate, or give what fails in its place: the race goes on without it."""
    try:
        return contest.call(place)
    except Exception as error:
        failure = error  # `error` is gone when the call runs

        def fail() -> None:
            raise failure

        return fail


class _Watch:
    """What a decision takes, and what of it is not part of what its measurements may take.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._start, self._apart = clock, clock(), 0.0

    @property
    def seconds(self) -> float:
        """All."""
        return self._clock() - self._start

    def until(self, allowed: float) -> float:
        """When measurements that may take so long must end."""
        return self._start + self._apart + allowed

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave out what is done meanwhile."""
        begin = self._clock()
        yield
        self._apart += self._clock() - begin


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
