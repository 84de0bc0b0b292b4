"""Prepared sparse matrices: one matrix, called again and again with other dense operands.

The native core runs most calls on a processor. What it does not run, a `Replay` does: a kernel on a GPU, a library, or
SciPy and the definitions of operations, for machines on which no kernel can be compiled. `SPARLOOM_NO_COMPILER=error`
raises instead of the latter, so that nobody measures them by mistake; "scipy", the default, warns once.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from functools import cache, cached_property, lru_cache, partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from sparloom.errors import IllegalSchedule, NoCompiler, NotDecided, SchemaError
from sparloom.forks import forkable
from sparloom.jit import address_of, kernel_library
from sparloom.ops import Op, Operands
from sparloom.platforms import Family
from sparloom.platforms.cpu_kernels import (
    ELEMENTS,
    bind_prepared,
    native_core,
    new_prepared,
)
from sparloom.platforms.cuda import as_float32
from sparloom.space import Config
from sparloom.sparse import BFLOAT16, Pattern, SparseMatrix
from sparloom.tuning.cache import PlanCache, Summary
from sparloom.tuning.racing import Decision
from sparloom.tuning.sparse.cpu import CpuBackend
from sparloom.tuning.sparse.inputs import HALF_BYTES, Origin, check_widths, number_array, rounded
from sparloom.tuning.sparse.settings import CsrPolicy, Settings
from sparloom.tuning.sparse.tuner import (
    LIBRARIES,
    LIBRARY_DTYPES,
    OPS,
    Arrays,
    Backend,
    Case,
    CsrChoice,
    CsrDecider,
    CsrPlan,
    Library,
)

if TYPE_CHECKING:
    from sparloom.platforms import DeviceMatrix

log = logging.getLogger(__name__)

Reduce = Literal["sum", "mean", "max"]
REDUCTIONS = get_args(Reduce)
OPERANDS = {"spmm": ("X", "values"), "sddmm": ("Q", "K", "values"), "attention": ("Q", "K", "V")}
VARIABLE = "SPARLOOM_NO_COMPILER"
SOURCES = {"spmm": "spmm", "spmm_mean": "spmm", "spmm_max": "spmm_max", "sddmm": "sddmm", "attention": "attention",
           "transposed": "transposed"}
_parsed = lru_cache(256)(Config.parse)

Replay = Callable[[Operands, Any | None], Any]
"""Computes again and again for operands of one pattern and of the same shapes, one thread at a time.

