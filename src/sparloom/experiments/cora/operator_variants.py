"""Time variants of one ragged operator: hoisted loads, split loops, and element access as in sparse storage."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import numpy as np

from sparloom.ops import assert_close
from sparloom.ragged import (
    ATTENTION_LOOPS,
    ATTENTION_OPERATORS,
    LENGTHS,
    SPLIT_ARMS,
    SPLIT_OPERATORS,
    Access,
    EncoderShape,
    Executable,
    Prelude,
    RaggedTensor,
    Structure,
    Tensor,
    equal_tokens,
    kernel_preludes,
    offset_steps,
    pointer_steps,
    ragged_tokens,
    stored_densely,
)

Call = Callable[[], object]
Oracle = Callable[..., np.ndarray]
ACCESSES: Mapping[str, Access] = MappingProxyType({"graph": offset_steps, "sparse": pointer_steps})


def drawn(tensor: Tensor, structure: Structure, rng: np.random.Generator) -> RaggedTensor:
    """Draw normally distributed values for the storage of a tensor."""
    return RaggedTensor(tensor, structure, rng.standard_normal(structure.size(tensor), dtype=np.float32))


def by_sequence(oracle: Callable[..., np.ndarray], values: Mapping[str, RaggedTensor]) -> np.ndarray:
    """Compute every sequence in float64; return the elements in order."""
    first = next(iter(values.values()))
    sequences = range(np.size(first.structure.table(LENGTHS)))
    slices = ({name: value.slice(number).astype(np.float64) for name, value in values.items()} for number in sequences)
    return np.concatenate([oracle(**each).reshape(-1) for each in slices])


def scale(values: Mapping[str, RaggedTensor]) -> float:
    """Return the product of the largest magnitudes of the operands."""
    return float(np.prod([np.abs(value.data).max() for value in values.values()], dtype=np.float64))


def hoisting_arms(operator: str, *, batch: int, tokens: int, threads: int, seed: int) -> dict[str, Call]:
    """Bind an operator of multi-head attention on sequences of one length.

    Returns:
        "dense": loops and tensors of constant extents; "vloops": variable loops, tensors stored as if padded; "vdims":
        ragged tensors, too; "hoisted": reads of tables hoisted out of the loops.

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
    powers = np.exp((scores - scores.max(axis=-1, keepdims=True)) * EncoderShape().head_width**-0.5)
    return powers / powers.sum(axis=-1, keepdims=True)


def _mixed_values(weights: np.ndarray, qkv: np.ndarray) -> np.ndarray:
    return (weights @ qkv[:, :, 2].swapaxes(1, 2)).swapaxes(1, 2)


def _second_projection(mixed: np.ndarray, w_out: np.ndarray, b_out: np.ndarray) -> np.ndarray:
    return np.tensordot(mixed, w_out, axes=2) + b_out


ORACLES: Mapping[str, Oracle] = MappingProxyType({
    "proj1": _first_projection, "qkt": _scores, "qkt_fused": _scores, "softmax": _softmax, "attnv": _mixed_values,
    "proj2": _second_projection})

def splitting_arms(operator: str, lengths: np.ndarray, *, threads: int, seed: int) -> dict[str, Call]:
    """Bind QKT ("qkt") or AttnV ("attnv") on one batch.

    Returns:
        "padded", "split", "hfused" and "exact", see `SPLIT_ARMS`.

    Source: CoRa §7.3, Figure 14 (NoSplit, Split, Split-HFused).
    """
    defined = SPLIT_OPERATORS[operator](EncoderShape())
    structure, rng = Structure({LENGTHS: lengths}), np.random.default_rng(seed)
    values = {name: drawn(defined.tensors()[name], structure, rng) for name in defined.inputs()}
    expected = by_sequence(SPLITTING_ORACLES[operator], values)
    executables = {arm: Executable(schedule(defined), threads=threads) for arm, schedule in SPLIT_ARMS.items()}
    return _checked_arms(executables, values, structure, expected, lengths)


def _checked_arms(
    executables: Mapping[str, Executable], values: Mapping[str, RaggedTensor], structure: Structure,
    expected: np.ndarray, lengths: np.ndarray,
) -> dict[str, Call]:
    """Bind programs to values in the storage of each, run them, and compare the results with the elements in order."""
    arms: dict[str, Call] = {}
    for arm, executable in executables.items():
        tensors, (output,) = executable.program.tensors(), executable.program.outputs
        arms[arm], bound = executable.bind(structure, **{
            name: value.stored_as(tensors[name]).data for name, value in values.items()})
        arms[arm]()
        found = RaggedTensor(tensors[output], structure, bound[output]).to_packed()[0].reshape(-1)
        assert_close(found, expected, terms=max(EncoderShape().head_width, int(lengths.max())), scale=scale(values))
    return arms


def _whole_tile_scores(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    return queries.swapaxes(0, 1) @ keys


def _whole_tile_values(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    return (weights @ values.swapaxes(0, 1)).swapaxes(0, 1)


SPLITTING_ORACLES: Mapping[str, Callable[..., np.ndarray]] = MappingProxyType(
    {"qkt": _whole_tile_scores, "attnv": _whole_tile_values})


def storage_arms(operator: str, lengths: np.ndarray, *, threads: int, seed: int) -> dict[str, Call]:
    """Bind QKT ("qkt"), "softmax" or AttnV ("attnv") on one batch, as loops.

    Returns:
        The same program and storage, compiled: "graph" with offsets by the dimension graph, "sparse" with pointers.
        "graph_unhoisted" and "sparse_unhoisted" read tables in the innermost loops. "graph_prelude" and
        "sparse_prelude" rebuild the tables of the kernel.

    Source: CoRa §5.3, §7.4.
    """
    defined = ATTENTION_LOOPS[operator](EncoderShape())
    structure, rng = Structure({LENGTHS: lengths}), np.random.default_rng(seed)
    values = {name: drawn(defined.tensors()[name], structure, rng) for name in defined.inputs()}
    expected = by_sequence(STORAGE_ORACLES[operator], values)
    executables = {arm: Executable(defined, hoisted=hoisted, access=access, threads=threads)
                   for scheme, access in ACCESSES.items()
                   for arm, hoisted in ((scheme, True), (f"{scheme}_unhoisted", False))}
    arms = _checked_arms(executables, values, structure, expected, lengths)
    preludes = {f"{scheme}_prelude": partial(_built, lengths, _prelude(operator, scheme)) for scheme in ACCESSES}
    return arms | preludes


def storage_bytes(operator: str, lengths: np.ndarray) -> dict[str, int]:
    """Count the bytes of the tables of a kernel, "graph" and "sparse"."""
    return {scheme: _built(lengths, _prelude(operator, scheme)).table_bytes() for scheme in ACCESSES}


def _prelude(operator: str, scheme: str) -> Prelude:
    prelude, = kernel_preludes(ATTENTION_LOOPS[operator](EncoderShape()), access=ACCESSES[scheme]).values()
    return prelude


def _built(lengths: np.ndarray, prelude: Prelude) -> Structure:
    structure = Structure({LENGTHS: lengths})
    structure.prepare(prelude)
    return structure


STORAGE_ORACLES: Mapping[str, Callable[..., np.ndarray]] = MappingProxyType(
    {**SPLITTING_ORACLES, "softmax": _softmax})
