"""Own modules on packed tokens, as their peers are bound; and parts of them by themselves."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from sparloom.nn import MultiheadAttention, TransformerEncoderLayer
from sparloom.experiments.packed_inputs import PackedInputs
from sparloom.experiments.peer import Peer
from sparloom.ragged import (
    LENGTHS,
    EncoderSchedule,
    EncoderShape,
    Executable,
    Structure,
    scheduled_encoder_layer,
    scheduled_mixing,
)

__all__ = ["OWN_MODULES", "attention_kernels", "prelude_seconds"]

Schedule = EncoderSchedule | Literal["auto"] | None


def own_encoder(inputs: PackedInputs, schedule: Schedule) -> Peer:
    """Bind `sparloom.nn.TransformerEncoderLayer`; what "auto" searches is found when the peer is checked."""
    attention = inputs.attention
    layer = TransformerEncoderLayer(attention.embed_dim, attention.num_heads, inputs.module.linear1.out_features,
                                    dropout=0.0, schedule=schedule).eval()
    layer.load_state_dict(inputs.module.state_dict())
    structure = Structure({LENGTHS: inputs.lengths})
    return Peer(lambda: layer(inputs.tokens, structure), lambda result: result)


def own_attention(inputs: PackedInputs, schedule: Schedule) -> Peer:
    """Bind `sparloom.nn.MultiheadAttention`, as `own_encoder`."""
    attention = inputs.attention
    layer = MultiheadAttention(attention.embed_dim, attention.num_heads, schedule=schedule).eval()
    layer.load_state_dict(attention.state_dict())
    structure = Structure({LENGTHS: inputs.lengths})
    return Peer(lambda: layer(inputs.tokens, structure), lambda result: result)


OWN_MODULES: Mapping[str, Callable[..., Peer]] = MappingProxyType({"encoder": own_encoder, "mha": own_attention})


def attention_kernels(lengths: Sequence[int] | np.ndarray, *, threads: int, seed: int) -> dict[str, Callable[[], None]]:
    """Bind masked attention without its projections: on triangles of tiles, and computed whole, then masked.

    "sparloom" and "whole" give the same; "unmasked" is all of it without a mask.

    Returns:
        "sparloom", "whole" and "unmasked".
    """
    plain = EncoderShape()
    shapes = {"sparloom": replace(plain, causal=True), "unmasked": plain,
              "whole": replace(plain, causal=True, triangles=False)}
    rng = np.random.default_rng(seed)
    structure = Structure({LENGTHS: lengths})
    qkv = rng.standard_normal(int(np.sum(lengths)) * 3 * plain.width, dtype=np.float32)
    calls: dict[str, Callable[[], None]] = {}
    results: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        executable = Executable(scheduled_mixing(shape, EncoderSchedule()), threads=threads)
        calls[name], bound = executable.bind(structure, qkv=qkv)
        calls[name]()
        results[name] = bound["mixed"]
    if not np.allclose(results["sparloom"], results["whole"], atol=1e-5):
        raise AssertionError("masked attention on triangles of tiles computes something else than masking all of it")
    return calls


def prelude_seconds(lengths: Sequence[int] | np.ndarray, *, repetitions: int) -> list[float]:
    """Time what a batch pattern costs before the first layer: a structure with every table of the encoder layer."""
    executable = Executable(scheduled_encoder_layer(EncoderShape(), EncoderSchedule()))
    taken = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        Structure({LENGTHS: lengths}).prepare(executable.prelude)
        taken.append(time.perf_counter() - start)
    return taken[1:]
