"""What variable loops, ragged storage and reading tables cost: one operator, the same work in four forms."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from sparloom.ops import assert_close
from sparloom.ragged import (
    ATTENTION_OPERATORS,
    LENGTHS,
    EncoderShape,
    Executable,
    RaggedTensor,
    Structure,
    Tensor,
    equal_tokens,
    ragged_tokens,
    stored_densely,
)

__all__ = ["hoisting_arms"]

Call = Callable[[], None]
Oracle = Callable[..., np.ndarray]


def hoisting_arms(operator: str, *, batch: int, tokens: int, threads: int, seed: int) -> dict[str, Call]:
    """Bind an operator of multi-head attention on sequences of one length.

    Returns:
        "dense": loops and tensors of constant extents; "vloops": loops ask for lengths, tensors are stored as if
        padded; "vdims": tensors are ragged, too; "hoisted": what is read of tables is read outside of the loops.

    Raises:
        AssertionError: an arm computes something else than NumPy.

    Source: CoRa §7.4, Figure 23.
    """
    shape, define = EncoderShape(), ATTENTION_OPERATORS[operator]
    ragged = define(shape, ragged_tokens())
    executables = {
        "dense": Executable(define(shape, equal_tokens(batch, tokens)), threads=threads),
        "vloops": Executable(stored_densely(ragged), hoisted=False, threads=threads),
        "vdims": Executable(ragged, hoisted=False, threads=threads),
        "hoisted": Executable(ragged, threads=threads)}
    structure, rng = Structure({LENGTHS: [tokens] * batch}), np.random.default_rng(seed)
    values = {name: _drawn(tensor, structure, rng) for name, tensor in ragged.tensors().items()
              if name in ragged.inputs()}
    expected = ORACLES[operator](**{name: value.astype(np.float64) for name, value in values.items()})
    arms: dict[str, Call] = {}
    for arm, executable in executables.items():
        stored, (output,) = executable.program.tensors(), executable.program.outputs
        arms[arm], bound = executable.bind(structure, **{
            name: RaggedTensor.from_packed(stored[name], structure, value).data for name, value in values.items()})
        arms[arm]()
        found = RaggedTensor(stored[output], structure, bound[output]).to_padded()[0]
        scale = float(np.prod([np.abs(value).max() for value in values.values()], dtype=np.float64))
        assert_close(found, expected, terms=max(shape.width, tokens), scale=scale)
    return arms


def _drawn(tensor: Tensor, structure: Structure, rng: np.random.Generator) -> np.ndarray:
    plain = Tensor(tensor.name, tensor.axes)
    values = rng.standard_normal(structure.size(plain), dtype=np.float32)
    return RaggedTensor(plain, structure, values).to_padded()[0]


def _first_projection(x: np.ndarray, w_qkv: np.ndarray, b_qkv: np.ndarray) -> np.ndarray:
    return np.tensordot(x, w_qkv, axes=1) + b_qkv


def _scores(qkv: np.ndarray) -> np.ndarray:
    queries, keys, _ = np.moveaxis(qkv, (2, 3), (0, 2))
    return queries @ keys.swapaxes(2, 3)


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp((scores - scores.max(axis=3, keepdims=True)) * EncoderShape().head_width**-0.5)
    return powers / powers.sum(axis=3, keepdims=True)


def _mixed_values(weights: np.ndarray, qkv: np.ndarray) -> np.ndarray:
    return (weights @ qkv[:, :, 2].swapaxes(1, 2)).swapaxes(1, 2)


def _second_projection(mixed: np.ndarray, w_out: np.ndarray, b_out: np.ndarray) -> np.ndarray:
    return np.tensordot(mixed, w_out, axes=2) + b_out


ORACLES: Mapping[str, Oracle] = MappingProxyType({
    "proj1": _first_projection, "qkt": _scores, "qkt_fused": _scores, "softmax": _softmax, "attnv": _mixed_values,
    "proj2": _second_projection})
