"""torch.nn.TransformerEncoder, its layers, and torch.nn.MultiheadAttention on packed tokens.

Programs run calls whose key mask, if any, only hides keys, by True or -inf, and whose other mask, if any, is causal.
All others are computed as before, by the code of torch's modules: nested tensors, tokens of other types than float32,
masks with other numbers, which are added to scores, masks whose gradients are needed, and what these modules refuse,
such as masks of integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from sparloom.errors import Unsupported
from sparloom.nn.batches import PackedBatch, Sequences
from sparloom.nn.custom_ops import is_differentiated
from sparloom.nn.packed_layers import LayerPaths, PackedLayer, check_parameters, run_layers, run_packed, run_program
from sparloom.nn.ragged_programs import JoinedParameters
from sparloom.nn.torch_integration import autocast_operands, eager, run_weight_hooks
from sparloom.ragged import EncoderShape, compiled_attention


class TransformerEncoderLayer(PackedLayer, torch.nn.TransformerEncoderLayer):
    """A layer of torch.nn.TransformerEncoder, in it or by itself."""

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
        if type(self.self_attn) not in (torch.nn.MultiheadAttention, MultiheadAttention):
            raise Unsupported(f"self_attn is a {type(self.self_attn).__name__}, not a torch.nn.MultiheadAttention: "
                              "merge adapters into the model")
        return {"w_qkv": self.self_attn.in_proj_weight, "b_qkv": self.self_attn.in_proj_bias}

    def dropout_shares(self) -> tuple[float, float, float, float]:
        """Return the probabilities of dropout in training."""
        return self.self_attn.dropout, self.dropout1.p, self.dropout.p, self.dropout2.p

    def forward(
        self, src: torch.Tensor, src_mask: torch.Tensor | None = None, src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False, *, sequences: Sequences | None = None,
    ) -> torch.Tensor:
        """Apply the layer to a padded batch as torch's layer does, or, with sequences, to (1, tokens, width)."""
        def run(tokens: torch.Tensor, sequences: Sequences, causal: bool) -> torch.Tensor:
            return run_packed(self, replace(self.form(), causal=causal), tokens[0], sequences)[None]

        if sequences is not None:
            return run(src, sequences, is_causal)
        batch_first = self.self_attn.batch_first
        causal = _causality(src, src_mask, src_key_padding_mask, hint=is_causal, batch_first=batch_first)
        if causal is None:
            return _as_before(super(PackedLayer, self).forward, src, src_mask, src_key_padding_mask, is_causal)
        return _on_real_tokens(run, src, src_key_padding_mask, causal, batch_first=batch_first)


class TransformerEncoder(torch.nn.TransformerEncoder):
    """torch.nn.TransformerEncoder that computes real tokens only; padding is 0 in the result."""

    def check(self) -> None:
        """Check that the encoder can be packed.

        Raises:
            Unsupported: it has layers of another class.
        """
        kinds = {type(layer) for layer in self.layers} - {*LAYERS, *LAYERS.values()}
        if kinds:
            raise Unsupported(f"it has layers of class {kinds.pop().__name__}")

    def forward(self, src: torch.Tensor, mask: torch.Tensor | None = None,
                src_key_padding_mask: torch.Tensor | None = None, is_causal: bool | None = None) -> torch.Tensor:
        """Encode a batch; arguments and results are those of torch.nn.TransformerEncoder."""
        def run(tokens: torch.Tensor, sequences: Sequences, causal: bool) -> torch.Tensor:
            tokens = run_layers(self.layers, tokens, sequences=sequences, is_causal=causal)
            return tokens if self.norm is None else self.norm(tokens)

        batch_first = self.layers[0].self_attn.batch_first
        causal = _causality(src, mask, src_key_padding_mask, hint=is_causal, batch_first=batch_first)
        if causal is None:
            return _as_before(super().forward, src, mask, src_key_padding_mask, is_causal)
        return _on_real_tokens(run, src, src_key_padding_mask, causal, batch_first=batch_first)


