"""What an encoder layer computes and keeps on batches of sequences, counted: padded, with a little padding, ragged."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from sparloom.ragged import (
    KEPT,
    LENGTHS,
    EncoderSchedule,
    EncoderShape,
    EncoderSizes,
    LoopPadding,
    StoragePadding,
    Structure,
    dense_activations,
    dense_flops,
    encoder_layer,
    iterations,
    partial_flops,
    ragged_activations,
    ragged_flops,
    scheduled_encoder_layer,
    scheduled_mixing,
    with_bulk_sequence,
)

__all__ = ["activation_rows", "computation_rows"]

Row = dict[str, Any]
BULK = 64  # tokens, of the paper's padding sequence
ELEMENT_BYTES = 4
KERNEL_NESTS: Mapping[str, tuple[str, ...]] = MappingProxyType({  # of our program, by the kernel of the paper
    "qkv": ("qkv",), "scores": ("scores",), "softmax": ("peak", "weights", "total"), "values": ("mixed",),
    "projection": ("attended",), "norm1": ("mean_1", "spread_1", "norm_1"), "ff1": ("active",), "ff2": ("fed",),
    "norm2": ("mean_2", "spread_2", "norm_2")})
STORED: Mapping[str, str] = MappingProxyType({  # tensors of our program, by the paper's
    "qkv": "qkv", "mixed": "attention", "attended": "projection", "norm_1": "norm1", "active": "ff1", "fed": "ff2",
    "norm_2": "norm2", **dict.fromkeys(KEPT, "statistics")})


def computation_rows(batches: Sequence[np.ndarray]) -> list[Row]:
    """Count the operations of all batches together.

    Returns:
        A row for each kernel ("operator") and method: "dense", all sequences of a batch as long as its longest;
        "partial", the paper's padding; "ideal"; "own", iterations of our schedule. For masked attention, kernel
        "causal", methods "dense" (nothing is left out), "own" and "ideal", the scores of all heads.
    """
    sizes = EncoderSizes()
    defined, scheduled = encoder_layer(EncoderShape()), scheduled_encoder_layer(EncoderShape(), EncoderSchedule())
    masked = scheduled_mixing(EncoderShape(causal=True), EncoderSchedule())
    total: dict[tuple[str, str], int] = {}

    def add(method: str, counted: Mapping[str, int]) -> None:
        for kernel, count in counted.items():
            total[kernel, method] = total.get((kernel, method), 0) + count

    for lengths in batches:
        structure, ideal = Structure({LENGTHS: lengths}), ragged_flops(lengths, sizes)
        add("dense", dense_flops(lengths, sizes))
        add("partial", partial_flops(with_bulk_sequence(lengths, BULK), sizes, LoopPadding()))
        add("ideal", ideal)
        computed, wanted = iterations(scheduled, structure), iterations(defined, structure)
        add("own", {kernel: round(count * _over(computed, KERNEL_NESTS[kernel]) / _over(wanted, KERNEL_NESTS[kernel]))
                    for kernel, count in ideal.items()})
        add("dense", {"causal": sizes.heads * int((lengths**2).sum())})
        add("ideal", {"causal": sizes.heads * int((lengths * (lengths + 1) // 2).sum())})
        add("own", {"causal": iterations(masked, structure)["weights"]})
    return [{"operator": kernel, "method": method, "flops": count} for (kernel, method), count in total.items()]


def activation_rows(batches: Sequence[np.ndarray]) -> list[Row]:
    """Count the bytes that the forward pass keeps, of all batches together.

    Returns:
        A row for each tensor ("operator") and method: "dense", "partial" with the paper's padding of storage, "ragged"
        without any, all with scores and probabilities; "own", what our layer stores for its gradients, with the
        "statistics" of rows of scores and of tokens.
    """
    sizes, program = EncoderSizes(), scheduled_encoder_layer(EncoderShape(), EncoderSchedule(), kept=KEPT)
    total: dict[tuple[str, str], int] = {}
    for lengths in batches:
        structure, tensors = Structure({LENGTHS: lengths}), program.tensors()
        stored: dict[str, int] = {}
        for name, tensor in tensors.items():
            if name not in program.inputs() and tensor.local is None:
                stored[STORED[name]] = stored.get(STORED[name], 0) + structure.size(tensor)
        for method, counted in {
                "dense": dense_activations(lengths, sizes),
                "partial": ragged_activations(lengths, sizes, StoragePadding()),
                "ragged": ragged_activations(lengths, sizes, StoragePadding(1, 1, 1)), "own": stored}.items():
            for tensor, elements in counted.items():
                total[tensor, method] = total.get((tensor, method), 0) + elements
    return [{"operator": tensor, "method": method, "bytes": ELEMENT_BYTES * count}
            for (tensor, method), count in total.items()]


def _over(counts: Mapping[str, int], nests: Sequence[str]) -> int:
    return sum(counts[nest] for nest in nests)
