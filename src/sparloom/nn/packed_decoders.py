"""Decoders of transformers as embedding models and rerankers, on packed tokens: Qwen, Llama, Mistral, Gemma.

They have grouped keys, rotary positions and gated networks. Each token attends to earlier ones, to those of a window,
or to all. Nothing is kept of a call: calls that ask for a cache of keys and values (`use_cache=True`), as `generate`
does, are computed as before; where `use_cache` is not given, there is none in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from sparloom.errors import Unsupported
from sparloom.nn.batches import PackedBatch, Sequences
from sparloom.nn.packed_layers import CheckedEncoder, LayerPaths, LayerReader, run_layers, submodule
from sparloom.nn.packed_transformers import PackedModel, original
from sparloom.nn.ragged_programs import JoinedParameters
from sparloom.ragged import EncoderShape

ROTATIONS = ("default", "linear", "llama3", "yarn")  # which do not depend on the longest sequence of a batch
QUERIES, KEYS, VALUES = (f"self_attn.{name}_proj" for name in "qkv")
NORMS = ("input_layernorm", "post_attention_layernorm")
NORMS_OF_SUMS = ("input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm",
                 "post_feedforward_layernorm")


class DecoderLayer(LayerReader):
    """Layers of decoders."""

    @property
    def paths(self) -> LayerPaths:
        return LayerPaths(
            heads="", qkv=(QUERIES, KEYS, VALUES), out="self_attn.o_proj", into="mlp.gate_proj", up="mlp.up_proj",
            back="mlp.down_proj", norms=NORMS_OF_SUMS if self.normalises_sums else NORMS, activation="mlp.act_fn",
            dropouts=(("self_attn", "attention_dropout"), None, None, None))

    @property
    def normalises_sums(self) -> bool:
        return "post_feedforward_layernorm" in self.layer._modules

    @property
    def normalises_heads(self) -> bool:
        return "q_norm" in submodule(self.layer, "self_attn")._modules

    def count_heads(self) -> int:
        """Return the number of heads of queries."""
        return self._count(QUERIES)

    def _count(self, path: str) -> int:
        return len(self.base(path).weight) // submodule(self.layer, "self_attn").head_dim

    def epsilon(self, norm: Any) -> float:
        """Return what a norm adds to the mean of squares."""
        return norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps

    def form(self) -> EncoderShape:
        """Describe the layer."""
        attention, shape = submodule(self.layer, "self_attn"), super().form()
        for name in ("q_norm", "k_norm") if self.normalises_heads else ():
            if self.epsilon(attention._modules[name]) != shape.epsilon:
                raise Unsupported(f"self_attn.{name} has another epsilon than the other norms: they must be equal")
        config = attention.config
        is_plain = getattr(config, "is_causal", True)
        is_causal = is_plain and not getattr(config, "use_bidirectional_attention", False)
        window = getattr(attention, "sliding_window", getattr(config, "sliding_window", None))
        if window is not None and not is_plain:
            raise Unsupported("is_causal=False with a sliding window, which programs do not know")
        if getattr(attention, "attn_logit_softcapping", None) is not None:
            raise Unsupported("attn_logit_softcapping bounds scores, which programs do not")
        is_centred = isinstance(self.norms()[0][1], modeling_gemma3.Gemma3RMSNorm)
        return replace(
            shape, gated=True, norm="rms_centred" if is_centred else "rms", norm_first=True,
            sum_norms=self.normalises_sums, head=attention.head_dim, key_heads=self._count(KEYS),
            head_norms=self.normalises_heads, scale=attention.scaling, rotary=attention.head_dim, causal=is_causal,
            window=None if window is None else window - 1)

    def projection_parameters(self) -> JoinedParameters:
        """Return those of the projections to queries and to keys and values, and of norms of heads."""
        weight, bias = self.projection(QUERIES)
        joined = self.joined_projections((KEYS, VALUES))
        norms = {f"gain_{short}": submodule(self.layer, f"self_attn.{short}_norm").weight
                 for short in ("q", "k") if self.normalises_heads}
        return {"w_q": weight, "b_q": bias, "w_kv": joined[0], "b_kv": joined[1], **norms}


class Decoder:
    """Mixin of decoders that compute real tokens only; padding is 0 in all results."""

    reads_distances, has_first_token = True, False
    reader = DecoderLayer
    layers_path = "layers"
    result_class = BaseModelOutputWithPast

    def check_layers(self) -> Sequence[LayerReader]:
        """Refuse rotations that depend on a whole batch, and layers that are left out."""
        kinds = self.rotary_emb.rope_type
        for kind in kinds.values() if isinstance(kinds, Mapping) else (kinds,):
            if kind not in ROTATIONS:
                raise Unsupported(f"rotary positions of kind {kind!r}: programs know {', '.join(ROTATIONS)}")
        if len(self.layers) != self.config.num_hidden_layers:
            raise Unsupported(f"it has {len(self.layers)} layers, and its configuration says "
                              f"{self.config.num_hidden_layers}")
        return super().check_layers()

    def packed_batch(self, mask: torch.Tensor | None, shape: tuple[int, int], positions: torch.Tensor | None
                     ) -> PackedBatch:
        """Return the tokens of a batch, in which positions that restart begin sequences if there is no mask."""
        if mask is not None or positions is None or not getattr(self.config, "is_causal", True):
            return super().packed_batch(mask, shape, positions)
        return PackedBatch.of_flattened(positions.expand(shape))

    def positions(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Return the position ids that the original model gives a padded batch, (1, length)."""
        return torch.arange((input_ids if inputs_embeds is None else inputs_embeds).shape[1], device="cpu")[None]

    def _position_table(self, length: int) -> None:
        """Return None: positions are not in a table."""

    def encode_tokens(self, checked: CheckedEncoder, packed: Mapping[str, torch.Tensor], sequences: Sequences,
                      record: Callable[[torch.Tensor], torch.Tensor] | None) -> torch.Tensor:
        """Run embeddings, layers and the last norm on packed tokens."""
        embedded, places = packed.get("inputs_embeds"), packed["position_ids"]
        tokens = self.embed_tokens(packed["input_ids"]) if embedded is None else embedded
        by_kind = isinstance(self.rotary_emb.rope_type, Mapping)
        turns = {kind: {name: np.ascontiguousarray(part[0].numpy()) for name, part in zip(
            ("turn_cos", "turn_sin"), self.rotary_emb(tokens, places, *([kind] if by_kind else [])), strict=True)}
            for kind in (set(self.config.layer_types) if by_kind else (None,))}
        hidden = run_layers(self, checked, tokens[0], sequences, record=record,
                            by_token=lambda layer: turns[layer.self_attn.layer_type if by_kind else None])
        return self.norm(hidden[None])


class Qwen2Model(Decoder, PackedModel, modeling_qwen2.Qwen2Model):
    """Qwen2 and Qwen2.5."""


class Qwen3Model(Decoder, PackedModel, modeling_qwen3.Qwen3Model):
    """Qwen3, of which Qwen3-Embedding and Qwen3-Reranker are."""


class LlamaModel(Decoder, PackedModel, modeling_llama.LlamaModel):
    """Llama."""


class MistralModel(Decoder, PackedModel, modeling_mistral.MistralModel):
    """Mistral, of which E5 and NV-Embed are."""


class Gemma3TextModel(Decoder, PackedModel, modeling_gemma3.Gemma3TextModel):
    """Gemma 3 for texts, of which EmbeddingGemma is."""


MODELS = {original(each): each for each in (Qwen2Model, Qwen3Model, LlamaModel, MistralModel, Gemma3TextModel)}
"""Original class -> packed class."""