Writes to the second argument if it is given, and raises ValueError if that is read-only, of another type or not
contiguous.
"""


class Prepared:
    """A sparse matrix and the decisions about it.

    Before the first call of an operation with a width it is decided how it runs: as a stored decision says, else, on a
    processor, by the model of `default_config`, and where tuning is asked for by a measurement. Later calls run in the
    native core. Threads may share it. The arrays of the matrix are used in place: its values may be changed between
    calls, its indices must not be.

    Args:
        matrix: A (rows, cols), on the device `where`.
        origin: the arrays that A came in, if `matrix` has copies of its index arrays.
        threads: of every call on the processor (default: all processors that this process may use).
        tune: measure what is not decided yet, and store the decision; always so on a GPU. Default: where `policy` says
            how.
        cache: of decisions (default: as in `Settings`, else the folder of this user).
        policy: how measurements decide (default: as in `Settings`).
        libraries: operation -> baselines besides the default configuration (default: those of `where`).
        replay_only: use stored decisions only.
        where: device of A, and of dense operands and results (default: CPU).
    """

    def __init__(
        self, matrix: SparseMatrix | DeviceMatrix, origin: Origin | None = None, *, threads: int | None = None,
        tune: bool | None = None, cache: PlanCache | None = None, policy: CsrPolicy | None = None,
        libraries: Mapping[str, Mapping[str, Library]] | None = None, replay_only: bool = False,
        where: Backend | None = None,
    ) -> None:
        self.matrix = matrix
        self.origin = Origin() if origin is None else origin
        self.backend = CpuBackend(threads) if where is None else where
        self._arrays, self.threads = self.backend.arrays, self.backend.threads
        self._settings = Settings.from_environment()
        self._tunes = tune or not self.threads or (policy is not None and tune is None)
        self._cache = self._settings.plans() if cache is None else cache
        self._policy = self._settings.policy(self.backend.policy()) if policy is None else policy
        self._libraries = self.backend.libraries if libraries is None else libraries
        self._replay_only = replay_only
        self._plans: dict[Case, CsrPlan] = {}
        self._replays: dict[tuple[Case, bool], Replay] = {}  # by whether the argmax is wanted
        self._weights: dict[np.dtype, Any] = {}  # of means, by their type
        self._families: dict[str, Family] = {}  # for any width
        self._lock = forkable(RLock())
        core = native_core() if where is None else None
        self._core = core
        self._native = None if core is None else new_prepared(core, matrix, self.origin)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the matrix and the options; decisions are looked up in the cache, or made again.

        Raises:
            TypeError: the matrix is on a GPU.
        """
        if not isinstance(self.backend, CpuBackend):
            raise TypeError(f"{self.matrix} was prepared on a GPU and cannot be copied or pickled: prepare its "
                            "arrays again instead")
        libraries = None
        if self._libraries is not LIBRARIES:
            libraries = {op: dict(named) for op, named in self._libraries.items()}
        return _prepared_again, (self.matrix, {
            "threads": self.threads, "tune": self._tunes, "cache": self._cache, "policy": self._policy,
            "libraries": libraries, "replay_only": self._replay_only})

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
        if self._native is not None and (out is None or self._is_apart(out)):
            result = self._core.spmm(self._native, dense, reduce, out, None, values, False, False)
            if result is not None:
                return result
        if reduce not in REDUCTIONS:
            raise ValueError(f"reduce={reduce!r}: give one of {', '.join(REDUCTIONS)}")
        given = self._arrays.dense(dense, "X", rows=self.matrix.pattern.cols, axes=2)
        matrix = self._with(values)
        if given.dtype is not matrix.dtype:
            matrix, given = self._arrays.promoted(matrix, given)
        # 16-bit numbers cannot represent 1 / nonzeros of a long row: kernels divide the sums instead
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
        if self._native is not None:
            result = self._core.spmm(self._native, dense, "max", None, None, values, False, True)
            if result is not None:
                return result
        given = self._arrays.dense(dense, "X", rows=self.matrix.pattern.cols, axes=2)
        matrix, given = self._arrays.promoted(self._with(values), given)
        operands = Operands(matrix, {"B": given})
        self._check_unchanged()
        return self._computed(self._case("spmm_max", operands), operands, argmax=True)

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
        if self._native is not None and (out is None or self._is_apart(out)):
            result = self._core.sddmm(self._native, left, right, out, None, values, False)
            if result is not None:
                return result
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
        if self._native is not None and (out is None or self._is_apart(out)):
            result = self._core.attention(self._native, queries, keys, values, out, None, False)
            if result is not None:
                return result
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
        """Return the decision for such dense operands, made now if necessary."""
        operands = Operands(self.matrix, dense)
        case = self._case(op, operands)
        if any(0 in shape for shape in case.shapes):
            raise ValueError(f"{op} with operands of shapes {case.shapes} computes nothing: there is nothing to plan")
        if self.threads and not kernels_available(op, case.dtype):
            raise NoCompiler(f"no kernel of {op} can be compiled: there is nothing to choose from", source="", log="")
        with self._lock:
            return self._planned(case, operands)

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
        self._check_unchanged()
        if out is not None:
            names = OPERANDS.get(op, OPERANDS["spmm"])
            inputs = (*zip(names, given, strict=True), ("values of A", self.matrix.values))
            out = self._arrays.check_out(out, shape, operands, inputs, self.origin)
        return self._computed(case, operands, out)

    def _computed(self, case: Case, operands: Operands, out: Any | None = None, *, argmax: bool = False) -> Any:
        """Compute by the replay of a case; one thread at a time, as a replay has one set of arguments."""
        if self._lock._is_owned():  # a signal handler or a finaliser interrupts a call of this thread
            return self._start(case, operands, argmax=argmax)(operands, out)
        with self._lock:
            if (case, argmax) not in self._replays:
                self._replays[case, argmax] = self._start(case, operands, argmax=argmax)
            return self._replays[case, argmax](operands, out)

    def _check_unchanged(self) -> None:
        """Refuse index arrays that were changed since they were prepared."""
        changed = self.origin.changed()
        if changed:
            self.origin.refuse(changed)

    def _is_apart(self, out: Any) -> bool:
        """Tell whether an array shares no memory with those that the matrix came in; False if that is not known."""
        if type(out) is not np.ndarray or not self.origin.all_numpy or not out.size:
            return False
        begin = address_of(out)
        return not self.origin.overlapping(begin, begin + out.nbytes)

    def _case(self, op: str, operands: Operands) -> Case:
        shapes = tuple([array.shape[1:] for array in operands.dense.values()])
        return Case(op, shapes, self._arrays.dtype(op, operands))

    def _start(self, case: Case, operands: Operands, *, argmax: bool = False) -> Replay:
        """Make the replay of a case; later calls of a kernel run in the native core, if there is one."""
        if any(0 in shape for shape in case.shapes):
            return copying(partial(_nothing, self._family(case.op), argmax=argmax), self._arrays)
        if self.threads and not kernels_available(case.op, case.dtype):
            return copying(partial(computed, case.operation, self._family(case.op), argmax=argmax), self._arrays)
        plan = self._planned(case, operands)
        default = self.backend.default_config(case.operation, operands)
        config = _parsed(default.space, plan.choice.config) if plan.choice.config else default
        if plan.choice.library and not argmax:
            library = self._libraries_for(case)[plan.choice.library]
            return copying(library(self.matrix, self.threads), self._arrays)
        if self._native is not None and not plan.choice.library:
            bind_prepared(self._native, case.op, operands, config, self.threads)
        return NativeReplay(self._family(case.op), config, argmax=argmax)

    def _family(self, op: str) -> Family:
        if op not in self._families:
            self._families[op] = self.backend.kernels(OPS[op], 1)
        return self._families[op]

    def _planned(self, case: Case, operands: Operands) -> CsrPlan:
        """Look up the decision about a case, or make it."""
        if case not in self._plans:
            self._plans[case] = self._cached(case) or self._unmeasured(case, operands) or self._decided(case, operands)
        return self._plans[case]

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
        except (AttributeError, KeyError, TypeError, ValueError, IllegalSchedule, SchemaError) as error:
            log.warning("cached decision about %s on %s: %s: it is decided anew", op, self.matrix, error)
            return None
        return plan

    def _unmeasured(self, case: Case, operands: Operands) -> CsrPlan | None:
        """Plan the default configuration, unless a measurement is asked for and allowed."""
        if self._replay_only:
            raise NotDecided(f"no plan for {case.op} with {self.matrix}, shapes {case.shapes}, {self.threads} threads: "
                             "tune it once without replay_only")
        if self._tunes and not self._settings.replay_only:
            return None
        reason = "AUTOSAGE_REPLAY_ONLY=1 and no decision is stored" if self._tunes else "chosen by the model"
        default = self.backend.default_config(case.operation, operands)
        return CsrPlan(CsrChoice(config=default.key), Decision("rule", reason), default.space)

    def _decided(self, case: Case, operands: Operands) -> CsrPlan:
        """Measure, and store the decision for later processes."""
        choice, decision = CsrDecider(
            case.operation, self.backend, self._libraries_for(case), self._policy, self._cache).decide(operands)
        plan = CsrPlan(choice, decision, self.backend.space(case.operation, operands.width).name)
        value = {"choice": plan.choice.to_json(), "decision": plan.decision.to_json()}
        self._cache.put("csr", self._key(case), value, summary=self._summary(case, plan))
        log.info("%s, %s, %s: %s; %s; %d runs, %.3f s", case.op, self.matrix, case.shapes, plan.choice.name,
                 plan.decision.reason, plan.decision.executions, plan.decision.seconds)
        return plan

    def _libraries_for(self, case: Case) -> Mapping[str, Library]:
        """Baselines of a case; on a processor, libraries have none for 16-bit numbers."""
        return {} if self.threads and case.dtype not in LIBRARY_DTYPES else self._libraries.get(case.op, {})

    def _summary(self, case: Case, plan: CsrPlan) -> Summary:
        speedup = plan.decision.speedup(plan.choice.name)
        if speedup is None and plan.decision.origin == "measured":
            speedup = 1.0  # nothing was faster than the best baseline, which runs
        shapes = ", ".join("x".join(map(str, shape)) for shape in case.shapes)
        return Summary(case.op, shapes, plan.choice.name, plan.decision.reason, speedup, self.backend.sources)

    def _key(self, case: Case) -> dict[str, Any]:
        return {
            "op": case.op, "pattern": self._pattern, "shapes": [list(shape) for shape in case.shapes],
            "dtype": case.dtype, **self.backend.signature(), "libraries": sorted(self._libraries_for(case))}


