"""Every kernel of the encoder layer, beside the operators of PyTorch that do the same on packed tokens."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention

from sparloom.experiments.module_tensors import stored_tensors
from sparloom.experiments.packed_inputs import PackedInputs, encoder_layer
from sparloom.ragged import LENGTHS, EncoderSchedule, EncoderShape, Executable, Structure, scheduled_encoder_layer

__all__ = ["breakdown_arms"]

Call = Callable[[], object]
TOLERANCE = 1e-4  # absolute, of values around 1; other orders of addition
KERNELS: Mapping[str, str] = MappingProxyType({  # launches, by operator
    "qkv": "qkv", "attention": "mixed", "projection": "attended", "norm1": "norm_1", "ff1": "active", "ff2": "fed",
    "norm2": "norm_2"})


def breakdown_arms(lengths: Sequence[int] | np.ndarray, *, threads: int, seed: int) -> dict[str, dict[str, Call]]:
    """Bind the operators of a layer on one batch; each reads what our kernel before it has left.

    Returns:
        By operator, in order: qkv, attention (scores, softmax and mix), projection (with the residual), norm1, ff1
        (with ReLU), ff2 (with the residual), norm2; "sparloom" and "torch" of each.

    Raises:
        AssertionError: a kernel computes something else than PyTorch.

    Source: CoRa §7.2, Figures 13 and 24, Table 10.
    """
    torch.set_num_threads(threads)
    inputs = PackedInputs.drawn(encoder_layer(seed=seed), [int(length) for length in lengths], seed=seed)
    program, structure = scheduled_encoder_layer(EncoderShape(), EncoderSchedule()), Structure({LENGTHS: lengths})
    kernels, bound = Executable(program, threads=threads).kernels(
        structure, **stored_tensors(program, structure, inputs))
    for run in kernels.values():
        run()
    made = {name: torch.from_numpy(bound[name].reshape(len(inputs.tokens), -1)) for name in KERNELS.values()}
    operators = _operators(inputs, made)
    for operator, name in KERNELS.items():
        with torch.inference_mode():
            apart = float((operators[operator]() - made[name]).abs().max())
        if not apart < TOLERANCE:
            raise AssertionError(f"{operator}: our kernel computes something else than PyTorch: {apart:.1e} apart")
    return {operator: {"sparloom": kernels[name], "torch": operators[operator]} for operator, name in KERNELS.items()}


def _operators(inputs: PackedInputs, made: Mapping[str, torch.Tensor]) -> dict[str, Callable[[], torch.Tensor]]:
    """PyTorch's, on the same storage."""
    layer, attention, tokens = inputs.module, inputs.attention, inputs.tokens
    found = torch.empty_like(tokens)
    places = found.view(-1, inputs.heads, attention.head_dim).split(inputs.lengths)
    sequences = made["qkv"].view(-1, 3, inputs.heads, attention.head_dim).split(inputs.lengths)

    def attended() -> torch.Tensor:
        for sequence, place in zip(sequences, places, strict=True):
            queries, keys, values = sequence.permute(1, 2, 0, 3)[:, None]
            place.copy_(scaled_dot_product_attention(queries, keys, values)[0].transpose(0, 1))
        return found

    def normalised(norm: torch.nn.LayerNorm, given: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: layer_norm(given, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    return {
        "qkv": lambda: linear(tokens, attention.in_proj_weight, attention.in_proj_bias),
        "attention": attended,
        "projection": lambda: tokens + attention.out_proj(made["mixed"]),
        "norm1": normalised(layer.norm1, made["attended"]),
        "ff1": lambda: torch.relu(layer.linear1(made["norm_1"])),
        "ff2": lambda: made["norm_1"] + layer.linear2(made["active"]),
        "norm2": normalised(layer.norm2, made["fed"]),
    }
