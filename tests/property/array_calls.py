"""Draws calls of sparse operations on NumPy arrays: results in `out`, values of a call, threads, sequences of calls.

Each family is a function of a generator that gives a `Case`. Calls that are right check their numbers against float64,
and that neither their operands nor the memory around their results were written.
"""

import copy
import os
import pickle
import re
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse
from sparse_fuzz import POLICY, THREADS, Fuzz, expected_of
from sparse_inputs import ARRAYS, PATTERNS, WRONG_ARRAYS, read_only, unaligned

import sparloom

__all__ = ["BAD_THREADS", "GOOD_THREADS", "Case", "Wrong", "close", "draw_empty", "draw_out", "draw_steps",
           "draw_values", "in_child", "pick", "unchanged"]

LARGE = range(5, len(PATTERNS))  # patterns with nonzeros and several rows and columns
REDUCTIONS = ("sum", "mean", "max")
OPERATIONS = (*REDUCTIONS, "sddmm", "attention")
GUARD = 64  # bytes around a result
BAD_THREADS = {"0": 0, "-1": -1, "many": 10**6, "more": 2**70, "True": True, "1.0": 1.0, "2.5": 2.5, "text": "2",
               "list": [2], "NaN": np.nan, "array": np.array([1, 2]), "bool of NumPy": np.bool_(True)}
GOOD_THREADS = {"None": None, "1": 1, "2": 2, "3": 3, "int64": np.int64(2), "uint8": np.uint8(1)}


class Wrong(AssertionError):
    """Raised if a call returns a wrong result."""


@dataclass(frozen=True)
class Case:
    """A call and what must come of it.

    Args:
        text: what is called with what.
        call: raises `Wrong` if numbers are.
        fault: pattern of the error's message; None if there must be no error.
        refusals: errors that name a fault.
    """

    text: str
    call: Callable[[], Any]
    fault: str | None = None
    refusals: tuple[type[Exception], ...] = (TypeError, ValueError)

    def check(self) -> str | None:
        """Return the fault of a call, or None."""
        try:
            self.call()
        except Wrong as error:
            return str(error)
        except self.refusals as error:
            if self.fault is None:
                return f"refused: {traceback.format_exc()}"
            return None if re.search(self.fault, str(error)) else f"{self.fault} is not named: {error}"
        except Exception:
            return traceback.format_exc()
        return None if self.fault is None else f"taken, though {self.fault} is wrong"


def pick(rng: np.random.Generator, known: Any) -> Any:
    """Draw one of a sequence, or a key of a mapping."""
    listed = list(known)
    return listed[int(rng.integers(len(listed)))]


def close(found: Any, expected: np.ndarray, error: np.ndarray | float, *, dtype: Any = np.float32) -> None:
    """Compare a result with one in float64 that it may differ from by `error`.

    Raises:
        Wrong: it differs, or has another type or shape.
    """
    if type(found) is not np.ndarray or found.dtype != dtype or found.shape != expected.shape:
        raise Wrong(f"{type(found).__name__} of {getattr(found, 'dtype', None)}, {getattr(found, 'shape', None)}, in "
                    f"place of {expected.shape}")
    with np.errstate(invalid="ignore"):
        right = (np.abs(found - expected) <= error) | (found == expected) | (np.isnan(found) & np.isnan(expected))
    if not right.all():
        place = tuple(map(int, np.argwhere(~right)[0]))
        raise Wrong(f"{(~right).sum()} of {right.size} wrong, element {place}: {found[place]} for {expected[place]}")


@contextmanager
def unchanged(*arrays: Any) -> Iterator[None]:
    """Refuse that operands are written."""
    before = [np.array(each) for each in arrays]
    yield
    for number, (each, copied) in enumerate(zip(arrays, before, strict=True)):
        if not np.array_equal(np.asarray(each), copied, equal_nan=copied.dtype.kind == "f"):
            raise Wrong(f"operand {number} was written")


