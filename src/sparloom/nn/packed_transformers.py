"""Models of transformers that run on packed tokens: BERT and its relatives.

A packed model takes the real tokens out of the padded batch, runs embeddings and layers on them as on one sequence, and
puts the results back; its class is a subclass of the original one, of the same name, as are those of its layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from transformers.models.bert import modeling_bert
from transformers.models.camembert import modeling_camembert
from transformers.models.distilbert import modeling_distilbert
from transformers.models.electra import modeling_electra
from transformers.models.roberta import modeling_roberta
from transformers.models.xlm_roberta import modeling_xlm_roberta

from sparloom.errors import Unsupported
from sparloom.nn.batches import PackedBatch, token_pieces
from sparloom.nn.packed_layers import LayerPaths, PackedLayer
from sparloom.ragged import Structure

BERT_PATHS = LayerPaths(
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"), out="attention.output.dense",
    into="intermediate.dense", back="output.dense", norms=("attention.output.LayerNorm", "output.LayerNorm"),
    activation="intermediate.intermediate_act_fn")
DISTILBERT_PATHS = LayerPaths(
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"), out="attention.out_lin", into="ffn.lin1",
    back="ffn.lin2", norms=("sa_layer_norm", "output_layer_norm"), activation="ffn.activation")
PIECE_TOKENS = 8192  # of a batch that run at a time
REFUSED = ("encoder_hidden_states", "encoder_attention_mask", "cache", "past_key_values", "head_mask")


class PackedModel:
    """Mixin of encoders that compute real tokens only; padding is 0 in all results."""

    def check(self) -> None:
        """Check that the model can be packed.

        Raises:
            Unsupported: it cannot; says why.
        """
        if getattr(self.config, "is_decoder", False):
            raise Unsupported("the model is a decoder: packed models are encoders")

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
        if options.get("output_attentions", getattr(self.config, "output_attentions", False)):
            raise Unsupported("output_attentions=True: packed models never store the weights of attention: call "
                              "sparloom.nn.unpack(model) first")
        inputs = input_ids if inputs_embeds is None else inputs_embeds
        if inputs.dim() != 2 + (inputs_embeds is not None):
            raise ValueError(f"the inputs have shape {tuple(inputs.shape)}: expected (batch, length)")
        batch = PackedBatch.of(attention_mask, tuple(inputs.shape[:2]))
        positions = self.positions(input_ids, inputs_embeds) if position_ids is None else position_ids
        given = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "token_type_ids": token_type_ids,
                 "position_ids": positions}
        packed = {name: batch.gather(value) for name, value in given.items() if value is not None}
        as_dict = options.pop("return_dict", self.config.return_dict)
        wanted = options.pop("output_hidden_states", self.config.output_hidden_states)
        if not isinstance(wanted, bool):
            raise Unsupported(f"output_hidden_states={wanted!r}: packed models return all of them or none: pass True")
        record: list[torch.Tensor] | None = [] if wanted else None
        found = self._run(packed, batch.structure, record=record, **options)
        found["last_hidden_state"] = batch.scatter(found["last_hidden_state"])
        if found.get("pooler_output") is not None:
            found["pooler_output"] = self.pooler(found["last_hidden_state"])
        if record is not None:
            found["hidden_states"] = (*map(batch.scatter, record), found["last_hidden_state"])
        return found if as_dict else found.to_tuple()

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
            return self.get_input_embeddings().weight.new_zeros(0, self.config.hidden_size), lengths
        longest = int(lengths.max())
        padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True) if self.counts_padding else ids[:, :longest]
        batch = PackedBatch.of(torch.arange(longest) < lengths[:, None], (len(parts), longest))
        packed = {"input_ids": ids, "position_ids": batch.gather(self.positions(padded, None))}
        return self._run(packed, batch.structure, **options)["last_hidden_state"][0], lengths

    counts_padding: ClassVar[bool] = False  # whether positions depend on token ids

    def positions(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Return the position ids that the original model gives a padded batch, (batch or 1, length)."""
        length = (input_ids if inputs_embeds is None else inputs_embeds).shape[1]
        return torch.arange(length)[None]

    def _run(self, packed: Mapping[str, torch.Tensor], sequences: Structure, *,
             record: list[torch.Tensor] | None = None, **options: Any) -> Any:
        """Run the original model on packed tokens.

        Without gradients, large batches run in pieces of whole sequences, which bounds the memory of intermediate
        results.

        Args:
            packed: arguments by token, (1, tokens, ...).
            record: list to which the inputs of all layers are appended.
        """
        positions, count = packed["position_ids"], self.embeddings.position_embeddings.num_embeddings
        if not 0 <= int(positions.min()) <= int(positions.max()) < count:
            raise ValueError(f"a token has position {int(positions.max())}, and the model has {count}: truncate the "
                             "inputs")
        options |= {"attention_mask": None, "output_hidden_states": False, "return_dict": True}
        pieces = token_pieces(sequences, PIECE_TOKENS) if record is None and not torch.is_grad_enabled() else []
        if len(pieces) < 2:
            return super().forward(**packed, **options, sequences=sequences, record=record)
        results = []
        for part, tokens in pieces:
            own = {name: value[:, tokens] for name, value in packed.items()}
            results.append(super().forward(**own, **options, sequences=part))
        results[0]["last_hidden_state"] = torch.cat([each["last_hidden_state"] for each in results], 1)
        return results[0]

    def _create_attention_masks(self, *arguments: Any, **options: Any) -> tuple[None, None]:
        """Make no mask: there is no padding, and layers know where sequences end."""
        return None, None


class PaddingAwarePositions:
    """Mixin of models that count positions without padding tokens, from the padding index on."""

    counts_padding = True

    def positions(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Return the position ids of a padded batch."""
        embeddings = self.embeddings
        if input_ids is None:
            return embeddings.create_position_ids_from_inputs_embeds(inputs_embeds, embeddings.padding_idx)
        return embeddings.create_position_ids_from_input_ids(input_ids, embeddings.padding_idx, 0)


class BertLikeLayer(PackedLayer):
    """Mixin of the layers of BERT and of models whose layers have the same modules."""

    paths = BERT_PATHS

    def count_heads(self) -> int:
        """Return the number of heads."""
        return self.attention.self.num_attention_heads

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

    paths = DISTILBERT_PATHS

    def count_heads(self) -> int:
        """Return the number of heads."""
        return self.attention.n_heads


class DistilBertModel(PackedModel, modeling_distilbert.DistilBertModel):
    """DistilBERT."""

    def check(self) -> None:
        """Refuse implementations of attention that need a mask of all pairs of tokens."""
        super().check()
        implementation = self.config._attn_implementation
        if implementation != "sdpa":
            raise Unsupported(f"attn_implementation={implementation!r}: load the model with attn_implementation='sdpa'")


def original(packed: type) -> type:
    """Return the class of transformers that a packed class extends."""
    return next(base for base in packed.__mro__ if base.__module__.startswith("transformers."))


MODELS = {original(each): each for each in (
    BertModel, RobertaModel, XLMRobertaModel, CamembertModel, ElectraModel, DistilBertModel)}
"""Original class -> packed class."""
LAYERS = {original(each): each for each in (
    BertLayer, RobertaLayer, XLMRobertaLayer, CamembertLayer, ElectraLayer, TransformerBlock)}
"""The same of layers."""
