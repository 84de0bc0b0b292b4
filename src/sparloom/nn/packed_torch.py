"""torch.nn.TransformerEncoder, its layers, and torch.nn.MultiheadAttention on packed tokens.

Programs run calls whose key mask, if any, only hides keys, by True or -inf, and whose other mask, if any, is causal.
All others are computed as before, by the code of torch's modules: nested tensors, tokens of other types than float32,
masks with other numbers, which are added to scores, masks whose gradients are needed, and what these modules refuse,
such as masks of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from sparloom.errors import Unsupported
from sparloom.nn.batches import PackedBatch
from sparloom.nn.custom_ops import is_differentiated
from sparloom.nn.encoder_checks import (
    HOOKS,
    check_called,
    check_methods,
    check_modules,
    check_untouched,
)
from sparloom.nn.packed_layers import STATE, LayerPaths, LayerReader, PackedEncoder, run_layers
from sparloom.nn.ragged_programs import JoinedParameters
from sparloom.nn.torch_integration import autocast_operands, eager
from sparloom.ragged import EncoderSchedule, EncoderShape, Layer, compiled_attention


class TorchLayer(LayerReader):
    """Layers of torch.nn.TransformerEncoder."""

    paths = LayerPaths(
        heads="self_attn.num_heads", qkv=(), out="self_attn.out_proj", into="linear1", back="linear2",
        norms=("norm1", "norm2"),
        activation="activation",
        dropouts=(("self_attn", "dropout"), ("dropout1", "p"), ("dropout", "p"), ("dropout2", "p")))

    def form(self) -> EncoderShape:
        """Describe the layer."""
        return replace(super().form(), norm_first=self.layer.norm_first)

    def projection_parameters(self) -> JoinedParameters:
        """Return the parameters of the projection to queries, keys and values."""
        return {"w_qkv": self.layer.self_attn.in_proj_weight, "b_qkv": self.layer.self_attn.in_proj_bias}


class TorchAttention(LayerReader):
    """torch.nn.MultiheadAttention by itself."""

    paths = LayerPaths(heads="num_heads", qkv=(), out="out_proj", into="", back="", norms=(), activation="",
                       dropouts=())

    def form(self) -> EncoderShape:
        """Describe the module."""
        return EncoderShape(self.layer.embed_dim, self.layer.num_heads)

    def compiled(self, form: EncoderShape, schedule: EncoderSchedule, threads: int) -> Layer:
        """Return the program of attention alone."""
        return compiled_attention(form, schedule, threads)

    def parameters(self) -> JoinedParameters:
        """Return the parameters by their names in the program."""
        weight, bias = self.projection(self.paths.out)
        return {"w_qkv": self.layer.in_proj_weight, "b_qkv": self.layer.in_proj_bias, "w_out": weight, "b_out": bias}


class TransformerEncoderLayer(PackedEncoder, torch.nn.TransformerEncoderLayer):
    """A layer of torch.nn.TransformerEncoder by itself."""

    def check_layers(self) -> Sequence[LayerReader]:
        """Compare the layer with a new one."""
        return [TorchLayer(_checked_layer(self, ""), "")]

    def forward(self, src: torch.Tensor, src_mask: torch.Tensor | None = None,
                src_key_padding_mask: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        """Apply the layer to a batch; arguments and results are those of torch.nn.TransformerEncoderLayer."""
        _check_hint(is_causal, src_mask)
        try:
            return _compute_packed(self, self.self_attn, src, src_mask, src_key_padding_mask)
        except Unsupported as reason:
            return self.compute_as_before(reason, _as_before, super().forward, src, src_mask, src_key_padding_mask,
                                          is_causal)


class TransformerEncoder(PackedEncoder, torch.nn.TransformerEncoder):
    """torch.nn.TransformerEncoder that computes real tokens only; padding is 0 in the result."""

    def check_layers(self) -> Sequence[LayerReader]:
        """Compare every layer with a new one."""
        check_methods(self, torch.nn.TransformerEncoder, "")
        check_untouched(self.layers, "layers")
        if not len(self.layers):
            raise Unsupported("it has no layers")
        if self.norm is not None:
            check_called(self.norm, None, "norm")
        layers = [_checked_layer(layer, f"layers.{number}") for number, layer in enumerate(self.layers)]
        if len({layer.self_attn.batch_first for layer in layers}) > 1:
            raise Unsupported("some layers have batch_first=True, and others have not")
        return [TorchLayer(layer, f"layers.{number}") for number, layer in enumerate(layers)]

    def forward(self, src: torch.Tensor, mask: torch.Tensor | None = None,
                src_key_padding_mask: torch.Tensor | None = None, is_causal: bool | None = None) -> torch.Tensor:
        """Encode a batch; arguments and results are those of torch.nn.TransformerEncoder."""
        _check_hint(is_causal, mask)
        try:
            attention = getattr(next(iter(self.layers), None), "self_attn", None)
            return _compute_packed(self, attention, src, mask, src_key_padding_mask, norm=self.norm)
        except Unsupported as reason:
            return self.compute_as_before(reason, _as_before, super().forward, src, mask, src_key_padding_mask,
                                          is_causal)


class MultiheadAttention(PackedEncoder, torch.nn.MultiheadAttention):
    """torch.nn.MultiheadAttention that computes real tokens only, where tokens attend to each other.

    Calls with different queries, keys and values, those that ask for weights of attention, which are never stored,
    those with other masks, and those with dropout in training are computed as before.
    """

    def check_layers(self) -> Sequence[LayerReader]:
        """Compare the module with a new one."""
        if self.in_proj_weight is None:
            raise Unsupported("keys or values have another width than queries")
        if self.bias_k is not None or self.add_zero_attn:
            raise Unsupported("it adds a key: bias_k or add_zero_attn")
        module = _view(self, torch.nn.MultiheadAttention)
        check_methods(module, torch.nn.MultiheadAttention, "")
        check_modules(module, torch.nn.MultiheadAttention(self.embed_dim, self.num_heads, batch_first=self.batch_first,
                                                          device="meta"), "")
        return [TorchAttention(module, "")]

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None, need_weights: bool = True, attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Let tokens attend; arguments and results are those of torch.nn.MultiheadAttention."""
        _check_hint(is_causal, attn_mask)
        try:
            if need_weights or query is not key or key is not value or (self.training and self.dropout > 0):
                raise Unsupported("queries, keys and values differ, there is dropout, or weights of attention are "
                                  "requested")
            return _compute_packed(self, self, query, attn_mask, key_padding_mask), None
        except Unsupported as reason:
            return self.compute_as_before(reason, _as_before, super().forward, query, key, value, key_padding_mask,
                                          need_weights, attn_mask, average_attn_weights, is_causal)


