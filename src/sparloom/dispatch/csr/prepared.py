"""A sparse matrix made ready: what is called again and again with other dense operands."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from threading import RLock
from typing import Any, Literal, get_args

import numpy as np

from sparloom.dispatch.csr.contest import CsrChoice
from sparloom.dispatch.csr.decide import CsrDecider, CsrPolicy, safe_config
from sparloom.dispatch.csr.estimate import CsrEstimate
from sparloom.dispatch.csr.given import dense_of
from sparloom.dispatch.csr.proposals import Given
from sparloom.dispatch.csr.replay import LibraryReplay, NativeReplay, PlacesReplay, Replay
from sparloom.dispatch.csr.rivals import LIBRARIES, Library
from sparloom.dispatch.csr.switches import Switches
from sparloom.dispatch.decision import Decision
from sparloom.dispatch.plan_cache import PlanCache
from sparloom.dispatch.plan_key import machine_digest, sources_digest
from sparloom.errors import IllegalSchedule, NotDecided, SchemaError
from sparloom.ops import SDDMM, CsrAttention, Op, Operands, SpMM, SpmmMax
from sparloom.platforms import CpuKernels
from sparloom.space import Config
from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["CsrPlan", "Prepared"]

log = logging.getLogger(__name__)

Reduce = Literal["sum", "mean", "max"]
REDUCTIONS = get_args(Reduce)
Shapes = tuple[tuple[int, ...], ...]
"""Of the dense operands, each without its first axis."""

SOURCES = ("spmm.cpp", "spmm_max.cpp", "sddmm.cpp", "attention.cpp")
OPS: Mapping[str, Op] = {
    "spmm": SpMM(), "spmm_max": SpmmMax(), "sddmm": SDDMM(), "attention": CsrAttention()}


@dataclass(frozen=True)
class CsrPlan:
    """How one operation on one matrix runs from now on."""

    choice: CsrChoice
    decision: Decision

    @cached_property
    def config(self) -> Config:
        """Configuration of our kernels, where they were chosen."""
        return Config.parse("cpu_kernels", self.choice.config)


class Prepared:
    """A sparse matrix, and what was decided about it.

    The first call of an operation with a width decides how it runs, unless the cache knows; further ones run at once.
    The matrix must not be changed meanwhile. Threads may share it; their calls run one after the other.

    Args:
        matrix: A (rows, cols).
        threads: of every call; all processors that this process may use unless given.
        cache: where decisions are kept; what `Switches` say, or else the folder of this user, unless given.
        policy: how decisions are made; what `Switches` say unless given.
        shortlist: which kernels are worth a measurement: "estimate", "all", "trees" or "model", see `Proposals`; what
            `Switches` say unless given.
        model: paths of the files that "trees" or "model" read, or, in place of `shortlist`, a model as an object.
        libraries: operation -> baselines beside the safe configuration of our kernels.
        replay_only: measure nothing.
    """

    def __init__(
        self, matrix: SparseMatrix, *, threads: int | None = None, cache: PlanCache | None = None,
        policy: CsrPolicy | None = None, shortlist: str | None = None, model: Given = None,
        libraries: Mapping[str, Mapping[str, Library]] = LIBRARIES, replay_only: bool = False,
    ) -> None:
        self.matrix = matrix
        self.threads = len(os.sched_getaffinity(0)) if threads is None else threads
        if self.threads < 1:
            raise ValueError(f"threads={threads}: give at least 1")
        self._switches = Switches.from_environment()
        self._switches.show_decisions()
        self._cache = self._switches.plans() if cache is None else cache
        self._proposals = self._switches.proposals(shortlist, model)
        self._policy = self._proposals.policy(
            self._switches.policy(CsrPolicy(), matrix.pattern) if policy is None else policy)
        self._probes = self._switches.probe_log(self._cache)
        self._libraries = libraries
        self._replay_only = replay_only
        self._plans: dict[tuple[str, Shapes], CsrPlan] = {}
        self._replays: dict[tuple[str, Shapes], Replay] = {}
        self._placing: dict[Shapes, PlacesReplay] = {}
        self._kernels = CpuKernels(self.threads, 1)  # what they run has any width
        self._lock = RLock()

    def spmm(
        self, dense: Any, *, reduce: Reduce = "sum", values: np.ndarray | None = None, out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Multiply: A X.

        Args:
            dense: X (cols, width) float32.
            reduce: "sum"; "mean", divided by the nonzeros of each row; "max", the largest product of each, 0 in rows
                without nonzeros.
            values: (nnz,) float32, in place of those of A.
            out: (rows, width) float32, where the result goes; a new array unless given.

        Returns:
            (rows, width) float32.

        Raises:
            TypeError, ValueError: X or `out` does not fit.
            NotDecided: `replay_only`, and nothing is kept for A and this width.
        """
        if reduce not in REDUCTIONS:
            raise ValueError(f"reduce={reduce!r}: give one of {', '.join(REDUCTIONS)}")
        given = dense_of(dense, "X", rows=self.matrix.pattern.cols, axes=2)
        operands = Operands(self._with(values, reduce), {"B": given})
        return self._run("spmm_max" if reduce == "max" else "spmm", operands, out,
                         (self.matrix.pattern.rows, given.shape[1]))

    def spmm_max(self, dense: Any, *, values: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Take the largest products as `spmm` does, by the kernel that was decided for it, and find their places.

        Args:
            dense, values: as in `spmm`.

        Returns:
            (rows, width) float32; (rows, width) int32, which nonzero of A each comes from: the first one whose product
            is the largest, or NaN; -1 in rows without nonzeros.

        Raises:
            TypeError, ValueError, NotDecided: as by `spmm`; also where A has 2**31 nonzeros or more.
        """
        given = dense_of(dense, "X", rows=self.matrix.pattern.cols, axes=2)
        operands = Operands(self._with(values), {"B": given})
        shapes = _shapes(operands)
        with self._lock:
            replay = self._placing.get(shapes)
            if replay is None:
                plan = self._plan("spmm_max", shapes, operands)
                config = safe_config(self._kernels, OPS["spmm_max"]) if plan.choice.library else plan.config
                replay = self._placing[shapes] = PlacesReplay(self._kernels.family(OPS["spmm_max"]), config)
            return replay(operands)

    def sddmm(
        self, left: Any, right: Any, *, values: np.ndarray | None = None, out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Multiply on the pattern of A: values of A * (Q KT).

        Args:
            left, right: Q (rows, width), K (cols, width), float32.
            values: (nnz,) float32, in place of those of A.
            out: (nnz,) float32, as in `spmm`.

        Returns:
            (nnz,) float32, in the order of A's values.

        Raises:
            TypeError, ValueError, NotDecided: as by `spmm`; also where Q and K differ in width.
        """
        rows, cols = self.matrix.pattern.shape
        first, second = dense_of(left, "Q", rows=rows, axes=2), dense_of(right, "K", rows=cols, axes=2)
        _check_widths(first, second, "Q", "K")
        return self._run("sddmm", Operands(self._with(values), {"B": first, "C": second}), out,
                         (self.matrix.pattern.nnz,))

    def attention(self, queries: Any, keys: Any, values: Any, *, out: np.ndarray | None = None) -> np.ndarray:
        """Attend: softmax of Q KT / sqrt(d) over the columns of each row of A, times V; A's values are not read.

        Args:
            queries, keys, values: Q (rows, heads, d), K (cols, heads, d), V (cols, heads, e), float32.
            out: (rows, heads, e) float32, as in `spmm`.

        Returns:
            (rows, heads, e) float32; 0 for rows without nonzeros.

        Raises:
            TypeError, ValueError, NotDecided: as by `spmm`; also where heads or widths differ.
        """
        rows, cols = self.matrix.pattern.shape
        given = {name: dense_of(array, name, rows=count, axes=3) for name, array, count in (
            ("Q", queries, rows), ("K", keys, cols), ("V", values, cols))}
        _check_widths(given["Q"], given["K"], "Q", "K")
        if given["V"].shape[1] != given["Q"].shape[1]:
            raise ValueError(f"V has {given['V'].shape[1]} heads and Q {given['Q'].shape[1]}: give as many")
        return self._run("attention", Operands(self.matrix, given), out, (rows, *given["V"].shape[1:]))

    def plan(self, op: str, **dense: np.ndarray) -> CsrPlan:
        """Decide for dense operands such as these, or find what was decided."""
        operands = Operands(self.matrix, dense)
        with self._lock:
            return self._plan(op, _shapes(operands), operands)

    def fits(self, pattern: Pattern) -> bool:
        """Tell whether this was made for such a pattern; reads all of it."""
        return pattern.digest() == self._pattern

    @cached_property
    def _pattern(self) -> str:
        return self.matrix.pattern.digest()

    @cached_property
    def _mean(self) -> SparseMatrix:
        return self._averaging(self.matrix.values)

    @cached_property
    def _shares(self) -> np.ndarray:
        """One over the nonzeros of its row, of every nonzero: (nnz,) float32."""
        lengths = self.matrix.pattern.row_lengths()
        return np.repeat(np.float32(1) / np.maximum(lengths, 1).astype(np.float32), lengths)

    def _averaging(self, values: np.ndarray) -> SparseMatrix:
        return SparseMatrix(self.matrix.pattern, values * self._shares)

    def _with(self, values: np.ndarray | None, reduce: Reduce = "sum") -> SparseMatrix:
        if values is None or values is self.matrix.values:
            return self._mean if reduce == "mean" else self.matrix
        return self._averaging(values) if reduce == "mean" else SparseMatrix(self.matrix.pattern, values)

    def _run(self, op: str, operands: Operands, out: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
        if out is not None:
            _check_out(out, shape, operands)
        key = op, _shapes(operands)
        with self._lock:
            replay = self._replays.get(key)
            if replay is None:
                replay = self._replays[key] = self._made(op, self._plan(*key, operands))
            return replay(operands, out)

    def _made(self, op: str, plan: CsrPlan) -> Replay:
        if plan.choice.library:
            return LibraryReplay(self._libraries[op][plan.choice.library], self.threads)
        return NativeReplay(self._kernels.family(OPS[op]), plan.config)

    def _plan(self, op: str, shapes: Shapes, operands: Operands) -> CsrPlan:
        if (op, shapes) not in self._plans:
            self._plans[op, shapes] = self._found(op, shapes) or self._decided(op, shapes, operands)
        return self._plans[op, shapes]

    def _found(self, op: str, shapes: Shapes) -> CsrPlan | None:
        found = self._cache.find_schedule(self._key(op, shapes))
        if found is None:
            return None
        try:
            plan = CsrPlan(CsrChoice(**found["choice"]), Decision.from_json(found["decision"]))
            if plan.choice.library and plan.choice.library not in self._libraries.get(op, {}):
                raise SchemaError(f"library {plan.choice.library} is not here")
            if not plan.choice.library:
                CpuKernels(self.threads, math.prod(shapes[0])).space(OPS[op]).validate(plan.config)
        except (KeyError, TypeError, ValueError, IllegalSchedule, SchemaError) as error:
            log.warning("what was decided about %s on %s: %s: it is decided anew", op, self.matrix, error)
            return None
        return plan

    def _decided(self, op: str, shapes: Shapes, operands: Operands) -> CsrPlan:
        if self._replay_only:
            raise NotDecided(f"no plan for {op} with {self.matrix}, shapes {shapes}, {self.threads} threads: call it "
                             "once without replay_only")
        unmeasured = self._switches.unmeasured(self.matrix.pattern)
        if unmeasured:
            return CsrPlan(CsrChoice(config=safe_config(self._kernels, OPS[op]).key), Decision("rule", unmeasured))
        model = self._proposals.scorer(lambda: CsrEstimate(self._cache.rates(self.threads), self.threads),
                                       threads=self.threads)
        decider = CsrDecider(OPS[op], CpuKernels(self.threads, operands.width), self._libraries.get(op, {}),
                             self._policy, model, apart=self._proposals.learned)
        plan = CsrPlan(*decider.decide(operands))
        self._cache.keep_schedule(self._key(op, shapes), {
            "choice": asdict(plan.choice), "decision": plan.decision.to_json()})
        if self._probes is not None:
            self._probes.add(self._key(op, shapes), plan.choice, plan.decision)
        log.info("%s, %s, %s: %s; %s; %d runs, %.3f s", op, self.matrix, shapes, plan.choice.config or
                 plan.choice.library, plan.decision.reason, plan.decision.executions, plan.decision.seconds)
        return plan

    def _key(self, op: str, shapes: Shapes) -> dict[str, Any]:
        return {
            "op": op, "pattern": self._pattern, "shapes": [list(shape) for shape in shapes],
            "dtype": self.matrix.dtype.name, "threads": self.threads, "machine": machine_digest(),
            "kernels": sources_digest(SOURCES), "libraries": sorted(self._libraries.get(op, {})),
            "calibrate": self._policy.calibrate, **self._proposals.key}


def _check_out(out: np.ndarray, shape: tuple[int, ...], operands: Operands) -> None:
    if not isinstance(out, np.ndarray) or out.shape != shape:
        given = out.shape if isinstance(out, np.ndarray) else type(out).__name__
        raise ValueError(f"out is {given}: it must be an array of shape {shape}")
    if any(np.may_share_memory(out, array) for array in (operands.matrix.values, *operands.dense.values())):
        raise ValueError("out lies in the memory of an operand: give another array")


def _shapes(operands: Operands) -> Shapes:
    return tuple([array.shape[1:] for array in operands.dense.values()])


def _check_widths(first: np.ndarray, second: np.ndarray, name: str, other: str) -> None:
    if first.shape[1:] != second.shape[1:]:
        raise ValueError(f"{name} has shape {first.shape} and {other} {second.shape}: their rows must be alike")
