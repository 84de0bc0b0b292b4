"""Models of transformers that run on packed tokens: BERT and its relatives, MPNet, ModernBERT, the encoder of T5.

A packed model takes the real tokens out of the padded batch, runs embeddings and layers on them as on one sequence, and
puts the results back. Its class is a subclass of the original one, of the same name, as are those of its layers.

Where layers read the distance of two tokens, tokens between real ones are computed, too, and no other one attends to
them; elsewhere they are left out, since positions are those of the padded batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.models.bert import modeling_bert
from transformers.models.camembert import modeling_camembert
from transformers.models.distilbert import modeling_distilbert
from transformers.models.electra import modeling_electra
from transformers.models.modernbert import modeling_modernbert
from transformers.models.mpnet import modeling_mpnet
from transformers.models.roberta import modeling_roberta
from transformers.models.t5 import modeling_t5
from transformers.models.xlm_roberta import modeling_xlm_roberta

from sparloom.errors import Unsupported
from sparloom.nn.batches import PackedBatch, Sequences
from sparloom.nn.content_hash import content_hash
from sparloom.nn.packed_layers import LayerPaths, PackedLayer, run_layers
from sparloom.nn.ragged_programs import JoinedParameters
from sparloom.nn.torch_integration import eager
from sparloom.ragged import EncoderShape, structure_of

REFUSED = ("encoder_hidden_states", "encoder_attention_mask", "cache", "past_key_values", "head_mask")
PIECE_TOKENS = 8192  # of a batch that run at a time
MPNET_BUCKETS, MPNET_DISTANCE = 32, 128  # which MPNet has whatever its configuration says


class PackedModel:
    """Mixin of encoders that compute real tokens only; padding is 0 in all results."""

    reads_distances: ClassVar[bool] = False  # whether layers read the distance of two tokens

    def check(self) -> None:
        """Check that the model can be packed.

        Raises:
            Unsupported: it cannot; says why.
        """
        if getattr(self.config, "is_decoder", False):
            raise Unsupported("it is a decoder: packed models are encoders")

    @eager
    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None, position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None, **options: Any,
    ) -> Any:
        """Encode a batch; arguments and results are those of the original model.

        Raises:
            ValueError: both or none of `input_ids` and `inputs_embeds` are given, shapes differ, or there are more
                positions than the model has.
            Unsupported: an argument is one of decoders, or attention weights are requested, which are never stored.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("both or none of input_ids and inputs_embeds are given: pass one of them")
        for name in REFUSED:
            if options.get(name) is not None:
                raise Unsupported(f"{name} is given: packed models are encoders and do not take it: call "
                                  "sparloom.nn.unpack(model) first")
        if options.pop("output_attentions", self.config.output_attentions):
            raise Unsupported("output_attentions=True: packed models never store the weights of attention: call "
                              "sparloom.nn.unpack(model) first")
        inputs = input_ids if inputs_embeds is None else inputs_embeds
        if inputs.dim() != 2 + (inputs_embeds is not None):
            raise ValueError(f"the inputs have shape {tuple(inputs.shape)}: expected (batch, length)")
        as_dict = options.pop("return_dict", None)
        wanted = options.pop("output_hidden_states", None)
        wanted = self.config.output_hidden_states if wanted is None else wanted
        if not isinstance(wanted, bool):
            raise Unsupported(f"output_hidden_states={wanted!r}: packed models return all of them or none: pass True")
        batch = PackedBatch.of(attention_mask, tuple(inputs.shape[:2]), spans=self.reads_distances)
        positions = self.positions(input_ids, inputs_embeds) if position_ids is None else position_ids
        given = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "token_type_ids": token_type_ids,
                 "position_ids": positions}
        packed = {name: batch.gather(value) for name, value in given.items() if value is not None}
        record: list[torch.Tensor] | None = [] if wanted else None
        found = self._run(packed, batch.sequences, record=record, **options)
        found["last_hidden_state"] = batch.scatter(found["last_hidden_state"])
        if getattr(self, "pooler", None) is not None:
            found["pooler_output"] = self.pooler(found["last_hidden_state"])
        if record is not None:
            found["hidden_states"] = (*map(batch.scatter, record), found["last_hidden_state"])
        return found.to_tuple() if as_dict is False or (as_dict is None and not self.config.return_dict) else found

    @eager
    def encode_packed(self, sequences: Sequence[Sequence[int]], **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode token ids that were never padded.

        Args:
            sequences: token ids of each sequence, a list or a vector.
            options: further arguments of the model that are not by token.

        Returns:
            (tokens, width), sequence after sequence, and the lengths, (sequences,) int64.

        Raises:
            ValueError: a sequence is no vector of integers, or has more positions than the model.
        """
        parts = [torch.as_tensor(each, dtype=None if len(each) else torch.int64) for each in sequences]
        for number, part in enumerate(parts):
            if part.dim() != 1 or part.is_floating_point() or part.is_complex() or part.dtype == torch.bool:
                raise ValueError(f"sequence {number} is {part.dtype} of shape {tuple(part.shape)}: expected a vector "
                                 "of token ids")
        lengths = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        ids = torch.cat([torch.zeros(0, dtype=torch.int64), *parts])[None]
        if not ids.numel():
            return torch.zeros(0, self.config.hidden_size), lengths
        packed, positions = {"input_ids": ids}, self.packed_positions(ids[0], lengths)
        if positions is not None:
            packed["position_ids"] = positions[None]
        return self._run(packed, Sequences(structure_of(lengths.numpy())), **options)["last_hidden_state"][0], lengths

    def packed_positions(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor | None:
        """Return the position ids of sequences that are not padded, (tokens,)."""
        counts = lengths.numpy()  # NumPy takes less time for a few sequences
        return torch.from_numpy(np.arange(len(ids)) - np.repeat(counts.cumsum() - counts, counts))

    def positions(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor | None:
        """Return the position ids that the original model gives a padded batch, (batch or 1, length)."""
        length = (input_ids if inputs_embeds is None else inputs_embeds).shape[1]
        return torch.arange(length)[None]

    def _run(self, packed: Mapping[str, torch.Tensor], sequences: Sequences, *,
             record: list[torch.Tensor] | None = None, **options: Any) -> Any:
        """Encode packed tokens.

        Without gradients, large batches run in pieces of whole sequences, which bounds the memory of intermediate
        results.

        Args:
            packed: arguments by token, (1, tokens, ...).
            record: list to which the inputs of all layers are appended.
        """
        self._check_positions(packed.get("position_ids"))
        sequences = replace(sequences, tables=self.tables())
        pieces = sequences.pieces(PIECE_TOKENS) if record is None and not torch.is_grad_enabled() else []
        if len(pieces) < 2:
            return self._encode(packed, sequences=sequences, record=record, **options)
        results = []
        for part, tokens in pieces:
            own = {name: value[:, tokens] for name, value in packed.items()}
            results.append(self._encode(own, sequences=part, record=None, **options))
        results[0]["last_hidden_state"] = torch.cat([each["last_hidden_state"] for each in results], 1)
        return results[0]

    def _encode(self, packed: Mapping[str, torch.Tensor], **options: Any) -> Any:
        """Run embeddings and layers on packed tokens."""
        tokens = self.embeddings(**packed)
        if hasattr(self, "embeddings_project"):
            tokens = self.embeddings_project(tokens)
        tokens = run_layers(self.encoder.layer, tokens, **options)
        return BaseModelOutputWithPooling(last_hidden_state=tokens)

    def tables(self) -> Mapping[str, torch.Tensor]:
        """Return parameters that all layers share, by their names in programs."""
        return {}

    def _check_positions(self, positions: torch.Tensor | None) -> None:
        known = getattr(self.embeddings, "position_embeddings", None) if hasattr(self, "embeddings") else None
        if positions is None or known is None:
            return
        if not 0 <= int(positions.min()) <= int(positions.max()) < known.num_embeddings:
            raise ValueError(f"a token has position {int(positions.max())}, and the model has {known.num_embeddings}: "
                             "truncate the inputs")


class PaddingAwarePositions:
    """Mixin of models that count positions without padding tokens, from the padding index on."""

    def packed_positions(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the position ids of sequences that are not padded, (tokens,)."""
        padding = self.embeddings.padding_idx
        real = (ids != padding).to(torch.int64)
        before = torch.nn.functional.pad(real.cumsum(0), (1, 0))[lengths.cumsum(0) - lengths]
        return (real.cumsum(0) - torch.repeat_interleave(before, lengths)) * real + padding

    def positions(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Return the position ids of a padded batch."""
        embeddings = self.embeddings
        if input_ids is None:
            return embeddings.create_position_ids_from_inputs_embeds(inputs_embeds, embeddings.padding_idx)
        return embeddings.create_position_ids_from_input_ids(input_ids, embeddings.padding_idx, 0)


class BertLikeLayer(PackedLayer):
    """Mixin of the layers of BERT and of models whose layers have the same modules."""

    paths = LayerPaths(
        qkv=("attention.self.query", "attention.self.key", "attention.self.value"), out="attention.output.dense",
        into="intermediate.dense", back="output.dense", norms=("attention.output.LayerNorm", "output.LayerNorm"),
        activation="intermediate.intermediate_act_fn")

    def count_heads(self) -> int:
        """Return the number of heads."""
        return self.attention.self.num_attention_heads

    def dropout_shares(self) -> tuple[float, float, float, float]:
        """Return the probabilities of dropout in training."""
        return self.attention.self.dropout.p, self.attention.output.dropout.p, 0.0, self.output.dropout.p

    def check(self) -> None:
        """Refuse decoders, and those that cannot run as a program."""
        if self.is_decoder or self.add_cross_attention:
            raise Unsupported("it is a layer of a decoder")
        super().check()


class BertLayer(BertLikeLayer, modeling_bert.BertLayer):
    """A layer of BERT."""


class BertModel(PackedModel, modeling_bert.BertModel):
    """BERT."""


class RobertaLayer(BertLikeLayer, modeling_roberta.RobertaLayer):
    """A layer of RoBERTa."""


class RobertaModel(PaddingAwarePositions, PackedModel, modeling_roberta.RobertaModel):
    """RoBERTa."""


class XLMRobertaLayer(BertLikeLayer, modeling_xlm_roberta.XLMRobertaLayer):
    """A layer of XLM-RoBERTa."""


class XLMRobertaModel(PaddingAwarePositions, PackedModel, modeling_xlm_roberta.XLMRobertaModel):
    """XLM-RoBERTa."""


class CamembertLayer(BertLikeLayer, modeling_camembert.CamembertLayer):
    """A layer of CamemBERT."""


class CamembertModel(PaddingAwarePositions, PackedModel, modeling_camembert.CamembertModel):
    """CamemBERT."""


class ElectraLayer(BertLikeLayer, modeling_electra.ElectraLayer):
    """A layer of ELECTRA."""


class ElectraModel(PackedModel, modeling_electra.ElectraModel):
    """ELECTRA."""


class TransformerBlock(PackedLayer, modeling_distilbert.TransformerBlock):
    """A layer of DistilBERT."""

    paths = LayerPaths(
        qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"), out="attention.out_lin", into="ffn.lin1",
        back="ffn.lin2", norms=("sa_layer_norm", "output_layer_norm"), activation="ffn.activation")

    def count_heads(self) -> int:
        """Return the number of heads."""
        return self.attention.n_heads

    def dropout_shares(self) -> tuple[float, float, float, float]:
        """Return the probabilities of dropout in training."""
        return self.attention.dropout.p, 0.0, 0.0, self.ffn.dropout.p


class DistilBertModel(PackedModel, modeling_distilbert.DistilBertModel):
    """DistilBERT."""

    def _encode(self, packed: Mapping[str, torch.Tensor], **options: Any) -> BaseModelOutput:
        tokens = self.embeddings(packed.get("input_ids"), packed.get("inputs_embeds"), packed["position_ids"])
        tokens = run_layers(self.transformer.layer, tokens, **options)
        return BaseModelOutput(last_hidden_state=tokens)


class MPNetLayer(PackedLayer, modeling_mpnet.MPNetLayer):
    """A layer of MPNet."""

    paths = LayerPaths(
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"), out="attention.attn.o",
        into="intermediate.dense", back="output.dense", norms=("attention.LayerNorm", "output.LayerNorm"),
        activation="intermediate.intermediate_act_fn")

    def count_heads(self) -> int:
        """Return the number of heads."""
        return self.attention.attn.num_attention_heads

    def dropout_shares(self) -> tuple[float, float, float, float]:
        """Return the probabilities of dropout in training."""
        return self.attention.attn.dropout.p, self.attention.dropout.p, 0.0, self.output.dropout.p

    def form(self) -> EncoderShape:
        """Describe the layer."""
        return replace(super().form(), distances=MPNET_DISTANCE)


class MPNetModel(PaddingAwarePositions, PackedModel, modeling_mpnet.MPNetModel):
    """MPNet."""

    reads_distances = True

    def positions(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Return the position ids of a padded batch."""
        embeddings = self.embeddings
        if input_ids is None:
            return embeddings.create_position_ids_from_inputs_embeds(inputs_embeds)
        return modeling_mpnet.create_position_ids_from_input_ids(input_ids, embeddings.padding_idx)

    def tables(self) -> Mapping[str, torch.Tensor]:
        """Return the addends of scores by distance."""
        apart = torch.arange(MPNET_DISTANCE + 1)
        buckets = [self.encoder.relative_position_bucket(way, num_buckets=MPNET_BUCKETS) for way in (-apart, apart)]
        return _kept_tables(self, self.encoder.relative_attention_bias.weight, buckets)


class ModernBertEncoderLayer(PackedLayer, modeling_modernbert.ModernBertEncoderLayer):
    """A layer of ModernBERT."""

    paths = LayerPaths(qkv=("attn.Wqkv",), out="attn.Wo", into="mlp.Wi", back="mlp.Wo", norms=("attn_norm", "mlp_norm"),
                       activation="mlp.act")

    def count_heads(self) -> int:
        """Return the number of heads."""
        return self.config.num_attention_heads

    def form(self) -> EncoderShape:
        """Describe the layer."""
        window = self.config.sliding_window if self.attention_type == "sliding_attention" else None
        return replace(super().form(), gated=True, norm_first=True, rotary=self.attn.head_dim, window=window,
                       first_norm=not isinstance(self.attn_norm, torch.nn.Identity))

    def network_parameters(self) -> JoinedParameters:
        """Return the two halves of the projection into the feed-forward network."""
        half = self.mlp.Wo.in_features
        parts = dict(zip("wb", self.projection(self.paths.into), strict=True))
        return {f"{kind}_{name}": None if part is None else part[rows] for kind, part in parts.items()
                for name, rows in (("in", slice(half)), ("up", slice(half, None)))}

    def dropout_shares(self) -> tuple[float, float, float, float]:
        """Return the probabilities of dropout in training."""
        return self.attn.attention_dropout, getattr(self.attn.out_drop, "p", 0.0), self.mlp.drop.p, 0.0

    def by_token(self, *, position_embeddings: tuple[torch.Tensor, torch.Tensor], **options: Any
                 ) -> Mapping[str, np.ndarray]:
        """Return cosines and sines of the angles by which queries and keys are rotated."""
        return {name: np.ascontiguousarray(part[0].numpy())
                for name, part in zip(("turn_cos", "turn_sin"), position_embeddings, strict=True)}


class ModernBertModel(PackedModel, modeling_modernbert.ModernBertModel):
    """ModernBERT."""

    reads_distances = True

    def _encode(self, packed: Mapping[str, torch.Tensor], **options: Any) -> Any:
        masks = {"full_attention": None, "sliding_attention": None}
        return modeling_modernbert.ModernBertModel.forward(
            self, **packed, **options, attention_mask=masks, output_hidden_states=False, return_dict=True)


class T5Block(PackedLayer, modeling_t5.T5Block):
    """A layer of the encoder of T5."""

    norm_class = modeling_t5.T5LayerNorm

    @property
    def gated(self) -> bool:
        return isinstance(self.layer[-1].DenseReluDense, modeling_t5.T5DenseGatedActDense)

    @property
    def paths(self) -> LayerPaths:
        attention, network = "layer.0.SelfAttention", "layer.1.DenseReluDense"
        return LayerPaths(
            qkv=tuple(f"{attention}.{name}" for name in "qkv"), out=f"{attention}.o",
            into=f"{network}.{'wi_0' if self.gated else 'wi'}", up=f"{network}.wi_1" if self.gated else None,
            back=f"{network}.wo", norms=("layer.0.layer_norm", "layer.1.layer_norm"), activation=f"{network}.act")

    def count_heads(self) -> int:
        """Return the number of heads."""
        return self.layer[0].SelfAttention.n_heads

    def epsilon(self, norm: modeling_t5.T5LayerNorm) -> float:
        """Return what a norm adds to the mean of squares."""
        return norm.variance_epsilon

    def form(self) -> EncoderShape:
        """Describe the layer."""
        attention = self.layer[0].SelfAttention
        if attention.inner_dim != attention.d_model:
            raise Unsupported(f"heads have {attention.inner_dim} columns together and tokens {attention.d_model}: they "
                              "must be equal")
        return replace(super().form(), norm="rms", norm_first=True, gated=self.gated, scale=attention.scaling,
                       distances=attention.relative_attention_max_distance)

    def dropout_shares(self) -> tuple[float, float, float, float]:
        """Return the probabilities of dropout in training."""
        attention, network = self.layer
        return attention.SelfAttention.dropout, attention.dropout.p, network.DenseReluDense.dropout.p, network.dropout.p

    def check(self) -> None:
        """Refuse layers of decoders, and those that cannot run as a program."""
        if self.is_decoder:
            raise Unsupported("it is a layer of a decoder")
        super().check()


class T5Stack(PackedModel, modeling_t5.T5Stack):
    """The encoder of T5."""

    reads_distances = True

    def check(self) -> None:
        """Refuse decoders."""
        if self.is_decoder:
            raise Unsupported("it is a decoder: packed models are encoders")

    def positions(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> None:
        """Return None: T5 has distances instead of positions."""

    def packed_positions(self, ids: torch.Tensor, lengths: torch.Tensor) -> None:
        """Return None."""

    def tables(self) -> Mapping[str, torch.Tensor]:
        """Return the addends of scores by distance."""
        attention = self.block[0].layer[0].SelfAttention
        apart = torch.arange(attention.relative_attention_max_distance + 1)
        buckets = [attention._relative_position_bucket(
            way, True, attention.relative_attention_num_buckets, attention.relative_attention_max_distance)
            for way in (-apart, apart)]
        return _kept_tables(self, attention.relative_attention_bias.weight, buckets)

    def _encode(self, packed: Mapping[str, torch.Tensor], **options: Any) -> BaseModelOutput:
        embedded = packed.get("inputs_embeds")
        tokens = self.dropout(self.embed_tokens(packed["input_ids"]) if embedded is None else embedded)
        tokens = run_layers(self.block, tokens, **options)
        return BaseModelOutput(last_hidden_state=self.dropout(self.final_layer_norm(tokens)))


def _kept_tables(model: Any, weight: torch.Tensor, buckets: Sequence[torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Look up addends by head and distance; they are kept as long as the weight is the same, unless it is trained."""
    def look_up(weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {name: weight[each].T.contiguous() for name, each in zip(("bias_before", "bias_after"), buckets,
                                                                        strict=True)}

    if weight.requires_grad and torch.is_grad_enabled():
        return look_up(weight)
    key, kept = content_hash(weight), model.__dict__.get("_sparloom_tables")
    if kept is None or kept[0] != key:
        kept = model.__dict__["_sparloom_tables"] = key, look_up(weight.detach())
    return kept[1]


def original(packed: type) -> type:
    """Return the class of transformers that a packed class extends."""
    return next(base for base in packed.__mro__ if base.__module__.startswith("transformers."))


MODELS = {original(each): each for each in (
    BertModel, RobertaModel, XLMRobertaModel, CamembertModel, ElectraModel, DistilBertModel, MPNetModel,
    ModernBertModel, T5Stack)}
"""Original class -> packed class."""
LAYERS = {original(each): each for each in (
    BertLayer, RobertaLayer, XLMRobertaLayer, CamembertLayer, ElectraLayer, TransformerBlock, MPNetLayer,
    ModernBertEncoderLayer, T5Block)}
"""The same of layers."""
