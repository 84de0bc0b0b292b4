"""In which order the unknowns of an iteration lie in memory.

Two steps of x -> M x + g at a time, for as many columns as are still wanted.

How two steps of an iteration are computed: fused or not, and in which order the unknowns lie.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.errors import NotDecided
from sparloom.fusion import Executor, Reordered, bandwidth_order
from sparloom.jit import NativeCall, aligned
from sparloom.ops import Operands, SpmmSpmm
from sparloom.sparse import SparseMatrix
from sparloom.tuning import Decision, Effort, Fuse, PairPlan, PlanCache, PlanKey, Problem, Trial, plan_pair, race
from sparloom.tuning.load import watch_load

__all__ = ["NUMBERINGS", "Numbering", "Planned", "Planner", "Sweeps"]

NUMBERINGS = ("natural", "bandwidth")


@dataclass(frozen=True)
class Numbering:
    """M with its rows and columns in an order.

    Args:
        name: one of `NUMBERINGS`.
        order: (n,) int32, the old number of each new row; None: as they are.
    """

    name: str
    matrix: SparseMatrix
    order: np.ndarray | None

    @classmethod
    def of(cls, name: str, matrix: SparseMatrix) -> "Numbering":
        """Number rows "natural", as they are, or "bandwidth", by reverse Cuthill-McKee."""
        if name == "natural":
            return cls(name, matrix, None)
        order = bandwidth_order(matrix.pattern)
        moved = Reordered.of(matrix.pattern, order)
        return cls(name, SparseMatrix(moved.pattern, moved.values(matrix.values), matrix.dtype), order)

    def taken(self, rows: np.ndarray) -> np.ndarray:
        """Bring rows of a dense array into the order."""
        return rows if self.order is None else rows[self.order]

    def given_back(self, rows: np.ndarray) -> np.ndarray:
        """Bring rows of a dense array back."""
        if self.order is None:
            return rows
        back = np.empty_like(rows)
        back[self.order] = rows
        return back


class Sweeps:
    """The iterates of x -> M x + g, two at a time from x = 0, and how far the first of both goes.

    Three arrays of the shape of g are allocated here and none later: they change places.

    Args:
        executor: of SpMM-SpMM with addends, scheduled for M.
        matrix: M (n, n).
        constant: g (n, columns), of the type of M; copied.
    """

    def __init__(self, executor: Executor, matrix: SparseMatrix, constant: np.ndarray) -> None:
        self._executor = executor
        self._matrix = matrix
        self._columns = constant.shape[1]
        self._now, self._next, self._constant = (aligned((constant.size,), matrix.dtype.type) for _ in range(3))
        self._shaped(self._constant)[...] = constant
        self._bind()
        self.restart()

    def __getstate__(self) -> dict[str, Any]:
        """Give what copies and pickles hold: the iterates, without calls bound to these arrays."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_calls", "_changes")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()

    @property
    def now(self) -> np.ndarray:
        """The iterate (n, columns) from which the last `advance` went; not to be changed."""
        return self._shaped(self._now)

    @property
    def reached(self) -> np.ndarray:
        """The iterate (n, columns) at which it arrived; not to be changed."""
        return self._shaped(self._next)

    def restart(self) -> None:
        """Begin again at 0, with the columns that are left."""
        self._now.fill(0)
        self._next.fill(0)

    def advance(self) -> np.ndarray:
        """Make two steps from where the last call arrived, at first from 0.

        Returns:
            (columns,) float64, ‖M x + g − x‖₂ of every column of x = `now`.
        """
        self._now, self._next = self._next, self._now
        self._calls.reverse()
        self._calls[0]()
        return np.sqrt(self._changes.sum(axis=0, dtype=np.float64))

    def keep(self, columns: np.ndarray) -> None:
        """Go on with these columns only, in this order, from where `advance` arrived."""
        wide = self._shaped(self._next), self._shaped(self._constant)
        self._columns = columns.size
        for source, free in zip(wide, (self._now, self._next), strict=True):
            np.take(source, columns, axis=1, out=self._shaped(free), mode="clip")
        self._now, self._next, self._constant = self._constant, self._now, self._next
        self._bind()

    def _shaped(self, room: np.ndarray) -> np.ndarray:
        return room[: self._matrix.pattern.rows * self._columns].reshape(-1, self._columns)

    def _bind(self) -> None:
        self._changes = np.zeros((self._executor.schedule.tiles[0], self._columns), self._matrix.dtype)
        self._calls = [self._bound(self._now, self._next), self._bound(self._next, self._now)]

    def _bound(self, start: np.ndarray, end: np.ndarray) -> NativeCall:
        constant = self._shaped(self._constant)
        dense = {"C": self._shaped(start), "F": constant, "G": constant}
        operands = Operands(self._matrix, dense, right=self._matrix)
        return self._executor.bind(operands, self._shaped(end), changes=self._changes)


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
