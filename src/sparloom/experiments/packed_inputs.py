"""Tokens of sequences of several lengths, one after the other, and the PyTorch module that they go through."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import nn

__all__ = ["Module", "PackedInputs", "attention_module", "encoder_layer", "fast_path", "reference"]

Module = nn.TransformerEncoderLayer | nn.MultiheadAttention
Made = TypeVar("Made", nn.TransformerEncoderLayer, nn.MultiheadAttention)


@dataclass(frozen=True, eq=False)
class PackedInputs:
    """What every way to compute the module gets.

    Args:
        module: in evaluation mode; an encoder layer normalises after its blocks (norm_first=False) and has ReLU.
        tokens: (tokens, width), of the type of the module's parameters.
        lengths: of the sequences, at least one token each.
        causal: a token attends to itself and those before it.

    Raises:
        ValueError: lengths do not fit the tokens, or the module is one that not all ways can compute.
    """

    module: Module
    tokens: torch.Tensor
    lengths: tuple[int, ...]
    causal: bool = False

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"{len(self.lengths)} sequences, the shortest of {min(self.lengths, default=0)} tokens: "
                             f"take at least one sequence, and leave empty ones out")
        if self.tokens.shape != (sum(self.lengths), self.width):
            raise ValueError(f"tokens of shape {tuple(self.tokens.shape)}: these lengths and the module need "
                             f"{(sum(self.lengths), self.width)}")
        layer = self.module
        if isinstance(layer, nn.TransformerEncoderLayer) and (layer.norm_first or layer.activation_relu_or_gelu != 1):
            raise ValueError("encoder layer with norm_first=True or without ReLU: take norm_first=False, "
                             "activation='relu'")
        attention = self.attention
        if (layer.training or not attention.batch_first or attention.in_proj_weight is None
                or attention.in_proj_bias is None or attention.bias_k is not None or attention.add_zero_attn):
            raise ValueError("module in training mode, or attention without batch_first=True, with embeddings of "
                             "several widths, without bias or with added keys: call eval() and keep PyTorch's defaults "
                             "but batch_first=True")

    @classmethod
    def drawn(cls, module: Module, lengths: Sequence[int], *, seed: int, causal: bool = False) -> "PackedInputs":
        """Draw normally distributed tokens."""
        width = _attention(module).embed_dim
        counts = tuple(int(length) for length in lengths)
        generator = torch.Generator().manual_seed(seed)
        return cls(module, torch.randn(sum(counts), width, generator=generator), counts, causal)

    def double(self) -> "PackedInputs":
        """The same in float64, with a copy of the module."""
        return replace(self, module=copy.deepcopy(self.module).double(), tokens=self.tokens.double())

    def to(self, device: torch.device) -> "PackedInputs":
        """The same on a device, with a copy of the module."""
        return replace(self, module=copy.deepcopy(self.module).to(device), tokens=self.tokens.to(device))

    @property
    def device(self) -> torch.device:
        """Where tokens and parameters are."""
        return self.tokens.device

    @property
    def attention(self) -> nn.MultiheadAttention:
        """The module, or the attention in it."""
        return _attention(self.module)

    @property
    def width(self) -> int:
        """Features of a token."""
        return self.attention.embed_dim

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.attention.num_heads

    @property
    def offsets(self) -> torch.Tensor:
        """Where sequences begin, and the number of tokens: (sequences + 1,) int64, where the tokens are."""
        return torch.from_numpy(np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))).to(self.device)

    def sequences(self) -> tuple[torch.Tensor, ...]:
        """View the tokens of each sequence."""
        return self.tokens.split(self.lengths)


def encoder_layer(
    width: int = 512, heads: int = 8, feedforward: int = 2048, *, seed: int,
) -> nn.TransformerEncoderLayer:
    """Make an encoder layer as in the paper; biases and norms are drawn, too, so that none can be forgotten."""
    return _drawn(lambda: nn.TransformerEncoderLayer(
        width, heads, feedforward, dropout=0.0, activation="relu", norm_first=False, batch_first=True), seed)


def attention_module(width: int = 512, heads: int = 8, *, seed: int) -> nn.MultiheadAttention:
    """Make a multi-head attention module; biases are drawn, too."""
    return _drawn(lambda: nn.MultiheadAttention(width, heads, batch_first=True), seed)


def reference(inputs: PackedInputs) -> torch.Tensor:
    """Compute sequence after sequence by the module itself, on PyTorch's ordinary path.

    Returns:
        (tokens, width), of the type of the inputs.
    """
    results = []
    with torch.no_grad(), fast_path(False):
        for sequence in inputs.sequences():
            tokens, mask = sequence[None], None
            if inputs.causal:
                mask = torch.ones(len(sequence), len(sequence), dtype=torch.bool, device=inputs.device).triu(1)
            if isinstance(inputs.module, nn.MultiheadAttention):
                result = inputs.module(tokens, tokens, tokens, attn_mask=mask, need_weights=False)[0]
            else:
                result = inputs.module(tokens, src_mask=mask)
            results.append(result[0])
    return torch.cat(results)


@contextmanager
def fast_path(enabled: bool) -> Iterator[None]:
    """Switch PyTorch's fused kernels for inference on or off, and back afterwards."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _attention(module: Module) -> nn.MultiheadAttention:
    return module if isinstance(module, nn.MultiheadAttention) else module.self_attn


def _drawn(make: Callable[[], Made], seed: int) -> Made:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        module = make().eval()
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / math.sqrt(parameter.numel()))
    return module
