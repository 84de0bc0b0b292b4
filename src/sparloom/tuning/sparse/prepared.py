"""A sparse matrix made ready: what is called again and again with other dense operands."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import cached_property, lru_cache
from threading import RLock
from time import monotonic as clock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from sparloom.errors import IllegalSchedule, NotDecided, SchemaError
from sparloom.forks import forkable
from sparloom.ops import SDDMM, CsrAttention, Op, Operands, SpMM, SpmmMax, SpmmMean
from sparloom.platforms import Family
from sparloom.space import Config
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.cache import PlanCache, Summary
from sparloom.tuning.machine import AGAIN, LATEST, LoadWatch, tell_busy, watch_load
from sparloom.tuning.racing import Decision
from sparloom.tuning.search import Given
from sparloom.tuning.sparse.backend import (
    LIBRARIES,
    Backend,
    EmptyReplay,
    Library,
    LibraryReplay,
    MeanwhileReplay,
    NativeReplay,
    PlacesReplay,
    Replay,
    TimedReplay,
)
from sparloom.tuning.sparse.cpu import CpuBackend
from sparloom.tuning.sparse.inputs import Origin
from sparloom.tuning.sparse.settings import CsrPolicy, Settings
from sparloom.tuning.sparse.tuner import CsrChoice, CsrDecider, CsrPlan, OnlineReplay

if TYPE_CHECKING:
    from sparloom.platforms import DeviceMatrix

__all__ = ["Prepared"]

log = logging.getLogger(__name__)

Reduce = Literal["sum", "mean", "max"]
REDUCTIONS = get_args(Reduce)
Shapes = tuple[tuple[int, ...], ...]
"""Of the dense operands, each without its first axis."""

OPS: Mapping[str, Op] = {
    "spmm": SpMM(), "spmm_mean": SpmmMean(), "spmm_max": SpmmMax(), "sddmm": SDDMM(), "attention": CsrAttention()}
GIVEN = {"spmm": ("X", "values"), "sddmm": ("Q", "K", "values"), "attention": ("Q", "K", "V")}
SHORT = 2  # bytes of a number that cannot hold one over the nonzeros of a long row: kernels divide the sums instead


class _Case(NamedTuple):
    """What is decided about: an operation, with dense operands of some shapes and, as its other operands, of a type."""

    op: str
    shapes: Shapes
    dtype: str


class Prepared:
    """A sparse matrix, and what was decided about it.

    The first calls of an operation with a width decide how it runs, unless the cache knows: on a processor they
    are computed by one candidate after the other, on a GPU the first one measures. Further ones run at once.
    Threads may share it; their calls run one after the other. A call by a signal handler or a finaliser that interrupts
    another call in the same thread has arguments and workspaces of its own. The arrays of the matrix are used as they
    are: its values may be changed in place between calls, its indices must not be.

    Args:
        matrix: A (rows, cols), in the memory of the processor, or of the device that `where` is.
        origin: the arrays that A was given in, where `matrix` has copies of its index arrays.
        threads: of every call on the processor; all processors that this process may use unless given.
        cache: where decisions are kept; what `Settings` say, or else the folder of this user, unless given.
        policy: how decisions are made; what `Settings` say unless given.
        shortlist: which kernels are worth a measurement: "estimate", "all", "trees" or "model", see `CandidateSource`;
            what `Settings` say unless given.
        model: paths of the files that "trees" or "model" read, or, in place of `shortlist`, a model as an object.
        libraries: operation -> baselines beside the safe configuration of our kernels; those of `where` unless given.
        replay_only: measure nothing.
        where: A is; the processor unless given. Dense operands and results of all calls are there, too.
    """

    def __init__(
        self, matrix: SparseMatrix | DeviceMatrix, origin: Origin | None = None, *, threads: int | None = None,
        cache: PlanCache | None = None, policy: CsrPolicy | None = None, shortlist: str | None = None,
        model: Given = None, libraries: Mapping[str, Mapping[str, Library]] | None = None, replay_only: bool = False,
        where: Backend | None = None,
    ) -> None:
        self.matrix = matrix
        self.origin = Origin() if origin is None else origin
        self.where = CpuBackend(threads) if where is None else where
        self.threads = self.where.threads
        self._switches = Settings.from_environment()
        self._switches.show_decisions()
        self._cache = self._switches.plans() if cache is None else cache
        self._proposals = self._switches.proposals(shortlist, model)
        policy = self._switches.policy(self.where.policy(), matrix.pattern) if policy is None else policy
        self._policy = policy.measuring_all() if self._proposals.kind == "all" else policy
        self._probes = self._switches.probe_log(self._cache)
        self._libraries = self.where.libraries if libraries is None else libraries
        self._replay_only = replay_only
        self._plans: dict[_Case, CsrPlan] = {}
        self._replays: dict[_Case, Replay] = {}
        self._placing: dict[_Case, Replay] = {}  # of maxima with their places
        self._families: dict[tuple[str, int], Family] = {}  # what they run has any width
        self._unsure: dict[_Case, float] = {}  # decided on a busy machine -> seconds after which to decide anew
        self._lock = forkable(RLock())
        self._twin: Prepared | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the matrix and the options; decisions are found again in the cache, or made anew.

        Raises:
            TypeError: the matrix is on a GPU.
        """
        if not isinstance(self.where, CpuBackend):
            raise TypeError(f"{self.matrix} was prepared on a GPU and is neither copied nor pickled: prepare its "
                            "arrays again where the copy is wanted")
        proposals, libraries = self._proposals, None
        if self._libraries is not LIBRARIES:
            libraries = {op: dict(named) for op, named in self._libraries.items()}
        return _prepared_again, (self.matrix, {
            "threads": self.threads, "cache": self._cache, "policy": self._policy,
            "shortlist": None if proposals.given is not None else proposals.kind,
            "model": proposals.given or list(proposals.files), "libraries": libraries,
            "replay_only": self._replay_only})

    def spmm(
        self, dense: Any, *, reduce: Reduce = "sum", values: Any | None = None, out: Any | None = None,
    ) -> Any:
        """Multiply: A X.

        Args:
            dense: X (cols, width) float32; on a GPU of the type of the values, which may be float16.
            reduce: "sum"; "mean", divided by the nonzeros of each row; "max", the largest product of each, 0 in rows
                without nonzeros.
            values: (nnz,) of the same type, in place of those of A.
            out: (rows, width) of the same type, where the result goes; a new array unless given.

        Returns:
            (rows, width) of the same type.

        Raises:
            TypeError, ValueError: X or `out` does not fit, or is not where A is.
            Unsupported: there are no kernels for this where A is.
            NotDecided: `replay_only`, and nothing is kept for A and this width.
        """
        if reduce not in REDUCTIONS:
            raise ValueError(f"reduce={reduce!r}: give one of {', '.join(REDUCTIONS)}")
        given = self.where.dense(dense, "X", rows=self.matrix.pattern.cols, axes=2)
        matrix = self._with(values)
        shared = reduce == "mean" and min(given.dtype.itemsize, matrix.values.dtype.itemsize) > SHORT
        op = "spmm" if shared or reduce == "sum" else f"spmm_{reduce}"
        operands = Operands(self._averaging(matrix) if shared else matrix, {"B": given})
        return self._run(op, operands, out, (self.matrix.pattern.rows, given.shape[1]), (dense, values))

    def spmm_max(self, dense: Any, *, values: Any | None = None) -> tuple[Any, Any]:
        """Take the largest products as `spmm` does, by the kernel that was decided for it, and find their places.

        Args:
            dense, values: as in `spmm`.

        Returns:
            (rows, width) of the type of X; (rows, width) int32, which nonzero of A each comes from: the first one whose
            product is the largest, or NaN; -1 in rows without nonzeros.

        Raises:
            TypeError, ValueError, Unsupported, NotDecided: as by `spmm`; also where A has 2**31 nonzeros or more.
        """
        given = self.where.dense(dense, "X", rows=self.matrix.pattern.cols, axes=2)
        operands = Operands(self._with(values), {"B": given})
        changed = self.origin.changed()
        if changed:
            self.origin.refuse(changed)
        case, own = self._case("spmm_max", operands), self._own()
        with own._lock:
            replay = own._placing.get(case)
            if replay is None:
                replay = own._placing[case] = own._begun(case, operands, places=True)
            return replay(operands)

    def sddmm(
        self, left: Any, right: Any, *, values: Any | None = None, out: Any | None = None,
    ) -> Any:
        """Multiply on the pattern of A: values of A * (Q KT).

        Args:
            left, right: Q (rows, width), K (cols, width), of types as in `spmm`.
            values: (nnz,), in place of those of A.
            out: (nnz,), as in `spmm`.

        Returns:
            (nnz,), in the order of A's values.

        Raises:
            TypeError, ValueError, Unsupported, NotDecided: as by `spmm`; also where Q and K differ in width.
        """
        rows, cols = self.matrix.pattern.shape
        dense = self.where.dense
        first, second = dense(left, "Q", rows=rows, axes=2), dense(right, "K", rows=cols, axes=2)
        _check_widths(first, second, "Q", "K")
        return self._run("sddmm", Operands(self._with(values), {"B": first, "C": second}), out,
                         (self.matrix.pattern.nnz,), (left, right, values))

    def attention(self, queries: Any, keys: Any, values: Any, *, out: Any | None = None) -> Any:
        """Attend: softmax of Q KT / sqrt(d) over the columns of each row of A, times V; A's values are not read.

        Args:
            queries, keys, values: Q (rows, heads, d), K (cols, heads, d), V (cols, heads, e), float32; on a GPU all of
                them may be float16.
            out: (rows, heads, e), as in `spmm`.

        Returns:
            (rows, heads, e) of the same type; 0 for rows without nonzeros.

        Raises:
            TypeError, ValueError, Unsupported, NotDecided: as by `spmm`; also where heads or widths differ.
        """
        rows, cols = self.matrix.pattern.shape
        given = {name: self.where.dense(array, name, rows=count, axes=3) for name, array, count in (
            ("Q", queries, rows), ("K", keys, cols), ("V", values, cols))}
        _check_widths(given["Q"], given["K"], "Q", "K")
        if given["V"].shape[1] != given["Q"].shape[1]:
            raise ValueError(f"V has {given['V'].shape[1]} heads and Q {given['Q'].shape[1]}: give as many")
        if given["Q"].shape[2] == 0:
            raise ValueError(f"Q has shape {given['Q'].shape}: attention divides by the width of a head: give at "
                             "least 1")
        return self._run("attention", Operands(self.matrix, given), out, (rows, *given["V"].shape[1:]),
                         (queries, keys, values))

    def plan(self, op: str, **dense: Any) -> CsrPlan:
        """Decide for dense operands such as these, or find what was decided.

        Where calls are the race, see `CsrPolicy`, it is run to its end.
        """
        operands = Operands(self.matrix, dense)
        case = self._case(op, operands)
        if any(0 in shape for shape in case.shapes):
            raise ValueError(f"{op} with operands of shapes {case.shapes} computes nothing: there is nothing to plan")
        own = self._own()
        with own._lock:
            while case not in own._plans:
                if case not in own._replays:
                    own._replays[case] = own._begun(case, operands)
                if case not in own._plans:
                    own._replays[case](operands)
            return own._plans[case]

    def decided(self, op: str, **dense: Any) -> bool:
        """Tell whether it is decided how calls with such dense operands run, without a run."""
        return self._case(op, Operands(self.matrix, dense)) in self._plans

    def fits(self, pattern: Pattern) -> bool:
        """Tell whether this was made for such a pattern; reads all of it."""
        return pattern.digest() == self._pattern

    @cached_property
    def _pattern(self) -> str:
        return self.matrix.pattern.digest()

    @cached_property
    def _shares(self) -> Any:
        """One over the nonzeros of its row, of every nonzero: (nnz,) float32."""
        lengths = self.matrix.pattern.row_lengths()
        return self.where.spread(np.repeat(np.float32(1) / np.maximum(lengths, 1).astype(np.float32), lengths))

    def _with(self, values: Any | None) -> SparseMatrix | DeviceMatrix:
        """Take the values of this call."""
        if values is None or values is self.matrix.values:
            return self.matrix
        array = self.where.array(values, "values")
        if array.dtype != self.matrix.dtype and isinstance(self.matrix, SparseMatrix):  # a GPU takes more types
            raise TypeError(f"values are {array.dtype}: pass values.astype(numpy.{self.matrix.dtype})")
        return self.matrix.with_values(array)

    def _averaging(self, matrix: SparseMatrix | DeviceMatrix) -> SparseMatrix | DeviceMatrix:
        """Take shares of the values of this call: they may not be those of the last call."""
        return matrix.with_values(self.where.times(matrix.values, self._shares))

    def _run(
        self, op: str, operands: Operands, out: Any | None, shape: tuple[int, ...], given: tuple[Any, ...],
    ) -> Any:
        case = self._case(op, operands)
        changed = self.origin.changed()
        if changed:
            self.origin.refuse(changed)
        if out is not None:
            out = self.where.check_out(out, shape, operands, (*zip(GIVEN.get(op, GIVEN["spmm"]), given, strict=True),
                                                              ("values of A", self.matrix.values)), self.origin)
        own = self if not self._lock._is_owned() else self._own()
        with own._lock:
            replay = own._replays.get(case)
            if replay is None:
                replay = own._replays[case] = own._begun(case, operands)
            return replay(operands, out)

    def _own(self) -> Prepared:
        """Give this, or a twin with the same decisions where this thread is in the middle of a call.

        A signal handler or finaliser interrupts a call between pointing a kernel to its arrays and running it, or in
        the middle of a decision. `RLock` tells whether its thread holds it in one step, so nothing can come between.
        """
        if not self._lock._is_owned():
            return self
        if self._twin is None:
            twin = object.__new__(type(self))
            twin.__dict__.update(self.__dict__, _lock=forkable(RLock()), _twin=None, _replays={}, _placing={},
                                 _families={})
            self._twin = twin
        return self._twin._own()

    def _case(self, op: str, operands: Operands) -> _Case:
        shapes = tuple([array.shape[1:] for array in operands.dense.values()])
        return _Case(op, shapes, self.where.dtype(op, operands))

    def _begun(self, case: _Case, operands: Operands, *, places: bool = False) -> Replay:
        """Make what computes a case from now on: by what is known about it, or deciding meanwhile."""
        if any(0 in shape for shape in case.shapes):
            return EmptyReplay(self._family(case.op), self.where, places=places)
        if case not in self._plans:
            plan = self._found(case) or self._unmeasured(case, operands)
            if plan is None and self._policy.calibrate == "online":
                return self._online(case, operands, places)
            self._plans[case] = plan or self._decided(case, operands)
        made = self._made(case, self.where.safe(_op_for(case), operands), self._plans[case].choice, places)
        return self._meanwhile(case, made, places) if case in self._unsure else made

    def _made(self, case: _Case, safe: Config, choice: CsrChoice, places: bool) -> TimedReplay:
        """Make what runs a choice; places of maxima are found by our own kernels, whatever runs without them."""
        config = _parsed(safe.space, choice.config) if choice.config else safe
        if places:
            return PlacesReplay(self._family(case.op, choice.threads), config)
        if choice.library:
            library = self._libraries[case.op][choice.library]
            return LibraryReplay(library(self.matrix, self.threads), self.where)
        return NativeReplay(self._family(case.op, choice.threads), config)

    def _meanwhile(self, case: _Case, replay: Replay, places: bool) -> MeanwhileReplay:
        """Run a choice that was made on a busy machine until it is time to look again, each time twice as late."""
        replays: dict[_Case, Any] = self._placing if places else self._replays

        def anew(operands: Operands) -> Replay:
            self._unsure[case] = min(2 * self._unsure.get(case, AGAIN), LATEST)
            found = self._found(case)  # by another process
            if found is not None:
                self._sure(case, found)
            elif self._policy.calibrate == "online":
                replays[case] = self._online(case, operands, places)
                return replays[case]
            else:
                self._plans[case] = self._decided(case, operands)
            replays[case] = self._begun(case, operands, places=places)
            return replays[case]

        return MeanwhileReplay(replay, clock() + self._unsure.setdefault(case, AGAIN), anew, clock=clock)

    def _sure(self, case: _Case, plan: CsrPlan) -> None:
        self._plans[case] = plan
        self._unsure.pop(case, None)

    def _online(self, case: _Case, operands: Operands, places: bool) -> OnlineReplay:
        """Let calls decide, but those that find places without libraries, which cannot."""
        replays: dict[_Case, Any] = self._placing if places else self._replays
        safe, libraries = self.where.safe(_op_for(case), operands), self._libraries.get(case.op, {})

        def settle(choice: CsrChoice, decision: Decision, replay: Replay, busy: str) -> None:
            known = None if case in self._unsure else self._plans.get(case)  # by calls without places, or with them
            if known is None and not (places and libraries):
                self._keep(case, CsrPlan(choice, decision, safe.space), busy)
            made = replay if known is None else self._made(case, safe, known.choice, places)
            # last: an exception before it leaves the race, which is run again
            replays[case] = self._meanwhile(case, made, places) if busy and known is None else made

        return OnlineReplay(self._decider(case, {} if places else libraries),
                            lambda choice: self._made(case, safe, choice, places), settle, self._watch)

    def _watch(self) -> LoadWatch:
        """Watch the load of the processors, which a GPU does not wait for."""
        return watch_load(keep_busy=self._cache.keep_busy or not self.threads)

    def _family(self, op: str, threads: int = 0) -> Family:
        if (op, threads) not in self._families:
            where = self.where.with_threads(threads) if threads else self.where
            self._families[op, threads] = where.kernels(OPS[op], 1)
        return self._families[op, threads]

    def _found(self, case: _Case) -> CsrPlan | None:
        found, op = self._cache.get("csr", self._key(case)), case.op
        if found is None:
            return None
        try:
            space = self.where.space(_op_for(case), math.prod(case.shapes[0]))
            plan = CsrPlan(CsrChoice(**found["choice"]), Decision.from_json(found["decision"]), space.name)
            if plan.choice.library and plan.choice.library not in self._libraries.get(op, {}):
                raise SchemaError(f"library {plan.choice.library} is not here")
            if not plan.choice.library:
                space.validate(plan.config)
            if plan.choice.threads not in range(1 + self.threads):
                raise SchemaError(f"threads={plan.choice.threads!r} of {self.threads}")
        except (AttributeError, KeyError, TypeError, ValueError, IllegalSchedule, SchemaError) as error:
            log.warning("what was decided about %s on %s: %s: it is decided anew", op, self.matrix, error)
            return None
        return plan

    def _unmeasured(self, case: _Case, operands: Operands) -> CsrPlan | None:
        """Take the safe configuration where the environment allows no measurement."""
        if self._replay_only:
            raise NotDecided(f"no plan for {case.op} with {self.matrix}, shapes {case.shapes}, {self.threads} threads: "
                             "call it without replay_only until it is decided, or its plan once")
        reason, op = self._switches.unmeasured(self.matrix.pattern), _op_for(case)
        if not reason:
            return None
        safe = self.where.safe(op, operands)
        return CsrPlan(CsrChoice(config=safe.key), Decision("rule", reason), safe.space)

    def _decided(self, case: _Case, operands: Operands) -> CsrPlan:
        decider, watch = self._decider(case, self._libraries.get(case.op, {})), self._watch()
        with watch.over():
            choice, decision = decider.decide(operands)
        busy = watch.close()
        if busy and choice.library:
            choice = CsrChoice(config=self.where.safe(_op_for(case), operands).key)
        plan = CsrPlan(choice, decision, self.where.space(_op_for(case), operands.width).name)
        self._keep(case, plan, busy)
        return plan

    def _decider(self, case: _Case, libraries: Mapping[str, Library]) -> CsrDecider:
        where = self.where
        return CsrDecider(
            _op_for(case), where, libraries, self._policy,
            lambda: self._proposals.scorer(lambda: where.model(self._cache), threads=self.threads),
            allows=self._switches.cuda.allows, apart=self._proposals.learned)

    def _keep(self, case: _Case, plan: CsrPlan, busy: str = "") -> None:
        """Take a decision, for later processes, too, unless the machine was busy, and tell of it."""
        value = {"choice": plan.choice.to_json(), "decision": plan.decision.to_json()}
        if busy:
            self._unsure.setdefault(case, AGAIN)
            self._plans[case] = plan
            tell_busy()
        else:
            self._cache.put("csr", self._key(case), value, summary=self._summary(case, plan))
            self._sure(case, plan)  # not before it is kept: where an exception comes between, it is decided anew
        if self._probes is not None:
            self._probes.add(self._key(case), value)
        log.info("%s, %s, %s: %s; %s%s; %d runs, %.3f s", case.op, self.matrix, case.shapes, plan.choice.name,
                 plan.decision.reason, f"; not kept: {busy}" if busy else "", plan.decision.executions,
                 plan.decision.seconds)

    def _summary(self, case: _Case, plan: CsrPlan) -> Summary:
        speedup, source = plan.decision.speedup(plan.choice.name), str(self._proposals.key.get("shortlist", "")).split()
        if speedup is None and plan.decision.origin == "measured":
            speedup = 1.0  # nothing was faster than the best baseline, which runs
        return Summary(", shortlist=".join([case.op, *source[:1]]), ", ".join("x".join(map(str, shape))
                       for shape in case.shapes), plan.choice.name, plan.decision.reason, speedup, self.where.sources)

    def _key(self, case: _Case) -> dict[str, Any]:
        return {
            "op": case.op, "pattern": self._pattern, "shapes": [list(shape) for shape in case.shapes],
            "dtype": case.dtype, **self.where.signature(),
            "libraries": sorted(self._libraries.get(case.op, {})), "calibrate": self._policy.calibrate,
            **self._proposals.key}


_parsed = lru_cache(256)(Config.parse)


def _prepared_again(matrix: SparseMatrix, options: Mapping[str, Any]) -> Prepared:
    """Make a copy of what was prepared."""
    return Prepared(matrix, **options)


def _op_for(case: _Case) -> Op:
    """Take an operation, attention with as many heads as its operands have."""
    return CsrAttention(case.shapes[0][0]) if case.op == "attention" else OPS[case.op]


def _check_widths(first: Any, second: Any, name: str, other: str) -> None:
    if first.shape[1:] != second.shape[1:]:
        raise ValueError(f"{name} has shape {first.shape} and {other} {second.shape}: their rows must be alike")
