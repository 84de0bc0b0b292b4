"""Draws calls of a compiled ragged program, and conversions of ragged tensors."""

from functools import cache
from typing import Any

import numpy as np
from array_calls import Case, Wrong, close, pick, unchanged
from sparse_inputs import read_only

from sparloom.ragged import (
    Executable,
    Length,
    Program,
    RaggedTensor,
    Structure,
    Tensor,
    compute,
    dims,
    parallel,
    program,
    sum_over,
)
from sparloom.ragged import fuse as fuse_loops

__all__ = ["draw_ragged", "draw_ragged_tensor", "linear_product"]

THREADS = 2
INNER, OUTER = 6, 5  # columns of the product

BATCH, ROW, INNER_DIM, OUT = dims("batch row inner out")
BATCHES = Length("batches")
LENGTHS = Length("lengths", {BATCH: BATCHES()})
X = Tensor("x", {BATCH: BATCHES(), ROW: LENGTHS(BATCH), INNER_DIM: INNER})
W = Tensor("w", {INNER_DIM: INNER, OUT: OUTER})


def _drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(np.float32)


@cache
def linear_product() -> Program:
    made = compute("y", {BATCH: BATCHES(), ROW: LENGTHS(BATCH), OUT: OUTER},
                   sum_over({INNER_DIM: INNER}, X[BATCH, ROW, INNER_DIM] * W[INNER_DIM, OUT]))
    return parallel(fuse_loops(program("linear", [made]), "y", "batch", "row"), "y", "batch_row")


@cache
def _executable() -> Executable:
    return Executable(linear_product(), threads=THREADS)


WRONG_LENGTHS = {"negative": [3, -1], "fractions": [1.5, 2.0], "text": ["3"], "NaN": [np.nan], 
                 "complex": [1j], "None": None, "objects": [object()], "huge": [2**63, 1]}


def draw_ragged(rng: np.random.Generator) -> Case:
    """Draw storage for a ragged product, which is all given or made, or invalid lengths."""
    if rng.random() < 0.15:
        form = pick(rng, WRONG_LENGTHS)
        return Case(f"lengths {form}", lambda: Structure({LENGTHS: WRONG_LENGTHS[form]}), r"\blengths\b")
    lengths = [int(length) for length in rng.integers(0, 6, rng.integers(0, 5))]
    tokens = sum(lengths)
    x, w = _drawn(rng, tokens, INNER), _drawn(rng, INNER, OUTER)
    y, expected = np.full((tokens, OUTER), np.nan, np.float32), x.astype(np.float64) @ w
    forms = ("right", "right", "padded", "smaller", "larger", "type", "gaps", "read-only", "overlap", "list", "missing",
             "unknown")
    form = pick(rng, forms if tokens > 1 else forms[:3])
    arrays: dict[str, Any] = {"x": x, "w": w, "y": y}
    which, fault = pick(rng, arrays), None
    change = {"smaller": lambda a: a.reshape(-1)[:-1], "larger": lambda a: np.concatenate([a, a[:1]]),
              "type": lambda a: np.nan_to_num(a).astype(pick(rng, (np.float64, np.int32, ">f4", np.complex64))),
              "gaps": lambda a: np.repeat(a, 2, axis=0)[::2], "list": lambda a: a.tolist()}
    if form in change:
        arrays[which], fault = change[form](arrays[which]), rf"\b{which}\b"
    elif form == "read-only":
        which, arrays["y"], fault = "y", read_only(y), r"\by\b|read-only"
    elif form == "overlap":
        which = pick(rng, ("x", "w"))
        room = np.zeros(max(arrays[which].size, y.size) + 1, np.float32)
        arrays[which] = room[: arrays[which].size].reshape(arrays[which].shape)
        arrays["y"] = room[1 : 1 + y.size].reshape(y.shape)
        fault = rf"\b({which}|y)\b"
    elif form == "missing":
        which = pick(rng, ("x", "w"))
        del arrays[which]
        fault = rf"\b{which}\b"
    elif form == "unknown":
        arrays["z"], fault = y.copy(), r"\bz\b"
    elif form == "padded":
        structure = Structure({LENGTHS: lengths})
        arrays["x"] = RaggedTensor.from_padded(X, structure, RaggedTensor(X, structure, x.copy()).to_padded()[0]).data
    runs = pick(rng, ("run", "call"))

    def call() -> None:
        structure = Structure({LENGTHS: lengths})
        with unchanged(*(arrays[name] for name in ("x", "w") if name in arrays)):
            if runs == "run":
                _executable().run(structure, arrays)
            else:
                _executable()(structure, **arrays)
        close(np.array(arrays["y"]).reshape(y.shape), expected, 1e-5)

    return Case(f"ragged {runs} {form} {which}, lengths {lengths}", call, fault)


def draw_ragged_tensor(rng: np.random.Generator) -> Case:
    """Draw conversions of a ragged tensor from and to padded and packed arrays, right or wrong."""
    lengths = [int(length) for length in rng.integers(0, 6, rng.integers(1, 5))]
    tokens, longest = sum(lengths), max(lengths)
    packed, starts = _drawn(rng, tokens, INNER), np.concatenate([[0], np.cumsum(lengths)])
    mask = np.arange(longest) < np.array(lengths)[:, None]
    padded = np.zeros((len(lengths), longest, INNER), np.float32)
    padded[mask] = packed
    form = pick(rng, ("packed", "padded", "wide", "few", "data"))

    def call() -> None:
        structure = Structure({LENGTHS: lengths})
        match form:
            case "padded":
                found = RaggedTensor.from_padded(X, structure, padded)
            case "wide":
                wide = np.pad(padded, [(0, 0), (0, 3), (0, 0)], constant_values=np.nan)
                found = RaggedTensor.from_padded(X, structure, wide)
            case "few":
                found = RaggedTensor.from_packed(X, structure, np.zeros((tokens + 1, INNER), np.float32))
            case "data":
                found = RaggedTensor(X, structure, np.zeros(tokens * INNER + 1, np.float32))
            case _:
                found = RaggedTensor.from_packed(X, structure, packed)
        close(found.to_padded()[0], padded.astype(np.float64), 0)
        if not np.array_equal(found.to_padded()[1], mask) or not np.array_equal(found.to_packed()[1], starts):
            raise Wrong("mask or starts differ")
        close(found.to_packed()[0].reshape(packed.shape), packed.astype(np.float64), 0)

    return Case(f"ragged_tensor {form}, lengths {lengths}", call, r"\bx\b" if form in ("few", "data") else None)
