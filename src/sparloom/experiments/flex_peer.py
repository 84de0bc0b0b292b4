"""The peer that PyTorch recommends for packed sequences: FlexAttention with a mask of documents."""

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from sparloom.experiments.compilation import compilation
from sparloom.experiments.document_mask import document_mask
from sparloom.experiments.packed_inputs import Module, PackedInputs
from sparloom.experiments.packed_peers import onednn_linear, packed_forward, projected
from sparloom.experiments.peer import Peer, prepared

__all__ = ["device_flex", "flex", "frozen_flex", "onednn_flex"]

BLOCK, DEVICE_BLOCK = 32, 128


def flex(inputs: PackedInputs, *, block: int = BLOCK) -> Peer:
    """Compile the module on packed tokens as a whole, for this number of tokens.

    Args:
        block: of the mask, which is made beforehand; PyTorch's own is 128, smaller ones fit short sequences better.

    Raises:
        Unsupported: there is no C++ compiler.
    """
    return _compiled(inputs, block, freeze=False)


def device_flex(inputs: PackedInputs) -> Peer:
    """Like `flex`, with blocks as large as PyTorch's kernels for a GPU want them."""
    return flex(inputs, block=DEVICE_BLOCK)


def frozen_flex(inputs: PackedInputs, *, block: int = BLOCK) -> Peer:
    """Like `flex`, with weights as constants, which are laid out beforehand."""
    return _compiled(inputs, block, freeze=True)


def onednn_flex(inputs: PackedInputs, *, block: int = BLOCK) -> Peer:
    """Compile the attention alone; linear layers by oneDNN.

    Raises:
        Unsupported: there is no C++ compiler, or PyTorch was built without oneDNN.
    """
    linear, attention = onednn_linear(inputs), inputs.attention
    mask = document_mask(inputs.lengths, block=block, causal=inputs.causal, device=inputs.device)
    with compilation(freeze=False) as compile_later:
        call = compile_later(_attended)

        def attend(tokens: torch.Tensor) -> torch.Tensor:
            return call(projected(attention, tokens, linear), mask)

        return prepared(lambda: packed_forward(inputs.module, inputs.tokens, attend, linear))


def _compiled(inputs: PackedInputs, block: int, *, freeze: bool) -> Peer:
    mask = document_mask(inputs.lengths, block=block, causal=inputs.causal, device=inputs.device)
    with compilation(freeze=freeze) as compile_later:
        call = compile_later(_forward)
        return prepared(lambda: call(inputs.module, inputs.tokens, mask))


def _forward(module: Module, tokens: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    attention = module if isinstance(module, torch.nn.MultiheadAttention) else module.self_attn

    return packed_forward(module, tokens, lambda tokens: _attended(projected(attention, tokens), mask))


def _attended(qkv: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    queries, keys, values = qkv.permute(1, 2, 0, 3)[:, None]
    return flex_attention(queries, keys, values, block_mask=mask)[0].transpose(0, 1).flatten(1)