class MultiheadAttention(torch.nn.MultiheadAttention):
    """torch.nn.MultiheadAttention that computes real tokens only, where tokens attend to each other.

    Calls with different queries, keys and values, those that ask for weights of attention, which are never stored,
    those with other masks, and those with dropout in training are computed as before.
    """

    def check(self) -> None:
        """Check that the module can be packed.

        Raises:
            Unsupported: it cannot; says why.
        """
        if self.in_proj_weight is None:
            raise Unsupported("keys or values have another width than queries")
        if self.bias_k is not None or self.add_zero_attn:
            raise Unsupported("it adds a key: bias_k or add_zero_attn")
        check_parameters(self)

    def form(self) -> EncoderShape:
        """Describe the module."""
        return EncoderShape(self.embed_dim, self.num_heads)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None, need_weights: bool = True, attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Let tokens attend; arguments and results are those of torch.nn.MultiheadAttention."""
        causal = _causality(query, attn_mask, key_padding_mask, hint=is_causal, batch_first=self.batch_first)
        if (need_weights or query is not key or key is not value or causal is None
                or (self.training and self.dropout > 0)):
            return _as_before(super().forward, query, key, value, key_padding_mask, need_weights, attn_mask,
                              average_attn_weights, is_causal)
        return _on_real_tokens(self._attend, query, key_padding_mask, causal, batch_first=self.batch_first), None

    @eager
    def _attend(self, tokens: torch.Tensor, sequences: Sequences, causal: bool) -> torch.Tensor:
        run_weight_hooks(torch.nn.Linear, out_proj=self.out_proj)
        parameters = {"w_qkv": self.in_proj_weight, "b_qkv": self.in_proj_bias, "w_out": self.out_proj.weight,
                      "b_out": self.out_proj.bias}
        return run_program(self, compiled_attention, replace(self.form(), causal=causal), tokens[0], sequences,
                           lambda: parameters)[None]


@eager
def _on_real_tokens(
    run: Callable[[torch.Tensor, Sequences, bool], torch.Tensor], src: torch.Tensor, key_mask: torch.Tensor | None,
    causal: bool, *, batch_first: bool,
) -> torch.Tensor:
    """Run a module on the real tokens of a batch in the layout of torch's modules.

    Args:
        src: (batch, length, width), or (length, batch, width), or a single sequence, (length, width).
        key_mask: True or -inf for padding.
    """
    single = src.dim() == 2
    padded = src[None] if single else src if batch_first else src.transpose(0, 1)
    if key_mask is not None:
        key_mask = ~key_mask if key_mask.dtype == torch.bool else key_mask == 0
        key_mask = key_mask[None] if single else key_mask
    batch = PackedBatch.of(key_mask, tuple(padded.shape[:2]))
    found = batch.scatter(run(batch.gather(padded), batch.sequences, causal))
    return found[0] if single else found if batch_first else found.transpose(0, 1)


def _causality(src: torch.Tensor, mask: torch.Tensor | None, key_mask: torch.Tensor | None, *, hint: bool | None,
               batch_first: bool) -> bool | None:
    """Tell whether tokens attend to themselves and earlier ones only, or to all; None if no program runs the call.

    Args:
        src: as of `_on_real_tokens`.
        hint: the argument `is_causal`.

    Raises:
        RuntimeError: `hint` is True and there is no mask. torch's modules raise it, too, unless their fast path runs,
            which ignores the hint: tokens would see later ones.
    """
    if hint and mask is None:
        raise RuntimeError("is_causal=True without a mask: it only tells that the mask is causal: also pass the mask, "
                           "torch.nn.Transformer.generate_square_subsequent_mask(length)")
    if src.is_nested or src.dim() not in (2, 3) or autocast_operands(src)[0].dtype != torch.float32:
        return None
    if key_mask is not None and _hidden(key_mask) is None:
        return None
    if mask is None:
        return False
    length, hidden = src.shape[-2 if batch_first or src.dim() == 2 else 0], _hidden(mask)
    if hidden is None or hidden.device.type != "cpu":
        return None
    return True if torch.equal(hidden, torch.ones(length, length, dtype=torch.bool).triu(1)) else None


def _hidden(mask: torch.Tensor) -> torch.Tensor | None:
    """Return where a mask hides keys; None if it holds other numbers than 0 and -inf, or is differentiated.

    torch's modules add numbers to scores, and refuse integers.
    """
    if not isinstance(mask, torch.Tensor) or is_differentiated(mask):
        return None
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        return None
    if mask.dtype == torch.bool:
        return mask
    hidden = mask == float("-inf")
    return hidden if bool((hidden | (mask == 0)).all()) else None


def _as_before(forward: Callable[..., Any], *arguments: Any) -> Any:
    """Compute a call by the code of torch's module.

    Raises:
        ValueError: tokens are a nested tensor, and torch's module does not support it in this call.
    """
    try:
        return forward(*arguments)
    except (AssertionError, RuntimeError) as error:
        if not any(isinstance(each, torch.Tensor) and each.is_nested for each in arguments):
            raise
        raise ValueError("torch computes nested tensors here only with layout torch.strided, in inference without "
                         "gradients, and without masks: pass a padded batch, nested.to_padded_tensor(0.0), with a key "
                         "mask: padding is not computed") from error


LAYERS = {torch.nn.TransformerEncoderLayer: TransformerEncoderLayer}
"""Original class of a layer -> packed class."""
MODELS = {torch.nn.TransformerEncoder: TransformerEncoder, torch.nn.MultiheadAttention: MultiheadAttention, **LAYERS}
"""The same of what is packed by itself."""
