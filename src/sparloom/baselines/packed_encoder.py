"""Compute encoder layers on packed tokens with PyTorch and pad at most the attention, as an expert would write it.

Attention by loops, nested tensors, FBGEMM, padded SDPA, varlen kernels and FlexAttention; linear layers also by oneDNN.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import linear, scaled_dot_product_attention

from sparloom.baselines.encoder import (
    BoundModule,
    Module,
    PackedInputs,
    bind_module,
    compilation,
    compiled,
    fast_nested,
    micro_batch_sizes,
    micro_batches,
    padded,
)
from sparloom.errors import Unsupported
from sparloom.lazy import install_command
from sparloom.resources import package_versions

HALF_TOLERANCE = 2e-2  # of bfloat16, for weighted means of values around 1
Attend = Callable[[torch.Tensor], torch.Tensor]
"""Attention without its output projection: tokens (tokens, width) -> concatenated heads of the same shape."""

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""As torch.nn.functional.linear: tokens (tokens, in), weight (out, in) and bias (out,) give (tokens, out)."""

BLOCK, DEVICE_BLOCK = 32, 128
COMPARED = ("padded", "micro_batches")
"""Groups of baselines that every case is compared with."""

RISING = ("micro_batches",)
"""Groups of baselines whose forms have rising sizes."""

Prepare = Callable[[PackedInputs], BoundModule]
PACKAGES = ("torch", "fbgemm_gpu-cpu", "fbgemm_gpu", "mkl", "numpy")
PADDED_BASELINES: Mapping[str, Prepare] = MappingProxyType(
    {"padded": padded, "padded_fast": partial(padded, fast=True), "compiled": compiled,
     "compiled_frozen": partial(compiled, freeze=True)})
"""The whole batch padded to its longest sequence."""


