"""Draw calls of sparse operations by seed and check each: numbers as in float64, or an error that names the offender.

    python sparse_fuzz.py FIRST COUNT PROGRESS

tries the seeds FIRST, FIRST + 1, ...; before each it writes the seed to the file PROGRESS, so that it is known even if
the process dies of it. Says what went wrong and exits with 1 if anything did.
"""

import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import scipy.sparse
from sparse_inputs import ARRAYS, MATRICES, MATRIX_FAULT, PATTERNS, WRONG_ARRAYS, WRONG_MATRICES

import sparloom
from sparloom.ops import Operands
from sparloom.space import Config
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import Guardrail, MeasurementBudget
from sparloom.tuning.sparse import CpuBackend, CsrPolicy, Prepared
from sparloom.tuning.sparse.prepared import Reduce

__all__ = ["POLICY", "THREADS", "Case", "Fuzz", "expected_of", "main"]

THREADS = 2
WIDTHS = (2, 3, 8, 17)
HEADS = ((1, 4, 4), (2, 3, 5))  # heads, width of keys, width of values
REDUCTIONS = get_args(Reduce)  # of spmm
OPERATIONS = (*REDUCTIONS, "sddmm", "attention", "flat attention")
LARGE = range(5, len(PATTERNS))  # patterns with nonzeros and several rows and columns
SHOWN = 10  # failures
VARIETY = 3  # kernels of an operation, at least
POLICY = CsrPolicy(  # whoever wins a race of two that took microseconds is taken: nearly any kernel is, somewhere
    guardrail=Guardrail(alpha=1e6, errors=0),
    effort=MeasurementBudget(candidates=2, repetitions=1, pairs=(1, 1), executions=4, short_seconds=1e-6))

Matrix = scipy.sparse.csr_array


@dataclass(frozen=True)
class Case:
    """A call and what must come of it.

    Args:
        text: what is called with what.
        fault: pattern of the error's message; None if there must be a result, ...
        expected: ... which is this one in float64, ...
        error: ... up to so much where it is finite.
    """

    text: str
    call: Callable[[], Any]
    fault: str | None
    expected: np.ndarray | None
    error: np.ndarray | None

    def check(self) -> str | None:
        """Return the fault of a call, or None."""
        try:
            found = self.call()
        except (TypeError, ValueError) as error:
            if self.fault is None:
                return f"refused: {type(error).__name__}: {error}"
            return None if re.search(self.fault, str(error)) else f"{self.fault} is not named: {error}"
        except Exception:
            return traceback.format_exc()
        if self.fault is not None:
            return f"taken, though {self.fault} is wrong"
        return self._difference(found)

    def _difference(self, found: Any) -> str | None:
        if type(found) is not np.ndarray or found.dtype != np.float32 or found.shape != self.expected.shape:
            return f"{type(found).__name__} of {getattr(found, 'dtype', None)}, {getattr(found, 'shape', None)}, in " \
                   f"place of {self.expected.shape}"
        finite = np.isfinite(self.expected)
        with np.errstate(invalid="ignore"):
            right = np.where(finite, np.abs(found - self.expected) <= self.error,
                             (found == self.expected) | (np.isnan(found) & np.isnan(self.expected)))
        if right.all():
            return None
        place = tuple(map(int, np.argwhere(~right)[0]))
        return f"{(~right).sum()} of {right.size} wrong, element {place}: {found[place]} for {self.expected[place]}"


@dataclass(frozen=True)
class _Shuffled:
    """Put two random kernels on the shortlist."""

    rng: np.random.Generator

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        return self.rng.random(len(configs))


