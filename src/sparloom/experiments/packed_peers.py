"""Peers that keep tokens packed in all but the attention, as an expert writes it with PyTorch."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import linear, scaled_dot_product_attention

from sparloom.errors import Unsupported
from sparloom.experiments.packed_inputs import Module, PackedInputs
from sparloom.experiments.peer import Peer, prepared

__all__ = [
    "fbgemm", "nested", "onednn_linear", "onednn_loop", "packed_forward", "packed_loop", "projected", "sdpa", "varlen",
]

HALF_TOLERANCE = 2e-2  # of bfloat16, as attention weighs values of about 1

Attend = Callable[[torch.Tensor], torch.Tensor]
"""From tokens (tokens, width) to what the heads found, of the same shape: all of the attention but its last product."""

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""As torch.nn.functional.linear: tokens (tokens, in), weight (out, in) and bias (out,) give (tokens, out)."""


def packed_forward(module: Module, tokens: torch.Tensor, attend: Attend, linear: Linear = linear) -> torch.Tensor:
    """Compute a module on packed tokens; only `attend` knows of sequences."""
    attention = module if isinstance(module, nn.MultiheadAttention) else module.self_attn

    def layer(given: torch.Tensor, of: nn.Linear) -> torch.Tensor:
        return linear(given, of.weight, of.bias)

    result = layer(attend(tokens), attention.out_proj)
    if isinstance(module, nn.MultiheadAttention):
        return result
    hidden = module.norm1(tokens + result)
    return module.norm2(hidden + layer(torch.relu(layer(hidden, module.linear1)), module.linear2))


def projected(attention: nn.MultiheadAttention, tokens: torch.Tensor, linear: Linear = linear) -> torch.Tensor:
    """Give queries, keys and values side by side: (tokens, 3, heads, width of a head)."""
    result = linear(tokens, attention.in_proj_weight, attention.in_proj_bias)
    return result.view(-1, 3, attention.num_heads, attention.head_dim)