def document_mask(
    lengths: Sequence[int], *, block: int, causal: bool, device: torch.device | str = "cpu",
) -> BlockMask:
    """Build a block mask: tokens attend to their own sequence, and if `causal` not to later tokens.

    Args:
        block: rows and columns of a block; empty blocks are skipped, full ones are not masked.
    """
    counts = np.array(lengths, dtype=np.int64)
    ends, total = np.cumsum(counts), int(counts.sum())
    starts, sequence = ends - counts, np.repeat(np.arange(counts.size), counts)
    blocks = np.arange(-(-total // block))
    first, last = sequence[blocks * block], np.minimum((blocks + 1) * block, total) - 1
    least, most = starts[first] // block, (last if causal else ends[sequence[last]] - 1) // block
    whole = first == sequence[last]
    full_least, full_end = -(-starts[first] // block), np.where(whole, ends[first] // block, 0)
    if causal:
        full_end = np.minimum(full_end, blocks)
    some = (blocks >= least[:, None]) & (blocks <= most[:, None])
    full = (blocks >= full_least[:, None]) & (blocks < full_end[:, None])
    number = torch.from_numpy(sequence).to(device)

    def attends(_batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
        return number[row] == number[col]

    def attends_before(
        _batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, col: torch.Tensor,
    ) -> torch.Tensor:
        return (number[row] == number[col]) & (row >= col)

    return BlockMask.from_kv_blocks(
        *_listed(some & ~full, device), *_listed(full, device), BLOCK_SIZE=block,
        mask_mod=attends_before if causal else attends, seq_lengths=(total, total))


def _listed(chosen: np.ndarray, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of chosen blocks of each row, and all blocks, chosen ones first."""
    counts, order = chosen.sum(axis=1), np.argsort(~chosen, axis=1, kind="stable")
    found, listed = (torch.from_numpy(each.astype(np.int32)).to(device)[None, None] for each in (counts, order))
    return found, listed


def packed_forward(module: Module, tokens: torch.Tensor, attend: Attend, linear: Linear = linear) -> torch.Tensor:
    """Compute a module on packed tokens; only `attend` depends on the sequences."""
    attention = module if isinstance(module, nn.MultiheadAttention) else module.self_attn

    def layer(given: torch.Tensor, of: nn.Linear) -> torch.Tensor:
        return linear(given, of.weight, of.bias)

    result = layer(attend(tokens), attention.out_proj)
    if isinstance(module, nn.MultiheadAttention):
        return result
    hidden = module.norm1(tokens + result)
    return module.norm2(hidden + layer(torch.relu(layer(hidden, module.linear1)), module.linear2))


def projected(attention: nn.MultiheadAttention, tokens: torch.Tensor, linear: Linear = linear) -> torch.Tensor:
    """Return queries, keys and values: (tokens, 3, heads, width of a head)."""
    result = linear(tokens, attention.in_proj_weight, attention.in_proj_bias)
    return result.view(-1, 3, attention.num_heads, attention.head_dim)


def onednn_linear(inputs: PackedInputs) -> Linear:
    """Multiply by oneDNN with prepacked weights.

    PyTorch uses MKL for float32, which may be slower on processors that are not from Intel. Users reach oneDNN by
    `torch.utils.mkldnn.to_mkldnn`, which converts tokens in every layer, or as here by the calls of PyTorch's compiler.

    Raises:
        Unsupported: PyTorch was built without oneDNN.
    """
    if not torch.backends.mkldnn.is_available():
        raise Unsupported("PyTorch was built without oneDNN")
    laid_out = {weight: torch.ops.mkldnn._reorder_linear_weight(weight.detach(), len(inputs.tokens))
                for weight in inputs.module.parameters() if weight.dim() == 2}

    def product(tokens: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(tokens, laid_out[weight], bias, "none", [], "")

    return product


def packed_loop(inputs: PackedInputs, *, linear: Linear = linear) -> BoundModule:
    """Compute the attention of one sequence after the other."""
    attention, found = inputs.attention, torch.empty_like(inputs.tokens)
    slices = found.view(-1, attention.num_heads, attention.head_dim).split(inputs.lengths)

    def attend(tokens: torch.Tensor) -> torch.Tensor:
        for sequence, part in zip(projected(attention, tokens, linear).split(inputs.lengths), slices, strict=True):
            queries, keys, values = sequence.permute(1, 2, 0, 3)[:, None]
            result = scaled_dot_product_attention(queries, keys, values, is_causal=inputs.causal)
            part.copy_(result[0].transpose(0, 1))
        return found

    return bind_module(lambda: packed_forward(inputs.module, inputs.tokens, attend, linear))


def nested(inputs: PackedInputs) -> BoundModule:
    """Compute the attention of jagged nested tensors; these must be contiguous, so there are three projections.

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

    return bind_module(lambda: packed_forward(inputs.module, inputs.tokens, attend))


def fbgemm(inputs: PackedInputs) -> BoundModule:
    """Pad only the attention, by the jagged operators of FBGEMM.

    Raises:
        Unsupported: fbgemm_gpu is not installed, or was built for another PyTorch.

    Source: what FasterTransformer does with packed linear operators (CoRa §7.2, FT-Eff).
    """
    operators, attention = _fbgemm(), inputs.attention
    offsets, longest, total = [inputs.offsets], max(inputs.lengths), len(inputs.tokens)
    mask = None
    if not inputs.causal and min(inputs.lengths) < longest:
        position = torch.arange(longest, device=inputs.device)
        mask = (position < torch.tensor(inputs.lengths, device=inputs.device)[:, None])[:, None, None]

    def attend(tokens: torch.Tensor) -> torch.Tensor:
        padded = operators.jagged_to_padded_dense(projected(attention, tokens).flatten(1), offsets, [longest], 0.0)
        heads = padded.unflatten(2, (3, attention.num_heads, attention.head_dim))
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        result = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=inputs.causal)
        return operators.dense_to_jagged(result.transpose(1, 2).flatten(2), offsets, total)[0]

    return bind_module(lambda: packed_forward(inputs.module, inputs.tokens, attend))


def sdpa(inputs: PackedInputs) -> BoundModule:
    """Pad only the attention, by copies with precomputed indices."""
    attention, lengths = inputs.attention, torch.tensor(inputs.lengths, device=inputs.device)
    longest, sequences = max(inputs.lengths), len(inputs.lengths)
    valid = torch.arange(longest, device=inputs.device) < lengths[:, None]
    indices = valid.flatten().nonzero().flatten()
    mask = None if inputs.causal or min(inputs.lengths) == longest else valid[:, None, None]
    workspace = torch.zeros(sequences * longest, 3 * inputs.width, device=inputs.device, dtype=inputs.tokens.dtype)

    def attend(tokens: torch.Tensor) -> torch.Tensor:
        workspace[indices] = projected(attention, tokens).flatten(1)
        heads = workspace.view(sequences, longest, 3, attention.num_heads, attention.head_dim)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        result = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=inputs.causal)
        return result.transpose(1, 2).reshape(sequences * longest, -1)[indices]

    return bind_module(lambda: packed_forward(inputs.module, inputs.tokens, attend))


def varlen(inputs: PackedInputs) -> BoundModule:
    """Compute the attention by PyTorch's varlen kernels in bfloat16; everything else stays in float32.

    Raises:
        Unsupported: the tokens are not on a GPU with these kernels.
    """
    if inputs.device.type != "cuda":
        raise Unsupported(f"PyTorch has no varlen attention for {inputs.device.type}")
    attention, longest = inputs.attention, max(inputs.lengths)
    offsets, window = inputs.offsets.to(torch.int32), (-1, 0 if inputs.causal else -1)

    def attend(tokens: torch.Tensor) -> torch.Tensor:
        queries, keys, values = projected(attention, tokens).to(torch.bfloat16).unbind(1)
        result = varlen_attn(queries, keys, values, offsets, offsets, longest, longest, window_size=window)
        return result.to(tokens.dtype).flatten(1)

    return bind_module(lambda: packed_forward(inputs.module, inputs.tokens, attend), tolerance=HALF_TOLERANCE)


def _fbgemm() -> Any:
    try:
        importlib.import_module("fbgemm_gpu")
        torch.ops.fbgemm.jagged_to_padded_dense  # noqa: B018  (fails if its library did not load)
    except (ImportError, OSError, AttributeError) as error:
        raise Unsupported(f"fbgemm_gpu is not installed, or not for PyTorch {torch.__version__}: "
                          f"{install_command('peers')}") from error
    return torch.ops.fbgemm


def flex(inputs: PackedInputs, *, block: int = BLOCK, freeze: bool = False) -> BoundModule:
    """Compile the whole module with FlexAttention on packed tokens, for this number of tokens.

    Args:
        block: block size of the mask, which is built beforehand; PyTorch's default is 128, smaller blocks suit short
            sequences.

    Raises:
        Unsupported: there is no C++ compiler.
    """
    mask = document_mask(inputs.lengths, block=block, causal=inputs.causal, device=inputs.device)
    with compilation(freeze=freeze) as compile_later:
        call = compile_later(_forward)
        return bind_module(lambda: call(inputs.module, inputs.tokens, mask))


def onednn_flex(inputs: PackedInputs, *, block: int = BLOCK) -> BoundModule:
    """Compile only the attention, with linear layers by oneDNN.

    Raises:
        Unsupported: there is no C++ compiler, or PyTorch was built without oneDNN.
    """
    linear, attention = onednn_linear(inputs), inputs.attention
    mask = document_mask(inputs.lengths, block=block, causal=inputs.causal, device=inputs.device)
    with compilation(freeze=False) as compile_later:
        call = compile_later(_attended)

        def attend(tokens: torch.Tensor) -> torch.Tensor:
            return call(projected(attention, tokens, linear), mask)

        return bind_module(lambda: packed_forward(inputs.module, inputs.tokens, attend, linear))


def _forward(module: Module, tokens: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    attention = module if isinstance(module, torch.nn.MultiheadAttention) else module.self_attn

    return packed_forward(module, tokens, lambda tokens: _attended(projected(attention, tokens), mask))


def _attended(qkv: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    queries, keys, values = qkv.permute(1, 2, 0, 3)[:, None]
    return flex_attention(queries, keys, values, block_mask=mask)[0].transpose(0, 1).flatten(1)


RAGGED_BASELINES: Mapping[str, Prepare] = MappingProxyType({
    "loop": partial(micro_batches, size=1), "loop_fast": partial(micro_batches, size=1, fast=True),
    "packed_loop": packed_loop, "nested": nested, "nested_fast": fast_nested, "fbgemm": fbgemm, "flex": flex,
    "flex_frozen": partial(flex, freeze=True),
    "onednn_loop": lambda inputs: packed_loop(inputs, linear=onednn_linear(inputs)), "onednn_flex": onednn_flex})
"""No padding, or padding of the attention only."""

DEVICE_BASELINES: Mapping[str, Prepare] = MappingProxyType({
    "packed_loop": packed_loop, "nested": nested, "nested_fast": fast_nested, "sdpa": sdpa,
    "flex": partial(flex, block=DEVICE_BLOCK), "varlen": varlen})
"""As `RAGGED_BASELINES`, on a GPU."""


def micro_batch_baselines(batch: int) -> dict[str, Prepare]:
    """Return micro-batches of every size by both paths: "micro_batches_<size>" and "micro_batches_fast_<size>"."""
    paths = {"micro_batches": False, "micro_batches_fast": True}
    return {f"{name}_{size}": partial(micro_batches, size=size, fast=fast)
            for size in micro_batch_sizes(batch) for name, fast in paths.items()}


def encoder_baselines(inputs: PackedInputs) -> dict[str, Prepare]:
    """Return all baselines by name; those that cannot run raise Unsupported when they are prepared."""
    return {**PADDED_BASELINES, **micro_batch_baselines(len(inputs.lengths)), **RAGGED_BASELINES}


def encoder_versions() -> dict[str, str]:
    """Return the versions of installed packages."""
    return package_versions(PACKAGES)
