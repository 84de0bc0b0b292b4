"""Where the layers of models of transformers have their modules, and which form their programs have."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers.models.t5 import modeling_t5

from sparloom.errors import Unsupported
from sparloom.nn.packed_layers import LayerPaths, LayerReader, submodule
from sparloom.nn.ragged_programs import JoinedParameters
from sparloom.ragged import EncoderShape

MPNET_DISTANCE = 128  # which MPNet has whatever its configuration says


class BertLikeLayer(LayerReader):
    """Layers of BERT and of models whose layers have the same modules."""

    paths = LayerPaths(
        heads="attention.self.num_attention_heads",
        qkv=("attention.self.query", "attention.self.key", "attention.self.value"), out="attention.output.dense",
        into="intermediate.dense", back="output.dense", norms=("attention.output.LayerNorm", "output.LayerNorm"),
        activation="intermediate.intermediate_act_fn",
        dropouts=(("attention.self", "dropout.p"), ("attention.output.dropout", "p"), None, ("output.dropout", "p")))


class DistilBertLayer(LayerReader):
    """Layers of DistilBERT."""

    paths = LayerPaths(
        heads="attention.n_heads", qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        out="attention.out_lin", into="ffn.lin1",
        back="ffn.lin2", norms=("sa_layer_norm", "output_layer_norm"), activation="ffn.activation",
        dropouts=(("attention", "dropout.p"), None, None, ("ffn.dropout", "p")))


class MPNetLayer(LayerReader):
    """Layers of MPNet."""

    paths = LayerPaths(
        heads="attention.attn.num_attention_heads",
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"), out="attention.attn.o",
        into="intermediate.dense", back="output.dense", norms=("attention.LayerNorm", "output.LayerNorm"),
        activation="intermediate.intermediate_act_fn",
        dropouts=(("attention.attn.dropout", "p"), ("attention.dropout", "p"), None, ("output.dropout", "p")))

    def form(self) -> EncoderShape:
        """Describe the layer."""
        return replace(super().form(), distances=MPNET_DISTANCE)


class ModernBertLayer(LayerReader):
    """Layers of ModernBERT."""

    paths = LayerPaths(
        heads="", qkv=("attn.Wqkv",), out="attn.Wo", into="mlp.Wi", back="mlp.Wo", norms=("attn_norm", "mlp_norm"),
        activation="mlp.act",
        dropouts=(("attn", "attention_dropout"), ("attn.out_drop", "p"), ("mlp.drop", "p"), None))

    def count_heads(self) -> int:
        """Return the number of heads."""
        return len(submodule(self.layer, "mlp_norm").weight) // submodule(self.layer, "attn").head_dim

    def form(self) -> EncoderShape:
        """Describe the layer."""
        attention = submodule(self.layer, "attn")
        window = None if attention.sliding_window is None else attention.sliding_window - 1
        return replace(super().form(), gated=True, norm_first=True, rotary=attention.head_dim, window=window,
                       first_norm=not isinstance(self.layer.attn_norm, torch.nn.Identity))

    def network_parameters(self) -> JoinedParameters:
        """Return the two halves of the projection into the feed-forward network."""
        weight, bias = self.projection(self.paths.into)
        half = len(weight) // 2
        return {f"{kind}_{name}": None if part is None else part[rows] for kind, part in (("w", weight), ("b", bias))
                for name, rows in (("in", slice(half)), ("up", slice(half, None)))}


class T5Layer(LayerReader):
    """Layers of the encoder of T5."""

    @property
    def gated(self) -> bool:
        return isinstance(submodule(self.layer, "layer.1.DenseReluDense"), modeling_t5.T5DenseGatedActDense)

    @property
    def paths(self) -> LayerPaths:
        attention, network = "layer.0.SelfAttention", "layer.1.DenseReluDense"
        return LayerPaths(
            heads=f"{attention}.n_heads", qkv=tuple(f"{attention}.{name}" for name in "qkv"), out=f"{attention}.o",
            into=f"{network}.{'wi_0' if self.gated else 'wi'}", up=f"{network}.wi_1" if self.gated else None,
            back=f"{network}.wo", norms=("layer.0.layer_norm", "layer.1.layer_norm"), activation=f"{network}.act",
            dropouts=((attention, "dropout"), ("layer.0.dropout", "p"), (f"{network}.dropout", "p"),
                      ("layer.1.dropout", "p")))

    def epsilon(self, norm: modeling_t5.T5LayerNorm) -> float:
        """Return what a norm adds to the mean of squares."""
        return norm.variance_epsilon

    def form(self) -> EncoderShape:
        """Describe the layer."""
        attention = submodule(self.layer, "layer.0.SelfAttention")
        if attention.inner_dim != attention.d_model:
            raise Unsupported(f"heads have {attention.inner_dim} columns together and tokens {attention.d_model}: they "
                              "must be equal")
        return replace(super().form(), norm="rms", norm_first=True, gated=self.gated, scale=1.0,
                       distances=attention.relative_attention_max_distance)
