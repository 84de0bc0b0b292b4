"""Ragged programs with NumPy oracles for one sequence; every case runs on the lengths of any batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from interpreted import InterpretedLibrary

from sparloom.ops import assert_close
from sparloom.ragged import (
    Length,
    Program,
    RaggedTensor,
    Structure,
    Tensor,
    compute,
    dims,
    exp,
    interpreted,
    less,
    max_over,
    maximum,
    part,
    program,
    real,
    sum_over,
    where,
)

__all__ = [
    "CASES", "HEADS", "SIZE", "Case", "batches", "computes", "expected", "lengths", "operands", "ragged_operand",
    "structure"]

HEADS, SIZE = 2, 3

batch, row, col, head, inner, out, item, which, query = dims("batch row col head inner out item which query")
batches = Length("batches")
lengths = Length("lengths", {batch: batches()})
widths = Length("widths", {batch: batches(), row: lengths(batch)})


def _tokens(name: str, *features: int, dim=row) -> Tensor:
    named = dims("head inner") if len(features) == 2 else dims("inner")
    return Tensor(name, {batch: batches(), dim: lengths(batch), **dict(zip(named, features, strict=True))})


@dataclass(frozen=True)
class Case:
    """Program with an oracle of its outputs for one sequence.

    Args:
        oracle: from the inputs of one sequence, dense arrays by name (those without batch whole), and its number.
    """

    program: Program
    oracle: Callable[..., Mapping[str, np.ndarray | list[np.ndarray]]]


def _scaled() -> Case:
    x = _tokens("x", SIZE)
    y = compute("y", {batch: batches(), row: lengths(batch), inner: SIZE},
                x[batch, row, inner] * real(2.0) + real(row))
    return Case(program("scaled", [y]), lambda x: {"y": 2 * x + np.arange(len(x))[:, None]})


def _scores() -> Case:
    q, k = _tokens("q", HEADS, SIZE), _tokens("k", HEADS, SIZE)
    s = compute("s", {batch: batches(), row: lengths(batch), head: HEADS, col: lengths(batch)},
                sum_over({inner: SIZE}, q[batch, row, head, inner] * k[batch, col, head, inner]))
    return Case(program("scores", [s]), lambda q, k: {"s": np.einsum("rhi,chi->rhc", q, k)})


def _added() -> Case:
    """Scores of queries and keys with zeros beyond their ends (AddPad)."""
    token = {batch: batches(), row: lengths(batch), head: HEADS, inner: SIZE}
    added = [compute(f"{name}_added", token, where(
        less(row, lengths(batch)), Tensor(name, token)[batch, row, head, inner], real(0.0))) for name in ("q", "k")]
    s = compute("s", {batch: batches(), row: lengths(batch), head: HEADS, col: lengths(batch)},
                sum_over({inner: SIZE}, added[0][batch, row, head, inner] * added[1][batch, col, head, inner]))
    return Case(program("added", [*added, s]), lambda q, k: {"s": np.einsum("rhi,chi->rhc", q, k)})


def _values() -> Case:
    p = Tensor("p", {batch: batches(), row: lengths(batch), head: HEADS, col: lengths(batch)})
    v = _tokens("v", HEADS, SIZE)
    o = compute("o", {batch: batches(), row: lengths(batch), head: HEADS, inner: SIZE},
                sum_over({col: lengths(batch)}, p[batch, row, head, col] * v[batch, col, head, inner]))
    return Case(program("values", [o]), lambda p, v: {"o": np.einsum("rhc,chi->rhi", p, v)})


def _softmax() -> Case:
    p = Tensor("p", {batch: batches(), row: lengths(batch), head: HEADS, col: lengths(batch)})
    rows = {batch: batches(), row: lengths(batch), head: HEADS}
    top = compute("top", rows, max_over({col: lengths(batch)}, p[batch, row, head, col]))
    e = compute("e", {**rows, col: lengths(batch)}, exp(p[batch, row, head, col] - top[batch, row, head]))
    z = compute("z", rows, sum_over({col: lengths(batch)}, e[batch, row, head, col]))
    y = compute("y", {**rows, col: lengths(batch)}, e[batch, row, head, col] / z[batch, row, head])

    def oracle(p):
        e = np.exp(p - p.max(axis=2, keepdims=True, initial=-np.inf)) if p.size else p
        return {"y": e / e.sum(axis=2, keepdims=True) if p.size else p}

    return Case(program("softmax", [top, e, z, y]), oracle)


def _projection() -> Case:
    x = _tokens("x", SIZE)
    w, bias = Tensor("w", {inner: SIZE, out: 4}), Tensor("bias", {out: 4})
    y = compute("y", {batch: batches(), row: lengths(batch), out: 4},
                maximum(sum_over({inner: SIZE}, x[batch, row, inner] * w[inner, out]) + bias[out], real(0.0)))
    return Case(program("projection", [y]), lambda x, w, bias: {"y": np.maximum(x @ w + bias, 0)})


def _causal() -> Case:
    q, k = _tokens("q", HEADS, SIZE), _tokens("k", HEADS, SIZE)
    s = compute("s", {batch: batches(), row: lengths(batch), head: HEADS, col: row + 1},
                sum_over({inner: SIZE}, q[batch, row, head, inner] * k[batch, col, head, inner]))
    t = compute("t", {batch: batches(), row: lengths(batch), head: HEADS},
                sum_over({col: row + 1}, s[batch, row, head, col]))

    def oracle(q, k):
        s = np.einsum("rhi,chi->rhc", q, k)
        return {"s": [s[r, :, : r + 1] for r in range(len(q))],
                "t": np.array([s[r, :, : r + 1].sum(axis=1) for r in range(len(q))]).reshape(-1, HEADS)}

    return Case(program("causal", [s, t], ["s", "t"]), oracle)


def _gradients() -> Case:
    """Both gradients of causal scores, parts of one tensor; the second sums over a triangle by columns."""
    q, k = _tokens("q", HEADS, SIZE), _tokens("k", HEADS, SIZE)
    s = compute("s", {batch: batches(), row: lengths(batch), head: HEADS, col: row + 1},
                sum_over({inner: SIZE}, q[batch, row, head, inner] * k[batch, col, head, inner]))
    g = Tensor("g", {batch: batches(), row: lengths(batch), which: 2, head: HEADS, inner: SIZE})
    by_row = part("by_row", g, {which: 0}, sum_over(
        {col: row + 1}, s[batch, row, head, col] * k[batch, col, head, inner]))
    by_col = part("by_col", g, {which: 1}, sum_over({query: lengths(batch)}, where(
        less(row, query + 1), s[batch, query, head, row] * q[batch, query, head, inner], real(0.0))))

    def oracle(q, k):
        s = np.einsum("rhi,chi->rhc", q, k) * np.tri(len(q))[:, None]
        return {"g": np.stack([np.einsum("rhc,chi->rhi", s, k), np.einsum("rhc,rhi->chi", s, q)], axis=1)}

    return Case(program("gradients", [s, by_row, by_col], ["g"]), oracle)


def _items() -> Case:
    """A dimension that depends on two others."""
    a = Tensor("a", {batch: batches(), row: lengths(batch), item: widths(batch, row), inner: SIZE})
    b = compute("b", {batch: batches(), row: lengths(batch), item: widths(batch, row), col: widths(batch, row)},
                sum_over({inner: SIZE}, a[batch, row, item, inner] * a[batch, row, col, inner]))
    m = compute("m", {batch: batches(), row: lengths(batch), inner: SIZE},
                sum_over({item: widths(batch, row)}, a[batch, row, item, inner]))
    return Case(program("items", [b, m], ["b", "m"]), lambda a: {
        "b": [x @ x.T for x in a], "m": np.array([x.sum(axis=0) for x in a]).reshape(-1, SIZE)})


CASES: dict[str, Case] = {
    "scaled": _scaled(), "scores": _scores(), "values": _values(), "softmax": _softmax(), "projection": _projection(),
    "causal": _causal(), "gradients": _gradients(), "items": _items(), "added": _added(),
}


def structure(given: Sequence[int], *, seed: int = 0, compiler: Callable = InterpretedLibrary) -> Structure:
    """Lengths of a batch, and widths 0 to 3 of every row."""
    rng = np.random.default_rng(seed)
    return Structure({lengths: np.array(given, dtype=np.int64), widths: rng.integers(0, 4, sum(given))}, compiler)


def ragged_operand(tensor: Tensor, of: Structure, rng: np.random.Generator) -> RaggedTensor:
    """Draw random elements; padding is NaN."""
    plain = Tensor(tensor.name, tensor.axes)
    packed = rng.standard_normal(of.size(plain), dtype=np.float32)
    stored = RaggedTensor.from_packed(tensor, of, packed)
    mask = RaggedTensor.from_packed(tensor, of, np.ones_like(packed)).data
    return RaggedTensor(tensor, of, np.where(mask == 1, stored.data, np.float32(np.nan)))


def operands(scheduled: Program, of: Structure, *, seed: int) -> dict[str, RaggedTensor]:
    """Draw inputs of a program; the elements do not depend on the storage."""
    tensors = scheduled.tensors()
    return {name: ragged_operand(tensors[name], of, np.random.default_rng((seed, number)))
            for number, name in enumerate(sorted(scheduled.inputs()))}


def expected(case: Case, of: Structure, given: Mapping[str, RaggedTensor]) -> dict[str, np.ndarray]:
    """Compute the packed results with NumPy, sequence by sequence."""
    found: dict[str, list[np.ndarray]] = {}
    for number in range(of.number(batches())):
        one = case.oracle(**{name: _one(value, number) for name, value in given.items()})
        for name, value in one.items():
            parts = value if isinstance(value, list) else [value]
            found.setdefault(name, []).extend(np.asarray(part, dtype=np.float64).reshape(-1) for part in parts)
    return {name: np.concatenate([np.empty(0), *found.get(name, [])]) for name in case.program.outputs}


def computes(name: str, scheduled: Program, *batches_of: Sequence[int]) -> dict[str, np.ndarray]:
    """Interpret a schedule of a case and compare it with NumPy; return all storage for the last batch."""
    for entries in batches_of or ((), (0,), (5, 0, 2, 9)):
        of = structure(entries)
        inputs = operands(scheduled, of, seed=1)
        found = interpreted(scheduled, of, **{each: value.data for each, value in inputs.items()})
        for output, oracle in expected(CASES[name], of, inputs).items():
            packed = RaggedTensor(scheduled.tensors()[output], of, found[output]).to_packed()[0]
            assert_close(packed.reshape(-1), oracle, terms=16, scale=9.0)
    return found


def _one(value: RaggedTensor, number: int):
    """Return the part of one sequence in float64: an array, or a list of rows if their lengths differ."""
    tensor, of = value.tensor, value.structure
    if tensor.axes[0][0] != batch:
        return value.slice().astype(np.float64)
    if any(dim == item for dim, _ in tensor.axes):
        rows = int(of.table(lengths)[number])
        return [value.slice(number, each).astype(np.float64) for each in range(rows)]
    return value.slice(number).astype(np.float64)