def onednn_linear(inputs: PackedInputs) -> Linear:
    """Multiply by oneDNN, its weights laid out beforehand.

    PyTorch leaves float32 to MKL, which may be slower on processors of other makers than Intel. Users reach oneDNN by
    `torch.utils.mkldnn.to_mkldnn`, which converts tokens in every layer, or as here by what PyTorch's compiler calls.

    Raises:
        Unsupported: this PyTorch was built without it.
    """
    if not torch.backends.mkldnn.is_available():
        raise Unsupported("PyTorch was built without oneDNN")
    laid_out = {weight: torch.ops.mkldnn._reorder_linear_weight(weight.detach(), len(inputs.tokens))
                for weight in inputs.module.parameters() if weight.dim() == 2}

    def product(tokens: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(tokens, laid_out[weight], bias, "none", [], "")

    return product


def onednn_loop(inputs: PackedInputs) -> Peer:
    """Attend as `packed_loop`; linear layers by oneDNN.

    Raises:
        Unsupported: as `onednn_linear`.
    """
    return packed_loop(inputs, linear=onednn_linear(inputs))


def packed_loop(inputs: PackedInputs, *, linear: Linear = linear) -> Peer:
    """Attend in one sequence after the other."""
    attention, found = inputs.attention, torch.empty_like(inputs.tokens)
    places = found.view(-1, attention.num_heads, attention.head_dim).split(inputs.lengths)

    def attend(tokens: torch.Tensor) -> torch.Tensor:
        for sequence, place in zip(projected(attention, tokens, linear).split(inputs.lengths), places, strict=True):
            queries, keys, values = sequence.permute(1, 2, 0, 3)[:, None]
            result = scaled_dot_product_attention(queries, keys, values, is_causal=inputs.causal)
            place.copy_(result[0].transpose(0, 1))
        return found

    return prepared(lambda: packed_forward(inputs.module, inputs.tokens, attend, linear))


def nested(inputs: PackedInputs) -> Peer:
    """Attend in nested tensors of jagged layout, which have to be contiguous: three projections make them.

    Raises:
        Unsupported: attention is causal.
    """
    if inputs.causal:
        raise Unsupported("PyTorch has no causal attention in nested tensors on the CPU")
    attention = inputs.attention
    weights = list(zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True))
    offsets, least, most = inputs.offsets, min(inputs.lengths), max(inputs.lengths)

    def jagged(tokens: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        part = linear(tokens, weight, bias).view(-1, attention.num_heads, attention.head_dim)
        nested = torch.nested.nested_tensor_from_jagged(part, offsets, min_seqlen=least, max_seqlen=most)
        return nested.transpose(1, 2)

    def attend(tokens: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (jagged(tokens, *each) for each in weights)
        result = scaled_dot_product_attention(queries, keys, values)
        return result.transpose(1, 2).values().flatten(1)

    return prepared(lambda: packed_forward(inputs.module, inputs.tokens, attend))


def fbgemm(inputs: PackedInputs) -> Peer:
    """Pad for the attention alone, by the jagged operators of FBGEMM.

    Raises:
        Unsupported: fbgemm_gpu is not installed, or made for another PyTorch.

    Source: what FasterTransformer does with packed linear operators (CoRa §7.2, FT-Eff).
    """
    operators, attention = _fbgemm(), inputs.attention
    offsets, longest, total = [inputs.offsets], max(inputs.lengths), len(inputs.tokens)
    mask = None
    if not inputs.causal and min(inputs.lengths) < longest:
        places = torch.arange(longest, device=inputs.device)
        mask = (places < torch.tensor(inputs.lengths, device=inputs.device)[:, None])[:, None, None]

    def attend(tokens: torch.Tensor) -> torch.Tensor:
        padded = operators.jagged_to_padded_dense(projected(attention, tokens).flatten(1), offsets, [longest], 0.0)
        heads = padded.unflatten(2, (3, attention.num_heads, attention.head_dim))
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        result = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=inputs.causal)
        return operators.dense_to_jagged(result.transpose(1, 2).flatten(2), offsets, total)[0]

    return prepared(lambda: packed_forward(inputs.module, inputs.tokens, attend))


def sdpa(inputs: PackedInputs) -> Peer:
    """Pad for the attention alone, by copies to and from places that are known beforehand."""
    attention, lengths = inputs.attention, torch.tensor(inputs.lengths, device=inputs.device)
    longest, sequences = max(inputs.lengths), len(inputs.lengths)
    valid = torch.arange(longest, device=inputs.device) < lengths[:, None]
    places = valid.flatten().nonzero().flatten()
    mask = None if inputs.causal or min(inputs.lengths) == longest else valid[:, None, None]
    room = torch.zeros(sequences * longest, 3 * inputs.width, device=inputs.device, dtype=inputs.tokens.dtype)

    def attend(tokens: torch.Tensor) -> torch.Tensor:
        room[places] = projected(attention, tokens).flatten(1)
        heads = room.view(sequences, longest, 3, attention.num_heads, attention.head_dim)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        result = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=inputs.causal)
        return result.transpose(1, 2).reshape(sequences * longest, -1)[places]

    return prepared(lambda: packed_forward(inputs.module, inputs.tokens, attend))


def varlen(inputs: PackedInputs) -> Peer:
    """Attend by PyTorch's kernels for packed sequences, which compute in bfloat16; all else stays in float32.

    Raises:
        Unsupported: tokens are not on a GPU that has these kernels.
    """
    if inputs.device.type != "cuda":
        raise Unsupported(f"PyTorch has no varlen attention for {inputs.device.type}")
    attention, longest = inputs.attention, max(inputs.lengths)
    offsets, window = inputs.offsets.to(torch.int32), (-1, 0 if inputs.causal else -1)

    def attend(tokens: torch.Tensor) -> torch.Tensor:
        queries, keys, values = projected(attention, tokens).to(torch.bfloat16).unbind(1)
        result = varlen_attn(queries, keys, values, offsets, offsets, longest, longest, window_size=window)
        return result.to(tokens.dtype).flatten(1)

    return prepared(lambda: packed_forward(inputs.module, inputs.tokens, attend), tolerance=HALF_TOLERANCE)


def _fbgemm() -> Any:
    try:
        importlib.import_module("fbgemm_gpu")
        torch.ops.fbgemm.jagged_to_padded_dense  # noqa: B018  (fails if its library did not load)
    except (ImportError, OSError, AttributeError) as error:
        raise Unsupported(f"fbgemm_gpu is not installed, or not for PyTorch {torch.__version__}: install "
                          f"sparloom[peers]") from error
    return torch.ops.fbgemm