def in_child(call: Callable[[], None]) -> None:
    """Call in a forked child.

    Raises:
        Wrong: the call failed there, or hung for a minute.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads is forked
        child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            call()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(3)
    _, status = os.waitpid(child, 0)
    if status:
        raise Wrong(f"a forked child ended with {os.waitstatus_to_exitcode(status)}")


@cache
def _fuzz() -> Fuzz:
    return Fuzz()


def _matrix(rng: np.random.Generator, number: int) -> scipy.sparse.csr_array:
    shape, indptr, indices = PATTERNS[number]
    values = rng.uniform(-1, 1, indices.size).astype(np.float32)
    return scipy.sparse.csr_array((values, indices.copy(), indptr.copy()), shape=shape)


def _operands(rng: np.random.Generator, operation: str, shape: tuple[int, int], width: int) -> dict[str, np.ndarray]:
    def drawn(*extents: int) -> np.ndarray:
        return rng.uniform(-1, 1, extents).astype(np.float32)

    rows, cols = shape
    if operation in REDUCTIONS:
        return {"X": drawn(cols, width)}
    if operation == "sddmm":
        return {"Q": drawn(rows, width), "K": drawn(cols, width)}
    heads, value_width = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    return {"Q": drawn(rows, heads, width), "K": drawn(cols, heads, width), "V": drawn(cols, heads, value_width)}


def _call(a: Any, operation: str, dense: dict[str, np.ndarray], **options: Any) -> Any:
    """Call a function of the package, or a method of what was prepared."""
    name = "spmm" if operation in REDUCTIONS else operation
    if operation in REDUCTIONS:
        options["reduce"] = operation
    if hasattr(a, "spmm_max"):
        return getattr(a, name)(*dense.values(), **options)
    function = sparloom.csr_attention if name == "attention" else getattr(sparloom, name)
    return function(a, *dense.values(), **{"threads": THREADS, **options})


def _verify(found: Any, operation: str, matrix: scipy.sparse.csr_array, dense: dict[str, np.ndarray]) -> None:
    close(found, *expected_of(operation, matrix, dense))


# Results in `out`.

def _room(shape: tuple[int, ...], before: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Allocate a result between guards, or directly behind an operand.

    Returns:
        All bytes, the operand, the result.
    """
    size, head = 4 * int(np.prod(shape)), GUARD if before is None else before.nbytes
    room = np.full(head + size + GUARD, 0xA5, np.uint8)
    if before is not None:
        first = room[:head].view(before.dtype).reshape(before.shape)
        first[...] = before
        before = first
    return room, before, room[head : head + size].view(np.float32).reshape(shape)


