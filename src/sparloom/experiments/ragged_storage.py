"""What it takes to find elements of scores by the dimension graph, and by the pointers of sparse storage."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import numpy as np

from sparloom.experiments.ragged_splitting import ORACLES as PRODUCTS
from sparloom.experiments.ragged_values import by_sequence, drawn, scale
from sparloom.ops import assert_close
from sparloom.ragged import (
    ATTENTION_LOOPS,
    LENGTHS,
    Access,
    EncoderShape,
    Executable,
    Prelude,
    RaggedTensor,
    Structure,
    kernel_preludes,
    offset_steps,
    pointer_steps,
)

__all__ = ["storage_arms", "storage_bytes"]

Call = Callable[[], object]

ACCESSES: Mapping[str, Access] = MappingProxyType({"graph": offset_steps, "sparse": pointer_steps})


def storage_arms(operator: str, lengths: np.ndarray, *, threads: int, seed: int) -> dict[str, Call]:
    """Bind QKT ("qkt"), "softmax" or AttnV ("attnv") on one batch, as loops.

    Returns:
        "graph", with offsets by the dimension graph, and "sparse", by pointers: the same program and storage, compiled.
        "graph_unhoisted" and "sparse_unhoisted": tables are read where they are asked for. "graph_prelude" and
        "sparse_prelude" build the tables that the kernel reads anew, by compiled code.

    Raises:
        AssertionError: an arm computes something else than NumPy, sequence after sequence.

    Source: CoRa §5.3, §7.4.
    """
    defined, shape = ATTENTION_LOOPS[operator](EncoderShape()), EncoderShape()
    tensors, (output,) = defined.tensors(), defined.outputs
    structure, rng = Structure({LENGTHS: lengths}), np.random.default_rng(seed)
    values = {name: drawn(tensors[name], structure, rng) for name in defined.inputs()}
    expected, arms = by_sequence(ORACLES[operator], values), {}
    for scheme, access in ACCESSES.items():
        for arm, hoisted in ((scheme, True), (f"{scheme}_unhoisted", False)):
            executable = Executable(defined, hoisted=hoisted, access=access, threads=threads)
            arms[arm], bound = executable.bind(structure, **{name: value.data for name, value in values.items()})
            arms[arm]()
            found = RaggedTensor(tensors[output], structure, bound[output]).to_packed()[0].reshape(-1)
            assert_close(found, expected, terms=max(shape.head_width, int(lengths.max())), scale=scale(values))
    preludes = {f"{scheme}_prelude": partial(_built, lengths, _prelude(operator, scheme)) for scheme in ACCESSES}
    return arms | preludes


def storage_bytes(operator: str, lengths: np.ndarray) -> dict[str, int]:
    """Count what the tables that a kernel reads take, by "graph" and "sparse"."""
    return {scheme: _built(lengths, _prelude(operator, scheme)).table_bytes() for scheme in ACCESSES}


def _prelude(operator: str, scheme: str) -> Prelude:
    prelude, = kernel_preludes(ATTENTION_LOOPS[operator](EncoderShape()), access=ACCESSES[scheme]).values()
    return prelude


def _built(lengths: np.ndarray, prelude: Prelude) -> Structure:
    structure = Structure({LENGTHS: lengths})
    structure.prepare(prelude)
    return structure


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp((scores - scores.max(axis=2, keepdims=True)) * EncoderShape().head_width**-0.5)
    return powers / powers.sum(axis=2, keepdims=True)


ORACLES: Mapping[str, Callable[..., np.ndarray]] = MappingProxyType({**PRODUCTS, "softmax": _softmax})
