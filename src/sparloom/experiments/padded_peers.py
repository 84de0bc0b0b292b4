"""Peers that pad: the whole batch, micro-batches of like lengths, or nothing but one sequence at a time."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from sparloom.errors import Unsupported
from sparloom.experiments.compilation import compilation
from sparloom.experiments.packed_inputs import Module, PackedInputs, fast_path
from sparloom.experiments.peer import Peer, prepared

__all__ = [
    "compiled", "fast_loop", "fast_micro_batches", "fast_nested", "fast_padded", "frozen", "loop", "micro_batch_sizes",
    "micro_batches", "padded",
]

Forward = Callable[..., torch.Tensor]


@dataclass(frozen=True, eq=False)
class Group:
    """Some sequences, padded to the longest of them.

    Args:
        members: their numbers.
        tokens: (sequences, longest, width), 0 in padding.
        padding: (sequences, longest) bool, true in padding; None where none is, or none matters: in causal attention
            what stands behind a sequence meets none of its tokens.
        mask: (longest, longest) bool, true where a token does not attend; None where all attend to all.
    """

    members: np.ndarray
    tokens: torch.Tensor
    padding: torch.Tensor | None
    mask: torch.Tensor | None


def padded(inputs: PackedInputs) -> Peer:
    """Pad all to the longest; PyTorch's ordinary path."""
    return micro_batches(inputs, len(inputs.lengths))


def fast_padded(inputs: PackedInputs) -> Peer:
    """Pad all to the longest; PyTorch's fused kernels for inference."""
    return fast_micro_batches(inputs, len(inputs.lengths))


def compiled(inputs: PackedInputs) -> Peer:
    """Pad all to the longest; torch.compile for this shape.

    Raises:
        Unsupported: there is no C++ compiler.
    """
    return _compiled(inputs, freeze=False)


def frozen(inputs: PackedInputs) -> Peer:
    """Like `compiled`, with weights as constants, which are laid out beforehand.

    Raises:
        Unsupported: there is no C++ compiler.
    """
    return _compiled(inputs, freeze=True)


def fast_nested(inputs: PackedInputs) -> Peer:
    """PyTorch's fused kernels for inference on a strided nested tensor: packed but for the attention.

    Raises:
        Unsupported: attention is causal.
    """
    if inputs.causal:
        raise Unsupported("PyTorch's fused kernels take no mask with nested tensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        nested = torch.nested.nested_tensor(list(inputs.sequences()))

    def run() -> torch.Tensor:
        with fast_path(True):
            return _forward(inputs.module, nested)

    return prepared(run, lambda result: torch.cat(result.unbind()))


def micro_batch_sizes(batch: int) -> list[int]:
    """List the powers of two from 2 to below the batch: the sizes that the paper searches; the batch is `padded`."""
    return [1 << power for power in range(1, max(batch - 1, 0).bit_length())]


def micro_batches(inputs: PackedInputs, size: int) -> Peer:
    """Sort sequences by length, cut the batch, pad each part to its own longest; PyTorch's ordinary path.

    Source: CoRa §D.8, PT-UB.
    """
    return _grouped(inputs, _groups(inputs, size), _forward, fast=False)


def fast_micro_batches(inputs: PackedInputs, size: int) -> Peer:
    """Micro-batches by PyTorch's fused kernels for inference."""
    return _grouped(inputs, _groups(inputs, size), _forward, fast=True)


def loop(inputs: PackedInputs) -> Peer:
    """One sequence after the other, without padding; PyTorch's ordinary path."""
    return micro_batches(inputs, 1)


def fast_loop(inputs: PackedInputs) -> Peer:
    """One sequence after the other, by PyTorch's fused kernels for inference."""
    return fast_micro_batches(inputs, 1)


def _grouped(inputs: PackedInputs, groups: Sequence[Group], forward: Forward, *, fast: bool) -> Peer:
    def run() -> list[torch.Tensor]:
        with fast_path(fast):
            return [forward(inputs.module, group.tokens, group.padding, group.mask) for group in groups]

    return prepared(run, partial(_ungrouped, inputs, groups))


def _compiled(inputs: PackedInputs, *, freeze: bool) -> Peer:
    with compilation(freeze=freeze) as compile_later:
        return _grouped(inputs, _groups(inputs, len(inputs.lengths)), compile_later(_forward), fast=False)


def _forward(module: Module, tokens: torch.Tensor, padding: torch.Tensor | None = None,
             mask: torch.Tensor | None = None) -> torch.Tensor:
    causal = mask is not None
    if isinstance(module, nn.MultiheadAttention):
        return module(tokens, tokens, tokens, key_padding_mask=padding, attn_mask=mask, is_causal=causal,
                      need_weights=False)[0]
    return module(tokens, src_mask=mask, src_key_padding_mask=padding, is_causal=causal)


def _groups(inputs: PackedInputs, size: int) -> list[Group]:
    lengths, sequences = np.array(inputs.lengths), inputs.sequences()
    order = np.argsort(-lengths, kind="stable")
    groups = []
    for start in range(0, order.size, size):
        members = order[start: start + size]
        tokens = nn.utils.rnn.pad_sequence([sequences[member] for member in members], batch_first=True)
        longest, padding, mask = tokens.shape[1], None, None
        if inputs.causal:
            mask = torch.ones(longest, longest, dtype=torch.bool, device=inputs.device).triu(1)
        elif lengths[members].min() < longest:
            padding = torch.from_numpy(np.arange(longest) >= lengths[members, None]).to(inputs.device)
        groups.append(Group(members, tokens, padding, mask))
    return groups


def _ungrouped(inputs: PackedInputs, groups: Sequence[Group], results: Sequence[torch.Tensor]) -> torch.Tensor:
    taken = {int(member): result[place, : inputs.lengths[member]]
             for group, result in zip(groups, results, strict=True) for place, member in enumerate(group.members)}
    return torch.cat([taken[member] for member in range(len(inputs.lengths))])
