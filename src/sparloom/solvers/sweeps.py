"""Two steps of x -> M x + g at a time: the numbering of the unknowns, the iterates, and the choice of a plan."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.errors import NotDecided
from sparloom.fusion import Executor, Reordered, bandwidth_order
from sparloom.jit import NativeCall, aligned
from sparloom.ops import Operands, SpmmSpmm
from sparloom.solvers.matrix_powers import MatrixPowers
from sparloom.sparse import SparseMatrix
from sparloom.tuning import (
    Decision,
    Fuse,
    MeasurementBudget,
    PairPlan,
    PlanCache,
    PlanKey,
    Problem,
    Trial,
    get_pair,
    plan_pair,
    put_pair,
    race,
)

NUMBERINGS = ("natural", "bandwidth")
GUARDRAIL = 0.97  # share of the time of the plain plan (unfused, natural order) that another plan must stay below


@dataclass(frozen=True)
class Numbering:
    """M with its rows and columns reordered.

    Args:
        name: one of `NUMBERINGS`.
        order: (n,) int32, the old number of each new row; None for natural order.
    """

    name: str
    matrix: SparseMatrix
    order: np.ndarray | None

    @classmethod
    def of(cls, name: str, matrix: SparseMatrix) -> "Numbering":
        """Number the rows: "natural" keeps them, "bandwidth" uses reverse Cuthill-McKee."""
        if name == "natural":
            return cls(name, matrix, None)
        order = bandwidth_order(matrix.pattern)
        reordered = Reordered.of(matrix.pattern, order)
        return cls(name, SparseMatrix(reordered.pattern, reordered.values(matrix.values), matrix.dtype), order)

    def permute(self, rows: np.ndarray) -> np.ndarray:
        """Permute the rows of a dense array to this numbering."""
        return rows if self.order is None else rows[self.order]

    def unpermute(self, rows: np.ndarray) -> np.ndarray:
        """Permute the rows of a dense array back to natural order."""
        if self.order is None:
            return rows
        natural = np.empty_like(rows)
        natural[self.order] = rows
        return natural


class Sweeps:
    """The iterates of x -> M x + g, two steps at a time from x = 0, with the change in the first of both steps.

    The constructor allocates three arrays of the shape of g, which are swapped later.

    Args:
        executor: for SpMM-SpMM with addends, with a schedule for M.
        matrix: M (n, n).
        constant: g (n, columns), of the type of M; it is copied.
    """

    def __init__(self, executor: Executor, matrix: SparseMatrix, constant: np.ndarray) -> None:
        self._executor = executor
        self._matrix = matrix
        self._columns = constant.shape[1]
        self._current, self._latest, self._constant = (aligned((constant.size,), matrix.dtype.type) for _ in range(3))
        self._shaped(self._constant)[...] = constant
        self._bind()
        self.restart()

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle the iterates without the calls that are bound to their arrays."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_calls", "_changes")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()

    @property
    def current(self) -> np.ndarray:
        """The iterate (n, columns) before the last `advance`; read-only."""
        return self._shaped(self._current)

    @property
    def latest(self) -> np.ndarray:
        """The iterate (n, columns) after the last `advance`; read-only."""
        return self._shaped(self._latest)

    def restart(self) -> None:
        """Start again at x = 0, with the remaining columns."""
        self._current.fill(0)
        self._latest.fill(0)

    def advance(self) -> np.ndarray:
        """Take two steps.

        Returns:
            (columns,) float64, ‖M x + g − x‖₂ for each column of x = `current`.
        """
        self._current, self._latest = self._latest, self._current
        self._calls.reverse()
        self._calls[0]()
        return np.sqrt(self._changes.sum(axis=0, dtype=np.float64))

    def select_columns(self, columns: np.ndarray) -> None:
        """Continue with these columns only, in this order, from `latest`."""
        wide = self._shaped(self._latest), self._shaped(self._constant)
        self._columns = columns.size
        for source, free in zip(wide, (self._current, self._latest), strict=True):
            np.take(source, columns, axis=1, out=self._shaped(free), mode="clip")
        self._current, self._latest, self._constant = self._constant, self._current, self._latest
        self._bind()

    def _shaped(self, buffer: np.ndarray) -> np.ndarray:
        return buffer[: self._matrix.pattern.rows * self._columns].reshape(-1, self._columns)

    def _bind(self) -> None:
        self._changes = np.zeros((self._executor.schedule.tiles[0], self._columns), self._matrix.dtype)
        self._calls = [self._bound(self._current, self._latest), self._bound(self._latest, self._current)]

    def _bound(self, start: np.ndarray, end: np.ndarray) -> NativeCall:
        constant = self._shaped(self._constant)
        dense = {"C": self._shaped(start), "F": constant, "G": constant}
        operands = Operands(self._matrix, dense, right=self._matrix)
        return self._executor.bind(operands, self._shaped(end), changes=self._changes)


class BlockedSweeps:
    """The iterates of x -> M x + g as `Sweeps` gives them, computed several at a time for each reading of M.

    Pays for few columns, where reading M takes most of the time. Iterates are those of `Sweeps` up to rounding.

    Args:
        powers: M, prepared.
        constant: g (n, columns), of the type of M; it is copied.
        steps: steps at a time, an even number.
    """

    def __init__(self, powers: MatrixPowers, constant: np.ndarray, steps: int) -> None:
        self._powers, self._steps = powers, steps
        self._constant = np.array(constant, powers.dtype, order="C")
        self.restart()

    @property
    def current(self) -> np.ndarray:
        """The iterate (n, columns) before the last `advance`; read-only."""
        return self._iterates[max(self._at - 2, 0)]

    @property
    def latest(self) -> np.ndarray:
        """The iterate (n, columns) after the last `advance`; read-only."""
        return self._iterates[self._at]

    def restart(self) -> None:
        """Start again at x = 0, with the remaining columns."""
        self._iterates, self._at = np.zeros((1, *self._constant.shape), self._constant.dtype), 0

    def advance(self) -> np.ndarray:
        """Go on by two steps; returns the same as `Sweeps.advance`."""
        if self._at + 2 >= len(self._iterates):
            self._iterates = self._powers.iterate(self.latest, self._steps, self._constant)
            self._at = 0
        before, after = self._iterates[self._at], self._iterates[self._at + 1]
        self._at += 2
        with np.errstate(invalid="ignore", over="ignore"):
            change = after - before
            return np.sqrt(np.einsum("ij,ij->j", change, change, dtype=np.float64))

    def select_columns(self, columns: np.ndarray) -> None:
        """Continue with these columns only, in this order, from `latest`."""
        self._iterates, self._at = self.latest[None][:, :, columns], 0
        self._constant = np.ascontiguousarray(self._constant[:, columns])


@dataclass(frozen=True)
class SweepPlan:
    """A plan and its numbering of the unknowns."""

    numbering: Numbering
    plan: PairPlan


class SweepPlanner:
    """Plans two steps with M: `plan_pair` makes the candidates, and a race of whole sweeps chooses between them.

    The race is needed because successive sweeps read what the previous one wrote, whereas `plan_pair` repeats one
    product on the same arrays, so that caches hold other data.

    Args:
        matrix: M.
        columns: number of columns of the iterates.
        threads, cache, replay_only: as for `plan_pair`.
    """

    def __init__(
        self, matrix: SparseMatrix, columns: int, *, threads: int, cache: PlanCache, replay_only: bool,
    ) -> None:
        self._matrix, self._columns = matrix, columns
        self._threads, self._cache, self._replay_only = threads, cache, replay_only
        self._op = SpmmSpmm(dtype=matrix.dtype.name, addends=True)
        self._zeros = [aligned((matrix.pattern.rows, columns), matrix.dtype.type, zero=True) for _ in range(2)]
        self._numberings: dict[str, Numbering] = {}

    def plan(self, fuse: Fuse, numbering: str) -> SweepPlan:
        """Plan one candidate.

        Args:
            numbering: one of `NUMBERINGS`.
        """
        if numbering not in self._numberings:
            self._numberings[numbering] = Numbering.of(numbering, self._matrix)
        arranged = self._numberings[numbering]
        plan = plan_pair(self._op, self._operands(arranged), fuse=fuse, threads=self._threads, cache=self._cache,
                         replay_only=self._replay_only)
        return SweepPlan(arranged, plan)

    def fastest(self, fuse: Fuse) -> SweepPlan:
        """Return the fastest candidate, from the cache or by a race.

        Args:
            fuse: "always" considers fused candidates only; "auto" all of them, and prefers the plain one unless another
                is clearly faster.

        Raises:
            NotDecided: the cache holds no decision, and `replay_only` forbids measuring.
        """
        natural = Numbering.of("natural", self._matrix)
        key = PlanKey.of(Problem.of(self._op, self._operands(natural)), threads=self._threads, fuse=f"sweeps {fuse}")
        kept = get_pair(self._cache, key)
        if kept is not None and kept[1].reason in _candidate_names(fuse):
            return self.plan(*kept[1].reason.split())
        if self._replay_only:
            raise NotDecided(f"which sweeps of {self._matrix.pattern} are the fastest: plan once without replay_only")
        start = time.perf_counter()
        candidates = {name: self.plan(*name.split()) for name in _candidate_names(fuse)}
        run = race([Sweeps(candidate.plan.executor, candidate.numbering.matrix, self._zeros[1]).advance
                    for candidate in candidates.values()], effort=MeasurementBudget(), clock=time.perf_counter)
        best, names = [min(seconds, default=np.inf) for seconds in run.seconds], list(candidates)
        winner = names[run.winner] if best[run.winner] < GUARDRAIL * best[0] or fuse != "auto" else names[0]
        trials = tuple(Trial(name, seconds) for name, seconds in zip(names, run.seconds, strict=True))
        put_pair(self._cache, key, candidates[winner].plan.choice, Decision(
            "measured", winner, trials, run.executions, time.perf_counter() - start))
        return candidates[winner]

    def _operands(self, numbering: Numbering) -> Operands:
        start, constant = self._zeros
        matrix = numbering.matrix
        return Operands(matrix, {"C": start, "F": constant, "G": constant}, right=matrix)


def _candidate_names(fuse: Fuse) -> tuple[str, ...]:
    """List the candidates, the plain one first."""
    kinds = ("never", "always") if fuse == "auto" else (fuse,)
    return tuple(f"{kind} {numbering}" for kind in kinds for numbering in NUMBERINGS)