def _overlapping(rng: np.random.Generator, given: np.ndarray, shape: tuple[int, ...]
                 ) -> tuple[np.ndarray, np.ndarray]:
    """Copy an operand to memory, some bytes of which are a result's."""
    size = 4 * int(np.prod(shape))
    common = 4 * int(rng.integers(1, min(size, given.nbytes) // 4 + 1))
    room = np.zeros(given.nbytes + size - common, np.uint8)
    begins = (0, given.nbytes - common) if rng.random() < 0.5 else (size - common, 0)
    own = room[begins[0] : begins[0] + given.nbytes].view(given.dtype).reshape(given.shape)
    own[...] = given
    return own, room[begins[1] : begins[1] + size].view(np.float32).reshape(shape)


class _Device:
    """An array elsewhere."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype, self.ndim = shape, np.dtype(np.float32), len(shape)

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("on a device")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


WRONG_OUT: dict[str, Callable[[tuple[int, ...]], Any]] = {
    **{name: lambda shape, name=name: np.zeros(shape, name)
       for name in ("float64", "float16", "int32", "complex64", ">f4", "bool", "object")},
    "a row more": lambda shape: np.zeros((shape[0] + 1, *shape[1:]), np.float32),
    "a row less": lambda shape: np.zeros((shape[0] - 1, *shape[1:]), np.float32),
    "one axis more": lambda shape: np.zeros((1, *shape), np.float32),
    "flat": lambda shape: np.zeros((int(np.prod(shape)), 1)[: 3 - len(shape)], np.float32),
    "every second": lambda shape: np.zeros((2 * shape[0], *shape[1:]), np.float32)[::2],
    "backwards": lambda shape: np.zeros(shape, np.float32)[::-1],
    "wider": lambda shape: np.zeros((*shape[:-1], shape[-1] + 2), np.float32)[..., 1:-1],
    "one number": lambda shape: np.broadcast_to(np.zeros((), np.float32), shape),
    "unaligned": lambda shape: unaligned(np.zeros(shape, np.float32)),
    "read-only": lambda shape: read_only(np.zeros(shape, np.float32)),
    "masked": lambda shape: np.ma.masked_array(np.zeros(shape, np.float32), mask=np.ones(shape, bool)),
    "list": lambda shape: np.zeros(shape).tolist(),
    "text": lambda shape: "out",
    "device": _Device,
    "bytes": lambda shape: bytearray(4 * int(np.prod(shape))),
}


def draw_out(rng: np.random.Generator) -> Case:
    """Draw a call with `out`: right, of a wrong form, or in the memory of an operand."""
    kind = pick(rng, ("right", "right", "form", "overlap"))
    number = pick(rng, range(len(PATTERNS)) if kind == "right" else LARGE)
    operation = pick(rng, OPERATIONS)
    matrix = _matrix(rng, number)
    prepared = operation not in REDUCTIONS or rng.random() < 0.5
    dense = _operands(rng, operation, matrix.shape, pick(rng, (1, 3, 8)))
    expected, error = expected_of(operation, matrix, dense)
    parts = {"indptr": matrix.indptr, "indices": matrix.indices, "values": matrix.data}
    if kind == "form":
        form = pick(rng, [name for name in WRONG_OUT if expected.ndim > 1 or name not in ("flat", "wider")])
        room, out, fault = None, WRONG_OUT[form](expected.shape), r"\bout\b"
    elif kind == "overlap":
        form = pick(rng, (*dense, *parts))
        held = dense if form in dense else parts
        held[form], out = _overlapping(rng, held[form], expected.shape)
        room, fault = None, rf"\bout\b.*\b{form}\b"
    else:
        form = pick(rng, ("guarded", "adjacent"))
        name = next(iter(dense))
        room, before, out = _room(expected.shape, dense[name] if form == "adjacent" else None)
        dense[name] = dense[name] if before is None else before
        fault = None
    a = (*parts.values(), matrix.shape)
    if prepared:
        a = sparloom.prepare(a, threads=THREADS, policy=POLICY)
    text = f"out {form}, {operation}, pattern {number}, {'prepared' if prepared else 'tuple'}"

    def call() -> None:
        guards = None if room is None else (out.ctypes.data - room.ctypes.data, room.copy())
        with unchanged(*dense.values(), *parts.values()):
            found = _call(a, operation, dense, out=out)
        if found is not out and kind == "right":
            raise Wrong("out is not what was returned")
        if guards is not None:
            begin, copied = guards
            copied[begin : begin + out.nbytes] = room[begin : begin + out.nbytes]
            if not np.array_equal(copied, room):
                raise Wrong("memory beside out was written")
            close(np.array(found), expected, error)

    return Case(text, call, fault)


def draw_values(rng: np.random.Generator) -> Case:
    """Draw a call of a prepared matrix with values of its own."""
    wrong = rng.random() < 0.4
    number = pick(rng, LARGE if wrong else range(len(PATTERNS)))
    operation = pick(rng, (*REDUCTIONS, "sddmm"))
    matrix = _matrix(rng, number)
    dense = _operands(rng, operation, matrix.shape, pick(rng, (2, 3, 8, 17)))
    usual = [name for name in WRONG_ARRAYS if name not in ("no columns", "one axis less", "sparse", "None")]
    form = pick(rng, usual if wrong else [name for name in ARRAYS if "columns" not in name])
    values = (WRONG_ARRAYS if wrong else ARRAYS)[form](rng, matrix.data)
    ready = _fuzz().ready[number]

    def call() -> None:
        with unchanged(matrix.data, ready.matrix.values, *dense.values()):
            found = _call(ready, operation, dense, values=values)
        _verify(found, operation, matrix, dense)

    return Case(f"values {form}, {operation}, pattern {number}", call, r"\bvalues\b" if wrong else None)


def draw_empty(rng: np.random.Generator) -> Case:
    """Draw operands without columns, heads or rows."""
    number, operation = pick(rng, range(len(PATTERNS))), pick(rng, OPERATIONS)
    matrix = _matrix(rng, number)
    dense, fault = _operands(rng, operation, matrix.shape, 0), None
    if operation == "attention":
        heads, width, value_width = (int(extent) for extent in rng.integers(0, 3, 3))
        dense = {name: np.ones((array.shape[0], heads, value_width if name == "V" else width), np.float32)
                 for name, array in dense.items()}
        fault = r"\bQ\b" if width == 0 else None
    a = _fuzz().ready[number] if rng.random() < 0.5 else matrix
    if a is not matrix:
        matrix = scipy.sparse.csr_array((a.matrix.values, matrix.indices, matrix.indptr), shape=matrix.shape)
    return Case(f"empty {operation}, pattern {number}, {[array.shape for array in dense.values()]}",
                lambda: _verify(_call(a, operation, dense), operation, matrix, dense), fault)


# Sequences of calls.

class _Steps:
    """One matrix through calls, changes and copies."""

    def __init__(self, rng: np.random.Generator, number: int, kind: str) -> None:
        self.rng, self.kind = rng, kind
        self.matrix = _matrix(rng, number)
        self.a: Any = self.matrix if kind == "csr" else (*self._parts(), self.matrix.shape)
        if kind == "prepared":
            self.a = sparloom.prepare(self.a, threads=THREADS, policy=POLICY)

    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.matrix.indptr, self.matrix.indices, self.matrix.data

    def call(self, **options: Any) -> None:
        operation = pick(self.rng, OPERATIONS)
        dense = _operands(self.rng, operation, self.matrix.shape, pick(self.rng, (3, 8)))
        with unchanged(*self._parts(), *dense.values()):
            found = _call(self.a, operation, dense, **options)
        _verify(found, operation, self.matrix, dense)

    def values(self) -> None:
        """Change values in place, with NaN where there may be any."""
        self.matrix.data[...] = self.rng.uniform(-2, 2, self.matrix.nnz)
        self.call()

    def copied(self) -> None:
        if self.kind != "prepared":
            self.a = copy.deepcopy(self.a)
            self.matrix = self.a if self.kind == "csr" else scipy.sparse.csr_array(
                (self.a[2], self.a[1], self.a[0]), shape=self.matrix.shape)
            return
        way = pick(self.rng, (copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))))
        self.a = way(self.a)
        if not np.array_equal(self.a.matrix.values, self.matrix.data):
            raise Wrong("a copy has other values")
        self.matrix = scipy.sparse.csr_array(
            (self.a.matrix.values, self.matrix.indices, self.matrix.indptr), shape=self.matrix.shape)

    def together(self) -> None:
        """Call from two threads at once."""
        operation = pick(self.rng, OPERATIONS)
        each = [_operands(self.rng, operation, self.matrix.shape, width) for width in (3, 3, 8)]
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda dense: [_call(self.a, operation, dense) for _ in range(3)], each))
        for results, dense in zip(found, each, strict=True):
            for result in results:
                _verify(result, operation, self.matrix, dense)

    def forked(self) -> None:
        in_child(self.call)
        self.call()

    def indices(self) -> None:
        """Change index arrays in place: read again with `changed=True`; otherwise refused, or the old ones are used."""
        if self.kind == "prepared":
            return self.call()
        before = self.matrix.indices.copy()
        for begin, end in zip(self.matrix.indptr[:-1], self.matrix.indptr[1:], strict=True):
            self.matrix.indices[begin:end] = np.sort(self.rng.permutation(self.matrix.shape[1])[: end - begin])
        if self.rng.random() < 0.5:
            try:
                dense = _operands(self.rng, "sum", self.matrix.shape, 3)
                found = _call(self.a, "sum", dense)
            except ValueError as error:
                if "changed=True" not in str(error):
                    raise
            else:
                old = scipy.sparse.csr_array((self.matrix.data, before, self.matrix.indptr), shape=self.matrix.shape)
                try:
                    _verify(found, "sum", old, dense)
                except Wrong:
                    _verify(found, "sum", self.matrix, dense)
        self.call(changed=True)


def draw_steps(rng: np.random.Generator) -> Case:
    """Draw a sequence of calls on one matrix."""
    kind, number = pick(rng, ("prepared", "csr", "tuple")), pick(rng, LARGE)
    names = ["call"] + [pick(rng, ("call", "call", "values", "values", "copied", "together", "indices"))
                        for _ in range(rng.integers(2, 6))]
    if rng.random() < 0.15:
        names.insert(int(rng.integers(1, len(names))), "forked")

    def call() -> None:
        steps = _Steps(rng, number, kind)
        for place, name in enumerate(names):
            try:
                getattr(steps, name)()
            except Exception as error:
                raise Wrong(f"step {place}, {name}: {traceback.format_exc()}") from error

    return Case(f"steps of {kind}, pattern {number}: {', '.join(names)}", call)
