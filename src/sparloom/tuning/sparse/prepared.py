"""Prepared sparse matrices: one matrix, called again and again with other dense operands."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import cached_property, lru_cache, partial
from threading import RLock
from time import monotonic as clock
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from sparloom.errors import IllegalSchedule, NoCompiler, NotDecided, SchemaError
from sparloom.forks import forkable
from sparloom.measure import watch_load, watched
from sparloom.ops import Operands
from sparloom.platforms import Family
from sparloom.space import Config
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.cache import AGAIN, LATEST, PlanCache, Summary, tell_busy
from sparloom.tuning.racing import Decision
from sparloom.tuning.search import Given
from sparloom.tuning.sparse.backend import LIBRARIES, LIBRARY_DTYPES, OPS, Backend, Case, CsrChoice, CsrPlan, Library
from sparloom.tuning.sparse.cpu import CpuBackend
from sparloom.tuning.sparse.fallback import FallbackReplay, kernels_available
from sparloom.tuning.sparse.inputs import Origin, check_widths, number_array
from sparloom.tuning.sparse.repeated import RepeatedCalls
from sparloom.tuning.sparse.replay import (
    ArgmaxReplay,
    EmptyReplay,
    LibraryReplay,
    NativeReplay,
    OnlineReplay,
    ProvisionalReplay,
    Replay,
    TimedReplay,
)
from sparloom.tuning.sparse.settings import CsrPolicy, Settings
from sparloom.tuning.sparse.tuner import CsrDecider

if TYPE_CHECKING:
    from sparloom.platforms import DeviceMatrix

__all__ = ["Prepared"]

log = logging.getLogger(__name__)

Reduce = Literal["sum", "mean", "max"]
REDUCTIONS = get_args(Reduce)
OPERANDS = {"spmm": ("X", "values"), "sddmm": ("Q", "K", "values"), "attention": ("Q", "K", "V")}
HALF_BYTES = 2  # of numbers that cannot represent 1 / nonzeros of a long row: kernels divide the sums instead
_parsed = lru_cache(256)(Config.parse)


class Prepared:
    """A sparse matrix and the decisions about it.

    The first calls of an operation with a width decide how it runs, unless the decision is cached: on a processor they
    rotate through the candidates, on a GPU the first one measures. Threads may share it; their calls run one after the
    other. A call by a signal handler or a finaliser that interrupts another call in the same thread has its own
    arguments and workspaces. The arrays of the matrix are used in place: its values may be changed between calls, its
    indices must not be.

    Args:
        matrix: A (rows, cols), on the device `where`.
        origin: the arrays that A came in, if `matrix` has copies of its index arrays.
        threads: of every call on the processor (default: all processors that this process may use).
        cache: of decisions (default: as in `Settings`, else the folder of this user).
        policy: how decisions are made (default: as in `Settings`).
        shortlist: what selects the candidates: "estimate", "all", "trees" or "model", see `CandidateSource` (default:
            as in `Settings`).
        model: paths of the files that "trees" or "model" read, or a model object in place of `shortlist`.
        libraries: operation -> baselines besides the default configuration (default: those of `where`).
        replay_only: measure nothing.
        where: device of A, and of dense operands and results (default: CPU).
    """

    def __init__(
        self, matrix: SparseMatrix | DeviceMatrix, origin: Origin | None = None, *, threads: int | None = None,
        cache: PlanCache | None = None, policy: CsrPolicy | None = None, shortlist: str | None = None,
        model: Given = None, libraries: Mapping[str, Mapping[str, Library]] | None = None, replay_only: bool = False,
        where: Backend | None = None,
    ) -> None:
        self.matrix = matrix
        self.origin = Origin() if origin is None else origin
        self.backend = CpuBackend(threads) if where is None else where
        self._arrays, self.threads = self.backend.arrays, self.backend.threads
        self._settings = Settings.from_environment()
        self._settings.show_decisions()
        self._cache = self._settings.plans() if cache is None else cache
        formula = shortlist is None and model is None and self._settings.shortlist is None
        self._source = None if formula else self._settings.candidate_source(shortlist, model)
        policy = self._settings.policy(self.backend.policy(), matrix.pattern) if policy is None else policy
        self._policy = policy if self._source is None or self._source.kind != "all" else policy.measuring_all()
        self._libraries = self.backend.libraries if libraries is None else libraries
        self._replay_only = replay_only
        self._plans: dict[Case, CsrPlan] = {}
        self._replays: dict[Case, Replay] = {}
        self._argmax_replays: dict[Case, Replay] = {}  # of `spmm_max`
        self._repeated = RepeatedCalls()
        self._weights: dict[np.dtype, Any] = {}  # of means, by their type
        self._families: dict[tuple[str, int], Family] = {}  # for any width
        self._provisional: dict[Case, float] = {}  # decided on a busy machine -> seconds until it is decided again
        self._lock = forkable(RLock())
        self._twin: Prepared | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the matrix and the options; decisions are looked up in the cache, or made again.

        Raises:
            TypeError: the matrix is on a GPU.
        """
        if not isinstance(self.backend, CpuBackend):
            raise TypeError(f"{self.matrix} was prepared on a GPU and cannot be copied or pickled: prepare its "
                            "arrays again instead")
        source, libraries = self._source, None
        if self._libraries is not LIBRARIES:
            libraries = {op: dict(named) for op, named in self._libraries.items()}
        return _prepared_again, (self.matrix, {
            "threads": self.threads, "cache": self._cache, "policy": self._policy,
            "libraries": libraries, "replay_only": self._replay_only,
            **({"shortlist": "estimate"} if source is None else {
                "shortlist": None if source.given is not None else source.kind,
                "model": source.given or list(source.files)})})

    def spmm(
        self, dense: Any, *, reduce: Reduce = "sum", values: Any | None = None, out: Any | None = None,
    ) -> Any:
        """Multiply: A X.

        Args:
            dense: X (cols, width), float32, float64, float16 or bfloat16. If the values have another type, both are
                converted to the type that NumPy promotes them to, in every call; on a GPU they must have one type,
                not float64.
            reduce: "sum"; "mean", divided by the nonzeros of each row; "max", the largest product of each, 0 in rows
                without nonzeros.
            values: (nnz,), replacing those of A.
            out: (rows, width) of the promoted type, for the result (default: a new array).

        Returns:
            (rows, width) of the promoted type; sums of 16-bit numbers are float32 until they are rounded.

        Raises:
            TypeError, ValueError: X or `out` does not fit, or is not on the device of A.
            Unsupported: there are no kernels for this on the device of A.
            NotDecided: `replay_only`, and no decision is stored for A and this width.
        """
        if reduce == "sum" and values is None and (
                found := self._repeated.result("spmm", (dense,), out, self._lock)) is not None:
            return found
        if reduce not in REDUCTIONS:
            raise ValueError(f"reduce={reduce!r}: give one of {', '.join(REDUCTIONS)}")
        given = self._arrays.dense(dense, "X", rows=self.matrix.pattern.cols, axes=2)
        matrix = self._with(values)
        if given.dtype is not matrix.dtype:
            matrix, given = self._arrays.promoted(matrix, given)
        shared = reduce == "mean" and min(given.dtype.itemsize, matrix.values.dtype.itemsize) > HALF_BYTES
        op = "spmm" if shared or reduce == "sum" else f"spmm_{reduce}"
        operands = Operands(self._mean_matrix(matrix) if shared else matrix, {"B": given})
        return self._run(op, operands, out, (self.matrix.pattern.rows, given.shape[1]), (dense, values))

    def spmm_max(self, dense: Any, *, values: Any | None = None) -> tuple[Any, Any]:
        """Compute the largest products and their argmax, by the kernel that was decided for `spmm` with "max".

        Args:
            dense, values: as in `spmm`.

        Returns:
            (rows, width) of the type as in `spmm`; (rows, width) int32, index of the nonzero of A that each comes
            from: the first one whose product is the largest, or NaN; -1 in rows without nonzeros.

        Raises:
            TypeError, ValueError, Unsupported, NotDecided: as by `spmm`; also where A has 2**31 nonzeros or more.
        """
        given = self._arrays.dense(dense, "X", rows=self.matrix.pattern.cols, axes=2)
        matrix, given = self._arrays.promoted(self._with(values), given)
        operands = Operands(matrix, {"B": given})
        changed = self.origin.changed()
        if changed:
            self.origin.refuse(changed)
        case, own = self._case("spmm_max", operands), self._unlocked()
        with own._lock:
            replay = own._argmax_replays.get(case)
            if replay is None:
                replay = own._argmax_replays[case] = own._start(case, operands, argmax=True)
            return replay(operands)

    def sddmm(
        self, left: Any, right: Any, *, values: Any | None = None, out: Any | None = None,
    ) -> Any:
        """Sampled dense-dense product: values of A * (Q KT).

        Args:
            left, right: Q (rows, width), K (cols, width), of types as in `spmm`.
            values: (nnz,), replacing those of A.
            out: (nnz,), as in `spmm`.

        Returns:
            (nnz,), in the order of A's values.

        Raises:
            TypeError, ValueError, Unsupported, NotDecided: as by `spmm`; also where Q and K differ in width.
        """
        if values is None and (
                found := self._repeated.result("sddmm", (left, right), out, self._lock)) is not None:
            return found
        rows, cols = self.matrix.pattern.shape
        dense = self._arrays.dense
        first, second = dense(left, "Q", rows=rows, axes=2), dense(right, "K", rows=cols, axes=2)
        check_widths(first, second, "Q", "K")
        matrix = self._with(values)
        if not (first.dtype is second.dtype is matrix.dtype):
            matrix, first, second = self._arrays.promoted(matrix, first, second)
        return self._run("sddmm", Operands(matrix, {"B": first, "C": second}), out,
                         (self.matrix.pattern.nnz,), (left, right, values))

    def attention(self, queries: Any, keys: Any, values: Any, *, out: Any | None = None) -> Any:
        """Attention: softmax of Q KT / sqrt(d) over the nonzeros of each row of A, times V; A's values are not read.

        Args:
            queries, keys, values: Q (rows, heads, d), K (cols, heads, d), V (cols, heads, e), of types as in `spmm`.
            out: (rows, heads, e), as in `spmm`.

        Returns:
            (rows, heads, e) of the promoted type; 0 for rows without nonzeros.

        Raises:
            TypeError, ValueError, Unsupported, NotDecided: as by `spmm`; also where heads or widths differ.
        """
        rows, cols = self.matrix.pattern.shape
        given = {name: self._arrays.dense(array, name, rows=count, axes=3) for name, array, count in (
            ("Q", queries, rows), ("K", keys, cols), ("V", values, cols))}
        check_widths(given["Q"], given["K"], "Q", "K")
        if given["V"].shape[1] != given["Q"].shape[1]:
            raise ValueError(f"V has {given['V'].shape[1]} heads and Q {given['Q'].shape[1]}: give as many")
        if given["Q"].shape[2] == 0:
            raise ValueError(f"Q has shape {given['Q'].shape}: attention divides by the width of a head: give at "
                             "least 1")
        _, *promoted = self._arrays.promoted(None, *given.values())
        given = dict(zip(given, promoted, strict=True))
        return self._run("attention", Operands(self.matrix, given), out, (rows, *given["V"].shape[1:]),
                         (queries, keys, values))

    def plan(self, op: str, **dense: Any) -> CsrPlan:
        """Return the decision for such dense operands, made now if necessary; an online race is run to its end."""
        operands = Operands(self.matrix, dense)
        case = self._case(op, operands)
        if any(0 in shape for shape in case.shapes):
            raise ValueError(f"{op} with operands of shapes {case.shapes} computes nothing: there is nothing to plan")
        if self.threads and not kernels_available(op, case.dtype):
            raise NoCompiler(f"no kernel of {op} can be compiled: there is nothing to choose from", source="", log="")
        own = self._unlocked()
        with own._lock:
            while case not in own._plans:
                if case not in own._replays:
                    own._replays[case] = own._start(case, operands)
                if case not in own._plans:
                    own._replays[case](operands)
            return own._plans[case]

    def decided(self, op: str, **dense: Any) -> bool:
        """Tell whether it is decided how calls with such dense operands run; runs nothing."""
        return self._case(op, Operands(self.matrix, dense)) in self._plans

    def fits(self, pattern: Pattern) -> bool:
        """Tell whether this was made for a pattern with this content; reads all of it."""
        return pattern.digest() == self._pattern

    @cached_property
    def _pattern(self) -> str:
        return self.matrix.pattern.digest()

    def _mean_weights(self, dtype: np.dtype) -> Any:
        """1 / nonzeros of its row, for every nonzero: (nnz,) of a type."""
        if dtype not in self._weights:
            lengths = self.matrix.pattern.row_lengths()
            shares = dtype.type(1) / np.maximum(lengths, 1).astype(dtype)
            self._weights[dtype] = self._arrays.to_device(np.repeat(shares, lengths))
        return self._weights[dtype]

    def _with(self, values: Any | None) -> SparseMatrix | DeviceMatrix:
        """The matrix with the values of this call."""
        if values is None or values is self.matrix.values:
            return self.matrix
        array = self._arrays.array(values, "values")
        if array.dtype != self.matrix.dtype and isinstance(self.matrix, SparseMatrix):
            return SparseMatrix(self.matrix.pattern, number_array(array, "values"), array.dtype)
        return self.matrix.with_values(array)

    def _mean_matrix(self, matrix: SparseMatrix | DeviceMatrix) -> SparseMatrix | DeviceMatrix:
        """Divide the values of this call, which may be new ones, by the nonzeros of their rows."""
        return matrix.with_values(self._arrays.multiply(matrix.values, self._mean_weights(matrix.dtype)))

    def _run(
        self, op: str, operands: Operands, out: Any | None, shape: tuple[int, ...], given: tuple[Any, ...],
    ) -> Any:
        case = self._case(op, operands)
        changed = self.origin.changed()
        if changed:
            self.origin.refuse(changed)
        if out is not None:
            names = OPERANDS.get(op, OPERANDS["spmm"])
            inputs = (*zip(names, given, strict=True), ("values of A", self.matrix.values))
            out = self._arrays.check_out(out, shape, operands, inputs, self.origin)
        own = self if not self._lock._is_owned() else self._unlocked()
        with own._lock:
            replay = own._replays.get(case)
            if replay is None:
                replay = own._replays[case] = own._start(case, operands)
            result = replay(operands, out)
            if operands.matrix is self.matrix:
                own._repeated.keep(op, replay, operands, given, result, self.origin)
            return result

    def _unlocked(self) -> Prepared:
        """Return this object, or a twin with the same decisions for a signal handler that interrupts a call of it."""
        if not self._lock._is_owned():
            return self
        if self._twin is None:
            twin = object.__new__(type(self))
            twin.__dict__.update(self.__dict__, _lock=forkable(RLock()), _twin=None, _replays={}, _argmax_replays={},
                                 _repeated=RepeatedCalls(), _families={})
            self._twin = twin
        return self._twin._unlocked()

    def _case(self, op: str, operands: Operands) -> Case:
        shapes = tuple([array.shape[1:] for array in operands.dense.values()])
        return Case(op, shapes, self._arrays.dtype(op, operands))

    def _start(self, case: Case, operands: Operands, *, argmax: bool = False) -> Replay:
        """Make the replay of a case: by its decision if there is one, else deciding online or now."""
        if any(0 in shape for shape in case.shapes):
            return EmptyReplay(self._family(case.op), self._arrays, argmax=argmax)
        if self.threads and not kernels_available(case.op, case.dtype):
            return FallbackReplay(case.op, self._family(case.op), argmax=argmax)
        if case not in self._plans:
            plan = self._cached(case) or self._unmeasured(case, operands)
            if plan is None and self._policy.calibrate == "online":
                return self._online(case, operands, argmax)
            self._plans[case] = plan or self._decided(case, operands)
        default = self.backend.default_config(case.operation, operands)
        made = self._replay_of(case, default, self._plans[case].choice, argmax)
        return self._provisional_replay(case, made, argmax) if case in self._provisional else made

    def _replay_of(self, case: Case, default: Config, choice: CsrChoice, argmax: bool) -> TimedReplay:
        """Make the replay of a choice; the argmax is always computed by our own kernels."""
        config = _parsed(default.space, choice.config) if choice.config else default
        if argmax:
            return ArgmaxReplay(self._family(case.op, choice.threads), config)
        if choice.library:
            library = self._libraries_for(case)[choice.library]
            return LibraryReplay(library(self.matrix, self.threads), self._arrays)
        return NativeReplay(self._family(case.op, choice.threads), config)

    def _provisional_replay(self, case: Case, replay: Replay, argmax: bool) -> ProvisionalReplay:
        """Run a choice that was made on a busy machine until it is decided again, after twice as long each time."""
        replays: dict[Case, Any] = self._argmax_replays if argmax else self._replays

        def renew(operands: Operands) -> Replay:
            self._provisional[case] = min(2 * self._provisional.get(case, AGAIN), LATEST)
            found = self._cached(case)  # by another process
            if found is not None:
                self._settle_case(case, found)
            elif self._policy.calibrate == "online":
                replays[case] = self._online(case, operands, argmax)
                return replays[case]
            else:
                self._plans[case] = self._decided(case, operands)
            replays[case] = self._start(case, operands, argmax=argmax)
            return replays[case]

        return ProvisionalReplay(replay, clock() + self._provisional.setdefault(case, AGAIN), renew, clock=clock)

    def _settle_case(self, case: Case, plan: CsrPlan) -> None:
        self._plans[case] = plan
        self._provisional.pop(case, None)

    def _online(self, case: Case, operands: Operands, argmax: bool) -> OnlineReplay:
        """Decide online; calls that compute the argmax have no libraries among their candidates."""
        replays: dict[Case, Any] = self._argmax_replays if argmax else self._replays
        default, libraries = self.backend.default_config(case.operation, operands), self._libraries_for(case)

        def settle(choice: CsrChoice, decision: Decision, replay: Replay, busy: str, again: bool) -> None:
            known = None if again or case in self._provisional else self._plans.get(case)  # of calls with other results
            if known is None and not (argmax and libraries) and not (again and busy):
                self._store(case, CsrPlan(choice, decision, default.space), busy)
            made = replay if known is None else self._replay_of(case, default, known.choice, argmax)
            busy = "" if again or known is not None else busy
            # last: after an exception before it, the race is run again
            replays[case] = self._provisional_replay(case, made, argmax) if busy else made

        return OnlineReplay(self._decider(case, {} if argmax else libraries),
                            lambda choice: self._replay_of(case, default, choice, argmax), settle,
                            lambda: watch_load(keep_busy=self._keep_busy))

    @property
    def _keep_busy(self) -> bool:
        """Tell whether the load of the processors does not matter, as on a GPU."""
        return self._cache.keep_busy or not self.threads

    def _family(self, op: str, threads: int = 0) -> Family:
        if (op, threads) not in self._families:
            backend = self.backend.with_threads(threads) if threads else self.backend
            self._families[op, threads] = backend.kernels(OPS[op], 1)
        return self._families[op, threads]

    def _cached(self, case: Case) -> CsrPlan | None:
        found, op = self._cache.get("csr", self._key(case)), case.op
        if found is None:
            return None
        try:
            space = self.backend.space(case.operation, math.prod(case.shapes[0]))
            plan = CsrPlan(CsrChoice(**found["choice"]), Decision.from_json(found["decision"]), space.name)
            if plan.choice.library and plan.choice.library not in self._libraries_for(case):
                raise SchemaError(f"library {plan.choice.library} is not installed")
            if not plan.choice.library:
                space.validate(plan.config)
            if plan.choice.threads not in range(1 + self.threads):
                raise SchemaError(f"threads={plan.choice.threads!r} of {self.threads}")
        except (AttributeError, KeyError, TypeError, ValueError, IllegalSchedule, SchemaError) as error:
            log.warning("cached decision about %s on %s: %s: it is decided anew", op, self.matrix, error)
            return None
        return plan

    def _unmeasured(self, case: Case, operands: Operands) -> CsrPlan | None:
        """Plan the default configuration if the environment allows no measurement; else None."""
        if self._replay_only:
            raise NotDecided(f"no plan for {case.op} with {self.matrix}, shapes {case.shapes}, {self.threads} threads: "
                             "call it without replay_only until it is decided, or its plan once")
        reason, op = self._settings.unmeasured(self.matrix.pattern), case.operation
        if not reason:
            return None
        default = self.backend.default_config(op, operands)
        return CsrPlan(CsrChoice(config=default.key), Decision("rule", reason), default.space)

    def _decided(self, case: Case, operands: Operands) -> CsrPlan:
        decider = self._decider(case, self._libraries_for(case))
        (choice, decision), busy = watched(lambda: decider.decide(operands), keep_busy=self._keep_busy)
        if busy and choice.library:
            choice = CsrChoice(config=self.backend.default_config(case.operation, operands).key)
        plan = CsrPlan(choice, decision, self.backend.space(case.operation, operands.width).name)
        self._store(case, plan, busy)
        return plan

    def _libraries_for(self, case: Case) -> Mapping[str, Library]:
        """Baselines of a case; on a processor, libraries have none for 16-bit numbers."""
        return {} if self.threads and case.dtype not in LIBRARY_DTYPES else self._libraries.get(case.op, {})

    def _decider(self, case: Case, libraries: Mapping[str, Library]) -> CsrDecider:
        backend, source = self.backend, self._source
        formula = partial(backend.model, self._cache)
        model = formula if source is None else lambda: source.scorer(formula, threads=self.threads)
        allows = {} if self.threads else {"allows": self._settings.cuda.allows}
        return CsrDecider(case.operation, backend, libraries, self._policy, model, **allows,
                          slow_model=source is not None and source.learned)

    def _store(self, case: Case, plan: CsrPlan, busy: str = "") -> None:
        """Record a decision and log it; store it for later processes unless the machine was busy."""
        value = {"choice": plan.choice.to_json(), "decision": plan.decision.to_json()}
        if busy:
            self._provisional.setdefault(case, AGAIN)
            self._plans[case] = plan
            tell_busy()
        else:
            self._cache.put("csr", self._key(case), value, summary=self._summary(case, plan))
            self._settle_case(case, plan)  # after it is stored: after an exception in between, it is decided again
        probes = self._settings.probe_log(self._cache)
        if probes is not None:
            probes.add(self._key(case), value)
        log.info("%s, %s, %s: %s; %s%s; %d runs, %.3f s", case.op, self.matrix, case.shapes, plan.choice.name,
                 plan.decision.reason, f"; not stored: {busy}" if busy else "", plan.decision.executions,
                 plan.decision.seconds)

    def _summary(self, case: Case, plan: CsrPlan) -> Summary:
        speedup, source = plan.decision.speedup(plan.choice.name), str(self._source_key.get("shortlist", "")).split()
        if speedup is None and plan.decision.origin == "measured":
            speedup = 1.0  # nothing was faster than the best baseline, which runs
        shapes = ", ".join("x".join(map(str, shape)) for shape in case.shapes)
        return Summary(", shortlist=".join([case.op, *source[:1]]), shapes, plan.choice.name, plan.decision.reason,
                       speedup, self.backend.sources)

    def _key(self, case: Case) -> dict[str, Any]:
        return {
            "op": case.op, "pattern": self._pattern, "shapes": [list(shape) for shape in case.shapes],
            "dtype": case.dtype, **self.backend.signature(),
            "libraries": sorted(self._libraries_for(case)), "calibrate": self._policy.calibrate,
            **self._source_key}

    @property
    def _source_key(self) -> Mapping[str, str]:
        return {} if self._source is None else self._source.key


def _prepared_again(matrix: SparseMatrix, options: Mapping[str, Any]) -> Prepared:
    """Make a copy of a prepared matrix."""
    return Prepared(matrix, **options)
