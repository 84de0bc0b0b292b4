"""How two steps of an iteration are computed: fused or not, and in which order the unknowns lie."""

import time
from dataclasses import dataclass

import numpy as np

from sparloom.errors import NotDecided
from sparloom.jit import aligned
from sparloom.ops import Operands, SpmmSpmm
from sparloom.solvers.numbering import NUMBERINGS, Numbering
from sparloom.solvers.sweeps import Sweeps
from sparloom.sparse import SparseMatrix
from sparloom.tuning import Decision, Effort, Fuse, PairPlan, PlanCache, PlanKey, Problem, Trial, plan_pair, race
from sparloom.tuning.load import watch_load

__all__ = ["Planned", "Planner"]

GUARD = 0.97  # of the time of the plain program, which is not fused and leaves the order, that another one must need


@dataclass(frozen=True)
class Planned:
    """A plan, and the order of unknowns that it is for."""

    numbering: Numbering
    plan: PairPlan


class Planner:
    """Plans two steps with M; each kind of plan by `plan_pair`, the choice between them by a race of whole sweeps.

    A race of its own, because sweeps meet memory in another state than one product run again and again: what one writes
    the next reads.

    Args:
        matrix: M.
        columns: of the iterates.
        threads, cache, replay_only: as of `plan_pair`.
    """

    def __init__(
        self, matrix: SparseMatrix, columns: int, *, threads: int, cache: PlanCache, replay_only: bool,
    ) -> None:
        self._matrix, self._columns = matrix, columns
        self._threads, self._cache, self._replay_only = threads, cache, replay_only
        self._op = SpmmSpmm(dtype=matrix.dtype.name, addends=True)
        self._zeros = [aligned((matrix.pattern.rows, columns), matrix.dtype.type, zero=True) for _ in range(2)]
        self._numberings: dict[str, Numbering] = {}

    def planned(self, fuse: Fuse, numbering: str) -> Planned:
        """Plan one kind.

        Args:
            numbering: one of `NUMBERINGS`.
        """
        if numbering not in self._numberings:
            self._numberings[numbering] = Numbering.of(numbering, self._matrix)
        arranged = self._numberings[numbering]
        plan = plan_pair(self._op, self._operands(arranged), fuse=fuse, threads=self._threads, cache=self._cache,
                         replay_only=self._replay_only)
        return Planned(arranged, plan)

    def fastest(self, fuse: Fuse) -> Planned:
        """Find which was the fastest when it was decided, or decide.

        Args:
            fuse: "always": of the fused ones; "auto": of all, if it is clearly faster than the plain one.

        Raises:
            NotDecided: nothing is kept, and nothing may be measured.
        """
        natural = Numbering.of("natural", self._matrix)
        key = PlanKey.of(Problem.of(self._op, self._operands(natural)), threads=self._threads, fuse=f"sweeps {fuse}")
        kept = self._cache.find(key)
        if kept is not None and kept[1].reason in _names(fuse):
            return self.planned(*kept[1].reason.split())
        if self._replay_only:
            raise NotDecided(f"which sweeps of {self._matrix.pattern} are the fastest: plan once without replay_only")
        start = time.perf_counter()
        rivals = {name: self.planned(*name.split()) for name in _names(fuse)}
        watch = watch_load(keep_busy=self._cache.keep_busy)
        with watch.over():
            run = race([Sweeps(rival.plan.executor, rival.numbering.matrix, self._zeros[1]).advance
                        for rival in rivals.values()], effort=Effort(), clock=time.perf_counter)
        best, names = [min(seconds, default=np.inf) for seconds in run.seconds], list(rivals)
        winner = names[run.winner] if best[run.winner] < GUARD * best[0] or fuse != "auto" else names[0]
        trials = tuple(Trial(name, seconds) for name, seconds in zip(names, run.seconds, strict=True))
        self._cache.keep(key, rivals[winner].plan.choice, Decision(
            "measured", winner, trials, run.executions, time.perf_counter() - start), busy=watch.close())
        return rivals[winner]

    def _operands(self, numbering: Numbering) -> Operands:
        start, constant = self._zeros
        matrix = numbering.matrix
        return Operands(matrix, {"C": start, "F": constant, "G": constant}, right=matrix)


def _names(fuse: Fuse) -> tuple[str, ...]:
    """Kinds of plans, the plain one first."""
    kinds = ("never", "always") if fuse == "auto" else (fuse,)
    return tuple(f"{kind} {numbering}" for kind in kinds for numbering in NUMBERINGS)