class Fuzz:
    """Draws cases; all calls share decisions, which are made for operands without NaN before the first.

    Args:
        kernels: what they chose, with the operation.
    """

    def __init__(self) -> None:
        model = _Shuffled(np.random.default_rng(0))
        self.ready = [Prepared(SparseMatrix(Pattern(*pattern), self._values(pattern)), threads=THREADS, policy=POLICY)
                      for pattern in PATTERNS]
        with patch.object(CpuBackend, "model", lambda self, cache: model):
            self.kernels = {(op, ready.plan(op, **dense).choice.config)
                            for ready, (shape, _, _) in zip(self.ready, PATTERNS, strict=True)
                            for op, dense in _asked(*shape)}

    def draw(self, seed: int) -> Case:
        """Draw one case: half of them are right, a quarter have a wrong matrix, a quarter a wrong array."""
        rng = np.random.default_rng(seed)
        wrong = rng.choice(["", "matrix", "array"], p=[0.5, 0.25, 0.25])
        number = int(rng.choice(LARGE) if wrong else rng.integers(len(PATTERNS)))
        shape, indptr, indices = PATTERNS[number]
        operation = str(rng.choice(OPERATIONS))
        flat = operation == "flat attention"
        prepared = wrong != "matrix" and not flat and rng.random() < 0.7
        values = self._values(PATTERNS[number]) if prepared else _special(rng, self._values(PATTERNS[number]))
        matrix = Matrix((values, indices.copy(), indptr.copy()), shape=shape)
        dense = _dense(rng, operation, shape)
        expected, error = (None, None) if wrong else expected_of(operation, matrix, dense)
        forms = {name: _any(rng, ARRAYS) for name in dense}
        given = {name: ARRAYS[form](rng, dense[name]) for name, form in forms.items()}
        fault, text = None, "ready"
        if wrong == "array":
            fault = str(rng.choice(list(given)))
            forms[fault] = _any(rng, WRONG_ARRAYS)
            given[fault] = WRONG_ARRAYS[forms[fault]](rng, dense[fault])
            fault = r"\b[QKV]\b" if flat else rf"\b{fault}\b"  # which of three has too many axes is open
        if prepared:
            a = self.ready[number]
        else:
            known = WRONG_MATRICES if wrong == "matrix" else MATRICES
            text = _any(rng, known, ("tuple, no shape",) if wrong == "array" else ())
            a, fault = known[text](rng, matrix), MATRIX_FAULT if wrong == "matrix" else fault
            if not flat and text != "tuple, no shape" and rng.random() < 0.3:
                text, a = f"prepare {text}", _Late(a)
        text = f"{operation}, pattern {number}, {text}, {forms}"
        call = _call(operation, a, list(given.values()))
        if not prepared and fault is None and not isinstance(a, _Late) and rng.random() < 0.5:
            text, call = f"{text}, changed in place", _changed(rng, a, shape[1], call)
        return Case(text, call, fault, expected, error)

    @staticmethod
    def _values(pattern: tuple[tuple[int, int], np.ndarray, np.ndarray]) -> np.ndarray:
        rng, count = np.random.default_rng(1), pattern[2].size
        return (rng.uniform(0.1, 1, count) * rng.choice([-1, 1], count)).astype(np.float32)


@dataclass(frozen=True)
class _Late:
    """Matrix that is prepared at its first call."""

    matrix: Any


def _asked(rows: int, cols: int) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Return operations with operands of all drawn shapes."""
    for width in WIDTHS:
        left, right = np.ones((rows, width), np.float32), np.ones((cols, width), np.float32)
        yield from (("spmm", {"B": right}), ("spmm_max", {"B": right}), ("sddmm", {"B": left, "C": right}))
    for heads, width, value_width in HEADS:
        for count in (1, heads):
            yield "attention", {"Q": np.ones((rows, count, width), np.float32),
                                "K": np.ones((cols, count, width), np.float32),
                                "V": np.ones((cols, count, value_width), np.float32)}


def _any(rng: np.random.Generator, known: Mapping[str, Any], but: Collection[str] = ()) -> str:
    return str(rng.choice([name for name in known if name not in but]))


def _call(operation: str, a: Any, dense: list[Any]) -> Callable[[], Any]:
    name = "spmm" if operation in REDUCTIONS else operation.removeprefix("flat ")
    options = {"reduce": operation} if operation in REDUCTIONS else {}
    if isinstance(a, _Late):
        return lambda: getattr(sparloom.prepare(a.matrix, threads=THREADS, policy=POLICY), name)(*dense, **options)
    if isinstance(a, Prepared):
        return lambda: getattr(a, name)(*dense, **options)
    function = {"attention": sparloom.csr_attention}.get(name) or getattr(sparloom, name)
    return lambda: function(a, *dense, threads=THREADS, **options)


def _changed(rng: np.random.Generator, a: Any, cols: int, call: Callable[[], Any]) -> Callable[[], Any]:
    """Call with other columns in the same index array first, wrong ones included; then change it in place to be right.

    Matrices whose indices cannot be written stay as they are.
    """
    indices = a.pattern.indices if isinstance(a, SparseMatrix) else a[1] if isinstance(a, tuple) else (
        a.indices if getattr(a, "format", "") == "csr" else None)
    if not isinstance(indices, np.ndarray) or not indices.flags.writeable:
        return call
    right = indices.copy()
    others = [rng.integers(-1 if rng.random() < 0.3 else 0, cols + (rng.random() < 0.3), right.size)
              for _ in range(rng.integers(1, 3))] if cols else []

    def calls() -> Any:
        for other in others:
            indices[...] = other
            with suppress(ValueError):
                call()
        indices[...] = right
        return call()

    return calls


def _special(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Put NaN and infinities into some arrays."""
    if array.size == 0 or rng.random() < 0.6:
        return array.copy()
    copy = array.copy()
    copy.flat[rng.integers(array.size, size=rng.integers(1, 4))] = rng.choice([np.nan, np.inf, -np.inf])
    return copy