def _nothing(family: Family, operands: Operands, *, argmax: bool) -> Any:
    """Return the result for operands without columns or heads: it has no elements, or all are empty sums."""
    result = family.result(operands)
    result.fill(0)
    return (result, family.argmax(operands)) if argmax else result


def _prepared_again(matrix: SparseMatrix, options: Mapping[str, Any]) -> Prepared:
    """Make a copy of a prepared matrix."""
    return Prepared(matrix, **options)


class NativeReplay:
    """One of our kernels: bound by the first call, pointed to other arrays by later ones.

    Args:
        argmax: of a maximum: also return which nonzero each maximum comes from.
    """

    def __init__(self, family: Family, config: Config, *, argmax: bool = False) -> None:
        self._family, self._config, self._argmax = family, config, argmax
        self._call = None

    def __call__(self, operands: Operands, out: Any | None = None) -> Any:
        results = (self._family.result(operands) if out is None else out,)
        if self._argmax:
            results += (self._family.argmax(operands),)
        if self._call is None:
            self._call = self._family.bind(operands, self._config, *results)
        else:
            self._family.rebind(self._call, operands, *results)
        self._call()
        self._call.lent = ()
        return results if self._argmax else results[0]


def copying(compute: Callable[[Operands], Any], arrays: Arrays) -> Replay:
    """Copy what a function returns to where the caller wants it."""
    def replay(operands: Operands, out: Any | None = None) -> Any:
        result = compute(operands)
        if out is None:
            return result
        arrays.copy(result, out)
        return out

    return replay


