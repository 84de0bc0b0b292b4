"""torch.nn.TransformerEncoder and its layers on packed tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from sparloom.errors import Unsupported
from sparloom.nn.batches import PackedBatch
from sparloom.nn.packed_layers import LayerPaths, PackedLayer, run_packed
from sparloom.nn.ragged_programs import JoinedParameters
from sparloom.ragged import EncoderShape, Structure


class TransformerEncoderLayer(PackedLayer, torch.nn.TransformerEncoderLayer):
    """A layer of torch.nn.TransformerEncoder."""

    paths = LayerPaths(qkv=(), out="self_attn.out_proj", into="linear1", back="linear2", norms=("norm1", "norm2"),
                       activation="activation")

    def count_heads(self) -> int:
        """Return the number of heads."""
        return self.self_attn.num_heads

    def form(self) -> EncoderShape:
        """Describe the layer."""
        return replace(super().form(), norm_first=self.norm_first)

    def projection_parameters(self) -> JoinedParameters:
        """Return the parameters of the projection to queries, keys and values."""
        return {"w_qkv": self.self_attn.in_proj_weight, "b_qkv": self.self_attn.in_proj_bias}

    def dropouts(self) -> Iterator[tuple[str, float]]:
        """Yield the names and probabilities of all dropout."""
        yield "self_attn.dropout", self.self_attn.dropout
        yield from super().dropouts()

    def forward(self, src: torch.Tensor, *arguments: Any, sequences: Structure | None = None, is_causal: bool = False,
                **options: Any) -> torch.Tensor:
        """Apply the layer to (1, tokens, width) packed tokens, or, without sequences, as torch's does."""
        if sequences is None:
            return super().forward(src, *arguments, is_causal=is_causal, **options)
        return run_packed(self, replace(self.form(), causal=is_causal), src[0], sequences)[None]


class TransformerEncoder(torch.nn.TransformerEncoder):
    """torch.nn.TransformerEncoder that computes real tokens only; padding is 0 in the result."""

    def check(self) -> None:
        """Check that the encoder can be packed; every encoder can whose layers can."""

    def forward(self, src: torch.Tensor, mask: torch.Tensor | None = None,
                src_key_padding_mask: torch.Tensor | None = None, is_causal: bool | None = None) -> torch.Tensor:
        """Encode a batch; arguments and results are those of torch.nn.TransformerEncoder.

        Raises:
            ValueError: shapes differ.
            Unsupported: the mask is not causal.
        """
        causal = _is_causal(mask, is_causal)
        single, first = src.dim() == 2, self.layers[0].self_attn.batch_first
        padded = src[None] if single else src if first else src.transpose(0, 1)
        key_mask = src_key_padding_mask
        if key_mask is not None:
            key_mask = ~key_mask if key_mask.dtype == torch.bool else key_mask == 0
            key_mask = key_mask[None] if single else key_mask
        batch = PackedBatch.of(key_mask, tuple(padded.shape[:2]))
        tokens = batch.gather(padded)
        for layer in self.layers:
            tokens = layer(tokens, sequences=batch.structure, is_causal=causal)
        if self.norm is not None:
            tokens = self.norm(tokens)
        found = batch.scatter(tokens)
        return found[0] if single else found if first else found.transpose(0, 1)


def _is_causal(mask: torch.Tensor | None, is_causal: bool | None) -> bool:
    """Tell whether a mask lets tokens attend to themselves and earlier ones only.

    Raises:
        Unsupported: it is neither this one nor none.
    """
    if mask is None:
        if is_causal:
            raise ValueError("is_causal=True without mask: pass the mask, too, as to torch.nn.TransformerEncoder")
        return False
    length = mask.shape[-1]
    hidden = mask if mask.dtype == torch.bool else mask == float("-inf")
    causal = mask.shape == (length, length) and torch.equal(hidden, torch.ones(length, length, dtype=bool).triu(1))
    if not causal or (mask.dtype != torch.bool and not bool((mask.tril() == 0).all())):
        raise Unsupported("the mask is not causal: packed encoders support none and "
                          "torch.nn.Transformer.generate_square_subsequent_mask(length)")
    return True


MODELS = {torch.nn.TransformerEncoder: TransformerEncoder}
"""Original class -> packed class."""
LAYERS = {torch.nn.TransformerEncoderLayer: TransformerEncoderLayer}
"""The same of layers."""