def _dense(rng: np.random.Generator, operation: str, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """Draw operands, some with NaN and infinities."""
    def drawn(*extents: int) -> np.ndarray:
        return rng.uniform(-1, 1, extents).astype(np.float32) * np.float32(rng.choice([1, 1, 1e-15, 1e15]))

    rows, cols = shape
    width = int(rng.choice(WIDTHS))
    if operation in REDUCTIONS:
        return {"X": _special(rng, drawn(cols, width))}
    if operation == "sddmm":
        return {"Q": _special(rng, drawn(rows, width)), "K": _special(rng, drawn(cols, width))}
    heads, width, value_width = HEADS[rng.integers(len(HEADS))]
    each = () if operation == "flat attention" else (heads,)
    plain = {name: rng.uniform(-1, 1, (count, *each, width)).astype(np.float32)
             for name, count in (("Q", rows), ("K", cols))}
    return {**{name: _special(rng, array) for name, array in plain.items()},
            "V": _special(rng, drawn(cols, *each, value_width))}


def expected_of(operation: str, matrix: Matrix, dense: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Compute row by row in float64: the result, and by how much one in float32 may differ."""
    wide = {name: array.astype(np.float64) for name, array in dense.items()}
    rows = [slice(begin, end) for begin, end in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)]
    values = matrix.data.astype(np.float64)
    with np.errstate(all="ignore"):
        if operation == "sddmm":
            parts = [wide["Q"][row] * wide["K"][matrix.indices[part]] for row, part in enumerate(rows)]
            products = np.concatenate([np.empty((0, dense["Q"].shape[1])), *parts])
            return products.sum(axis=1) * values, _allowed(products, axis=1) * np.maximum(np.abs(values), 1)
        if operation in REDUCTIONS:
            products = [values[part, None] * wide["X"][matrix.indices[part]] for part in rows]
            pairs = [_reduced(each, operation) for each in products]
            shape = (2, len(rows), dense["X"].shape[1])
            return tuple(np.array(pairs).transpose(1, 0, 2) if pairs else np.zeros(shape))
        return _attended(matrix, rows, wide)


def _reduced(products: np.ndarray, reduction: str) -> tuple[np.ndarray, np.ndarray]:
    """Reduce the products of a row; 0 if it has none."""
    count, error = max(1, products.shape[0]), _allowed(products, axis=0)
    if reduction == "max" and products.size:
        return products.max(axis=0), error
    total = products.sum(axis=0)
    return (total / count, error / count) if reduction == "mean" else (total, error)


def _allowed(products: np.ndarray, *, axis: int) -> np.ndarray:
    """Error that a sum in float32 may have, of products rounded to it, in any order."""
    limits = np.finfo(np.float32)
    count = products.shape[axis] + 4
    return count * (4 * limits.eps * np.where(np.isfinite(products), np.abs(products), 0).sum(axis=axis) + limits.tiny)


def _attended(matrix: Matrix, rows: list[slice], wide: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    flat = wide["Q"].ndim == 2
    queries, keys, values = (array[:, None] if flat else array for array in wide.values())
    result = np.zeros((*queries.shape[:2], values.shape[2]))
    for row, part in enumerate(rows):
        columns = matrix.indices[part]
        if columns.size:
            scores = np.einsum("hd,jhd->jh", queries[row], keys[columns]) * queries.shape[2] ** -0.5
            weights = np.exp(scores - scores.max(axis=0))
            result[row] = (weights[:, :, None] / weights.sum(axis=0)[:, None] * values[columns]).sum(axis=0)
    largest = np.abs(values[np.isfinite(values)]).max(initial=0)
    error = np.full(result.shape, 2e-5 * largest + np.finfo(np.float32).tiny)
    return (result[:, 0], error[:, 0]) if flat else (result, error)


def main(first: int, count: int, progress: str) -> int:
    """Try seeds; 1 if something went wrong."""
    fuzz, failures = Fuzz(), []
    with open(progress, "w", encoding="ascii") as file:
        for seed in range(first, first + count):
            os.pwrite(file.fileno(), f"{seed:<12}".encode(), 0)
            case = fuzz.draw(seed)
            fault = case.check()
            if fault is not None:
                failures.append(f"seed {seed}: {case.text}: {fault}")
    chosen = Counter(op for op, _ in fuzz.kernels)
    failures += [f"{op}: {chosen[op]} kernels took part" for op in chosen if chosen[op] < VARIETY]
    shown = "\n".join(failures[:SHOWN])
    sys.stdout.write(f"{len(failures)} of {count} cases failed\n{shown}\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