@cache
def kernels_available(op: str, dtype: str = "float32") -> bool:
    """Tell whether the kernels of an operation are there or can be compiled for numbers of a type.

    Raises:
        NoCompiler: they cannot, and SPARLOOM_NO_COMPILER is "error".
        ValueError: SPARLOOM_NO_COMPILER is neither "scipy" nor "error".
    """
    chosen = os.environ.get(VARIABLE) or "scipy"
    if chosen not in ("scipy", "error"):
        raise ValueError(f"{VARIABLE}={chosen!r}: give scipy or error")
    try:
        kernel_library("traversal")
        kernel_library(SOURCES[op], ELEMENTS[BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)])
    except NoCompiler as error:
        if chosen == "error":
            raise
        _warn(str(error))
        return False
    return True


@cache
def _warn(reason: str) -> None:
    log.warning("sparse products run in SciPy and NumPy, on one thread: %s. %s=error raises instead", reason,
                VARIABLE)


def computed(op: Op, family: Family, operands: Operands, *, argmax: bool = False) -> Any:
    """Compute an operation without kernels; 16-bit numbers in float32.

    Args:
        family: allocates results.
        argmax: also return the argmax of a maximum.
    """
    result, pattern = family.result(operands), operands.matrix.pattern
    if result.itemsize == HALF_BYTES:
        values = as_float32(operands.matrix.values)
        operands = Operands(SparseMatrix(pattern, values, values.dtype), {
            name: as_float32(array) for name, array in operands.dense.items()})
    if op.name in ("spmm", "spmm_mean"):
        wide = operands.matrix.to_scipy() @ operands.dense["B"]
        if op.name == "spmm_mean":
            wide /= np.maximum(pattern.row_lengths(), 1)[:, None].astype(wide.dtype)
    else:
        wide = op.oracle(operands)
    result[...] = rounded(wide.astype(np.float32), result.dtype) if result.itemsize == HALF_BYTES else wide
    return (result, _argmax(operands, family.argmax(operands))) if argmax else result


def _argmax(operands: Operands, index: np.ndarray) -> np.ndarray:
    """Fill in the first nonzero of each row whose product is the largest, or NaN; -1 in rows without nonzeros."""
    matrix, pattern = operands.matrix, operands.matrix.pattern
    index[...] = -1
    for row in np.flatnonzero(pattern.row_lengths()):
        nonzeros = slice(*pattern.indptr[row:row + 2])
        products = matrix.values[nonzeros, None] * operands.dense["B"][pattern.indices[nonzeros]]
        index[row] = nonzeros.start + products.argmax(axis=0)
    return index