def _checked_layer(layer: torch.nn.Module, path: str) -> torch.nn.Module:
    """Compare a layer with a new one, and return a view of it.

    Raises:
        Unsupported: they differ in more than their parameters; says where.
    """
    original = torch.nn.TransformerEncoderLayer
    if type(layer) not in (original, TransformerEncoderLayer):
        raise Unsupported(f"{path or 'it'} is a {type(layer).__name__}, not a torch.nn.TransformerEncoderLayer")
    attention = layer.self_attn
    if path:
        check_untouched(layer, path)
    if not isinstance(attention, torch.nn.MultiheadAttention) or attention.in_proj_weight is None:
        raise Unsupported(f"{path}.self_attn is a {type(attention).__name__} with other keys than queries")
    view = _view(layer, original)
    check_methods(view, original, path)
    reference = original(attention.embed_dim, attention.num_heads, 1, activation=layer.activation,
                         batch_first=attention.batch_first, norm_first=layer.norm_first, device="meta")
    check_modules(view, reference, path)
    return view


def _view(module: torch.nn.Module, kind: type[torch.nn.Module]) -> Any:
    """Copy a module, packed or not, as one of torch without hooks, which shares its parts and parameters."""
    view = kind.__new__(kind)
    view.__dict__.update({name: value for name, value in vars(module).items() if name != STATE},
                         **{name: {} for name in HOOKS})
    return view


@eager
def _compute_packed(encoder: PackedEncoder, attention: Any, src: torch.Tensor, mask: torch.Tensor | None,
                    key_mask: torch.Tensor | None, *, norm: torch.nn.Module | None = None) -> torch.Tensor:
    """Run an encoder on the real tokens of a batch in the layout of torch's modules.

    Args:
        attention: of the first layer, which knows the layout.
        src: (batch, length, width), or (length, batch, width), or a single sequence, (length, width).
        key_mask: True or -inf for padding.
        norm: applied to the result.

    Raises:
        Unsupported: programs do not compute such a call.
    """
    checked, batch_first = encoder.checked(), attention.batch_first
    causal = _causality(src, mask, key_mask, batch_first=batch_first)
    if causal is None:
        raise Unsupported("tokens are nested or not float32, or masks do more than hide padding and later tokens")
    single = src.dim() == 2
    padded = src[None] if single else src if batch_first else src.transpose(0, 1)
    if key_mask is not None:
        key_mask = ~key_mask if key_mask.dtype == torch.bool else key_mask == 0
        key_mask = key_mask[None] if single else key_mask
    batch = PackedBatch.of(key_mask, tuple(padded.shape[:2]))
    tokens = run_layers(encoder, checked, batch.gather(padded)[0], batch.sequences, causal=causal)[None]
    result = batch.scatter(tokens if norm is None else norm(tokens))
    return result[0] if single else result if batch_first else result.transpose(0, 1)


def _check_hint(is_causal: bool | None, mask: torch.Tensor | None) -> None:
    """Refuse the hint that a mask is causal if there is no mask.

    torch's modules refuse it, too, unless their fast path runs, which ignores it: tokens would see later ones.
    """
    if is_causal and mask is None:
        raise RuntimeError("is_causal=True without a mask: it only tells that the mask is causal: also pass the mask, "
                           "torch.nn.Transformer.generate_square_subsequent_mask(length)")


def _causality(src: torch.Tensor, mask: torch.Tensor | None, key_mask: torch.Tensor | None, *, batch_first: bool
               ) -> bool | None:
    """Tell whether tokens attend to themselves and earlier ones only, or to all; None if no program runs the call.

    Args:
        src, key_mask: as of `_compute_packed`.
    """
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


MODELS = {torch.nn.TransformerEncoder: TransformerEncoder, torch.nn.MultiheadAttention: MultiheadAttention,
          torch.nn.TransformerEncoderLayer: TransformerEncoderLayer}
"""Original class -> packed class."""
