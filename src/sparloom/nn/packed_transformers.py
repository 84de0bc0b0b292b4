"""Models of transformers that run on packed tokens: BERT and its relatives, MPNet, ModernBERT, the encoder of T5.

A packed model takes the real tokens out of the padded batch, runs embeddings and layers on them as on one sequence, and
puts the results back. Its class is a subclass of the original one, of the same name. The original class computes calls
that programs do not, and all calls of a model whose parts have hooks or were replaced.

Where layers read the distance of two tokens, tokens between real ones are computed, too, and no other one attends to
them; elsewhere they are left out, since positions are those of the padded batch.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPooling,
    BaseModelOutputWithPoolingAndCrossAttentions,
    ModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
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
from sparloom.nn.encoder_checks import ModuleSnapshot, check_called, check_methods, check_modules
from sparloom.nn.packed_layers import (
    NO_TABLES,
    CheckedEncoder,
    LayerPaths,
    LayerReader,
    PackedEncoder,
    run_layers,
    submodule,
)
from sparloom.nn.ragged_programs import JoinedParameters
from sparloom.nn.torch_integration import eager
from sparloom.ragged import EncoderShape, structure_of

BY_TOKEN = ("input_ids", "inputs_embeds", "token_type_ids", "position_ids")  # arguments that are gathered
WITHOUT_EFFECT = ("num_items_in_batch",)  # arguments that no result of an encoder depends on
PIECE_TOKENS = 8192  # of a batch that run at a time
MPNET_DISTANCE, MPNET_BUCKETS = 128, 32  # which MPNet has whatever its configuration says


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


class PackedModel(PackedEncoder):
    """Mixin of encoders that compute real tokens only; padding is 0 in all results."""

    reads_distances: ClassVar[bool] = False  # whether layers read the distance of two tokens
    has_first_token: ClassVar[bool] = True  # whether poolers and heads read the first token of a padded text
    reader: ClassVar[type[LayerReader]]
    layers_path: ClassVar[str] = "encoder.layer"
    result_class: ClassVar[type[ModelOutput]] = BaseModelOutputWithPoolingAndCrossAttentions
    argument_names: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, **options: Any) -> None:
        """Give `forward` the signature of the original class, whose arguments by position it takes."""
        super().__init_subclass__(**options)
        base = original(cls)
        cls.argument_names = names = tuple(inspect.signature(base.forward).parameters)[1:]

        @functools.wraps(base.forward)
        def forward(self: PackedModel, *arguments: Any, **options: Any) -> Any:
            try:
                if len(arguments) > len(names) or not options.keys().isdisjoint(names[:len(arguments)]):
                    raise Unsupported("the arguments do not fit its signature")
                return self._compute_packed(dict(zip(names, arguments, strict=False)) | options)
            except Unsupported as reason:
                return self.compute_as_before(reason, base.forward, self, *arguments, **options)

        cls.forward = eager(forward)

    def take_snapshot(self) -> ModuleSnapshot:
        """Remember all modules but the pooler, which reads a padded batch."""
        modules = [module for name, part in self._modules.items() if name != "pooler" and part is not None
                   for module in part.modules()]
        stack = self._modules.get(self.layers_path.partition(".")[0])
        return ModuleSnapshot(self, modules, [] if stack is None else list(stack.modules()), [self.config])

    def watched_values(self) -> tuple[Any, ...]:
        """Return the function of attention, which is registered by name."""
        return (ALL_ATTENTION_FUNCTIONS.get(self.config._attn_implementation),)

    def check_layers(self) -> Sequence[LayerReader]:
        """Compare the layers with those of a new model of the same configuration.

        Raises:
            Unsupported: they differ in more than their parameters; says where.
        """
        if getattr(self.config, "is_decoder", False):
            raise Unsupported("it is a decoder: packed models are encoders")
        attention = self.config._attn_implementation
        function = ALL_ATTENTION_FUNCTIONS.get(attention)
        if attention not in ("eager", None) and not getattr(function, "__module__", "").startswith("transformers."):
            raise Unsupported(f"its attention is {attention!r}, which packed programs do not know")
        config = copy.deepcopy(self.config)
        config._attn_implementation = "eager"
        try:
            with torch.device("meta"):  # without memory, and without drawing random numbers
                reference = type(self)(config)
        except Exception as error:
            raise Unsupported(f"no model can be made of its configuration: {error}") from error
        stack = self.layers_path.partition(".")[0]
        check_methods(self, original(type(self)), "")
        for name, inner in reference._modules.items():
            part = self._modules.get(name)
            if name == stack:
                check_modules(part, inner, stack, tuple(submodule(reference, self.layers_path)))
            elif name != "pooler" and part is not None:
                check_called(part, inner, name)
        return [self.reader(layer, f"{self.layers_path}.{number}")
                for number, layer in enumerate(submodule(self, self.layers_path))]

    def _compute_packed(self, given: dict[str, Any]) -> Any:
        """Encode a batch.

        Args:
            given: arguments of the original model, by name.

        Raises:
            Unsupported: programs do not compute such a call; says why.
            ValueError: a position is not in the model.
        """
        checked = self.checked()
        as_dict, wants_states = given.pop("return_dict", None), given.pop("output_hidden_states", None)
        wants_states = self.config.output_hidden_states if wants_states is None else wants_states
        if not isinstance(wants_states, bool):
            raise Unsupported(f"output_hidden_states={wants_states!r}: packed models return all of them or none")
        if given.get("output_attentions", self.config.output_attentions):
            raise Unsupported("output_attentions=True: programs never store the weights of attention")
        mask, tokens = given.pop("attention_mask", None), {
            name: given.pop(name) for name in BY_TOKEN if name in given and name in self.argument_names}
        for name, value in given.items():
            if value is not None and value is not False and name not in WITHOUT_EFFECT:
                raise Unsupported(f"{name} is given, which programs do not read")
        input_ids, inputs_embeds = tokens.get("input_ids"), tokens.get("inputs_embeds")
        inputs = input_ids if inputs_embeds is None else inputs_embeds
        if inputs is None or (input_ids is not None and inputs is not input_ids) or (
                inputs.dim() != 2 + (inputs_embeds is not None)):
            raise Unsupported("the inputs are not one of input_ids and inputs_embeds, (batch, length)")
        batch = self.packed_batch(mask, tuple(inputs.shape[:2]), tokens.get("position_ids"))
        if tokens.get("position_ids") is None:
            tokens["position_ids"] = self.positions(input_ids, inputs_embeds)
        packed = {name: batch.gather(value) for name, value in tokens.items() if value is not None}
        states: list[torch.Tensor] = []
        hidden = self._run(checked, packed, batch.sequences,
                           record=functools.partial(_keep_state, batch, states) if wants_states else None)
        result = self.result_class(last_hidden_state=batch.scatter(hidden))
        if getattr(self, "pooler", None) is not None:
            result["pooler_output"] = self.pooler(result["last_hidden_state"])
        if wants_states:
            padded = states if torch.is_grad_enabled() else [batch.scatter(each[None]) for each in states]
            result["hidden_states"] = (*padded, result["last_hidden_state"])
        as_dict = self.config.return_dict if as_dict is None else as_dict
        return result if as_dict else self.as_tuple(result)

    def packed_batch(self, mask: torch.Tensor | None, shape: tuple[int, int], positions: torch.Tensor | None
                     ) -> PackedBatch:
        """Return the tokens that are computed of a padded batch of this shape.

        Raises:
            Unsupported: a text begins with padding, which poolers and heads would read.
        """
        batch = PackedBatch.of(mask, shape, spans=self.reads_distances)
        if self.has_first_token and batch.begins_with_padding():
            raise Unsupported("a text begins with padding, whose result poolers and heads read as that of its first "
                              "token, and packed models compute none for padding: pad on the right")
        return batch

    def as_tuple(self, result: ModelOutput) -> tuple[Any, ...]:
        """Return what the original model returns for `return_dict=False`."""
        return result.to_tuple()

    @eager
    def encode_packed(
        self, sequences: Sequence[Sequence[int]] | None = None, *, token_type_ids: Sequence[Any] | None = None,
        position_ids: Sequence[Any] | None = None, attention_mask: Sequence[Any] | None = None,
        inputs_embeds: Sequence[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode sequences that were never padded. All arguments have one list or vector for each sequence.

        Args:
            sequences: token ids.
            token_type_ids, position_ids: of the tokens, as of the original model, if that has them.
            attention_mask: 0 or False for tokens to which no other one attends, and whose result is 0.
            inputs_embeds: (length, width) of each sequence, instead of token ids.

        Returns:
            (tokens, width), sequence after sequence, and the lengths, (sequences,) int64.

        Raises:
            TypeError: both or none of `sequences` and `inputs_embeds` are given.
            ValueError: a sequence is no vector of integers, has more positions than the model, or an argument has
                other lengths, or the model has no such argument.
            Unsupported: programs cannot compute the model; says why.
        """
        if (sequences is None) == (inputs_embeds is None):
            raise TypeError("both or none of sequences and inputs_embeds are given: pass one of them")
        parts = _vectors("sequences", sequences, torch.int64) if inputs_embeds is None else list(inputs_embeds)
        lengths = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        packed = {"input_ids" if inputs_embeds is None else "inputs_embeds": _joined(parts)}
        for name, value in (("token_type_ids", token_type_ids), ("position_ids", position_ids),
                            ("attention_mask", attention_mask)):
            if value is not None:
                if name not in self.argument_names:
                    raise ValueError(f"{name} is given, and {type(self).__name__} has no such argument: omit it")
                packed[name] = _joined(_vectors(name, value, torch.int64, lengths.tolist()))
        if not sum(lengths.tolist()):
            return torch.zeros(0, self.config.hidden_size), lengths
        if "position_ids" not in packed:
            packed["position_ids"] = self.packed_positions(packed.get("input_ids"), lengths)
        mask = packed.pop("attention_mask", None)
        real = None if mask is None else mask != 0
        seen = None if real is None or bool(real.all()) else real.to(torch.float32).numpy()
        hidden = self._run(self.checked(), {name: value[None] for name, value in packed.items() if value is not None},
                           Sequences(structure_of(lengths.numpy()), seen))[0]
        return hidden if seen is None else hidden * real[:, None], lengths

    def packed_positions(self, ids: torch.Tensor | None, lengths: torch.Tensor) -> torch.Tensor | None:
        """Return the position ids of sequences that are not padded, (tokens,)."""
        counts = lengths.numpy()  # NumPy takes less time for a few sequences
        places = torch.from_numpy(np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts))
        table = self._position_table(int(counts.max()))
        return places if table is None else table[0, places]

    def positions(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor | None:
        """Return the position ids that the original model gives a padded batch, (batch or 1, length)."""
        length = (input_ids if inputs_embeds is None else inputs_embeds).shape[1]
        table = self._position_table(length)
        return torch.arange(length, device="cpu")[None] if table is None else table[:, :length]

    def _position_table(self, length: int) -> torch.Tensor | None:
        """Return the position ids that the embeddings keep, (1, most positions), if there are as many as needed."""
        table = getattr(self.embeddings, "position_ids", None)
        return None if table is None or table.shape[1] < length else table

    def _run(self, checked: CheckedEncoder, packed: Mapping[str, torch.Tensor], sequences: Sequences, *,
             record: Callable[[torch.Tensor], torch.Tensor] | None = None) -> torch.Tensor:
        """Encode packed tokens, and return the last hidden state, (1, tokens, width).

        Without gradients, large batches run in pieces of whole sequences, which bounds the memory of intermediate
        results.

        Args:
            packed: arguments by token, (1, tokens, ...).
            record: see `run_layers`.
        """
        self._check_positions(packed.get("position_ids"))
        pieces = sequences.pieces(PIECE_TOKENS) if record is None and not torch.is_grad_enabled() else []
        if len(pieces) < 2:
            return self.encode_tokens(checked, packed, sequences, record)
        return torch.cat([self.encode_tokens(checked, {name: value[:, tokens] for name, value in packed.items()}, part,
                                             None) for part, tokens in pieces], 1)

    def encode_tokens(self, checked: CheckedEncoder, packed: Mapping[str, torch.Tensor], sequences: Sequences,
                      record: Callable[[torch.Tensor], torch.Tensor] | None) -> torch.Tensor:
        """Run embeddings and layers on packed tokens."""
        tokens = self.embeddings(**packed)
        if hasattr(self, "embeddings_project"):
            tokens = self.embeddings_project(tokens)
        return run_layers(self, checked, tokens[0], sequences, record=record)[None]

    def _check_positions(self, positions: torch.Tensor | None) -> None:
        table = getattr(self.embeddings, "position_embeddings", None) if hasattr(self, "embeddings") else None
        if positions is None or table is None:
            return
        least, most = int(positions.min()), int(positions.max())
        if least < 0:
            raise ValueError(f"a token has position {least}: positions are never negative")
        if most >= table.num_embeddings:
            raise ValueError(f"a token has position {most}, and the model has {table.num_embeddings}: truncate the "
                             "inputs")


def _keep_state(batch: PackedBatch, states: list[torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Append the input of a layer to the hidden states, and return what the layer reads.

    With gradients, it reads the padded state that users get, so that gradients with respect to that exist.
    """
    states.append(batch.scatter(tokens[None]) if torch.is_grad_enabled() else tokens)
    return batch.gather(states[-1])[0] if torch.is_grad_enabled() else tokens


def _vectors(name: str, values: Sequence[Any], dtype: torch.dtype, lengths: Sequence[int] | None = None
             ) -> list[torch.Tensor]:
    """Convert one list for each sequence to vectors of integers, and check their lengths."""
    if lengths is not None and len(values) != len(lengths):
        raise ValueError(f"{name} has {len(values)} lists, and there are {len(lengths)} sequences: pass one for each")
    parts = [torch.as_tensor(each, dtype=None if len(each) else dtype) for each in values]
    for number, part in enumerate(parts):
        is_number = not (part.is_floating_point() or part.is_complex())
        if part.dim() != 1 or not is_number or (part.dtype == torch.bool and name != "attention_mask"):
            raise ValueError(f"{name}: sequence {number} is {part.dtype} of shape {tuple(part.shape)}: expected a "
                             f"vector of {'token ids' if name == 'sequences' else 'integers'}")
        if lengths is not None and len(part) != lengths[number]:
            raise ValueError(f"{name}: sequence {number} has {len(part)} values and {lengths[number]} tokens")
    return [part.to(dtype) for part in parts]


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros(0, dtype=torch.int64)


def original(packed: type) -> type:
    """Return the class of transformers that a packed class extends."""
    return next(base for base in packed.__mro__ if base.__module__.startswith("transformers."))


class PaddingAwarePositions:
    """Mixin of models that count positions without padding tokens, from the padding index on."""

    def packed_positions(self, ids: torch.Tensor | None, lengths: torch.Tensor) -> torch.Tensor:
        """Return the position ids of sequences that are not padded, (tokens,)."""
        padding = self.embeddings.padding_idx
        if ids is None:
            return super().packed_positions(ids, lengths) + padding + 1
        real = (ids != padding).to(torch.int64)
        before = torch.nn.functional.pad(real.cumsum(0), (1, 0))[lengths.cumsum(0) - lengths]
        return (real.cumsum(0) - torch.repeat_interleave(before, lengths)) * real + padding

    def positions(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Return the position ids of a padded batch."""
        embeddings = self.embeddings
        if input_ids is None:
            return embeddings.create_position_ids_from_inputs_embeds(inputs_embeds, embeddings.padding_idx)
        return embeddings.create_position_ids_from_input_ids(input_ids, embeddings.padding_idx, 0)


class BertLikeModel:
    """Mixin of models whose layers are like those of BERT."""

    reader = BertLikeLayer

    def check_layers(self) -> Sequence[LayerReader]:
        """Refuse cross-attention, which a reference of the same configuration has, too."""
        if getattr(self.config, "add_cross_attention", False):
            raise Unsupported("it has layers of a decoder: packed models are encoders")
        return super().check_layers()


class BertModel(BertLikeModel, PackedModel, modeling_bert.BertModel):
    """BERT."""


class RobertaModel(PaddingAwarePositions, BertLikeModel, PackedModel, modeling_roberta.RobertaModel):
    """RoBERTa."""


class XLMRobertaModel(PaddingAwarePositions, BertLikeModel, PackedModel, modeling_xlm_roberta.XLMRobertaModel):
    """XLM-RoBERTa."""


class CamembertModel(PaddingAwarePositions, BertLikeModel, PackedModel, modeling_camembert.CamembertModel):
    """CamemBERT."""


class ElectraModel(BertLikeModel, PackedModel, modeling_electra.ElectraModel):
    """ELECTRA."""

    result_class = BaseModelOutputWithPastAndCrossAttentions


class DistilBertModel(PackedModel, modeling_distilbert.DistilBertModel):
    """DistilBERT."""

    reader = DistilBertLayer
    layers_path = "transformer.layer"
    result_class = BaseModelOutput

    def encode_tokens(self, checked: CheckedEncoder, packed: Mapping[str, torch.Tensor], sequences: Sequences,
                      record: Callable[[torch.Tensor], torch.Tensor] | None) -> torch.Tensor:
        """Run embeddings and layers on packed tokens."""
        tokens = self.embeddings(packed.get("input_ids"), packed.get("inputs_embeds"), packed["position_ids"])
        return run_layers(self, checked, tokens[0], sequences, record=record)[None]


class MPNetModel(PaddingAwarePositions, PackedModel, modeling_mpnet.MPNetModel):
    """MPNet."""

    reads_distances = True
    reader = MPNetLayer
    result_class = BaseModelOutputWithPooling

    def as_tuple(self, result: ModelOutput) -> tuple[Any, ...]:
        """Return a tuple, whose second element is None without a pooler."""
        states = result.get("hidden_states")
        return result["last_hidden_state"], result.get("pooler_output"), *(() if states is None else (states,))

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


class ModernBertModel(PackedModel, modeling_modernbert.ModernBertModel):
    """ModernBERT."""

    reads_distances = True
    reader = ModernBertLayer
    layers_path = "layers"
    result_class = BaseModelOutput

    def encode_tokens(self, checked: CheckedEncoder, packed: Mapping[str, torch.Tensor], sequences: Sequences,
                      record: Callable[[torch.Tensor], torch.Tensor] | None) -> torch.Tensor:
        """Run embeddings, layers and the last norm on packed tokens."""
        tokens = self.embeddings(input_ids=packed.get("input_ids"), inputs_embeds=packed.get("inputs_embeds"))
        turns = {kind: {name: np.ascontiguousarray(part[0].numpy()) for name, part in zip(
            ("turn_cos", "turn_sin"), self.rotary_emb(tokens, packed["position_ids"], kind), strict=True)}
            for kind in set(self.config.layer_types)}
        return self.final_norm(run_layers(self, checked, tokens[0], sequences, record=record,
                                          by_token=lambda layer: turns[layer.attention_type])[None])


class T5Stack(PackedModel, modeling_t5.T5Stack):
    """The encoder of T5."""

    reads_distances, has_first_token = True, False
    reader = T5Layer
    layers_path = "block"
    result_class = BaseModelOutputWithPastAndCrossAttentions

    def check_layers(self) -> Sequence[LayerReader]:
        """Refuse layers in another order, as the first one has the table of relative positions."""
        readers = super().check_layers()
        if readers and not submodule(self.block[0], "layer.0.SelfAttention").has_relative_attention_bias:
            raise Unsupported("its first layer has no table of relative positions")
        return readers

    def positions(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> None:
        """Return None: T5 has distances instead of positions."""

    def packed_positions(self, ids: torch.Tensor | None, lengths: torch.Tensor) -> None:
        """Return None."""

    def tables(self) -> Mapping[str, torch.Tensor]:
        """Return the addends of scores by distance."""
        if not len(self.block):
            return NO_TABLES
        attention = submodule(self.block[0], "layer.0.SelfAttention")
        apart = torch.arange(attention.relative_attention_max_distance + 1)
        buckets = [attention._relative_position_bucket(
            way, True, attention.relative_attention_num_buckets, attention.relative_attention_max_distance)
            for way in (-apart, apart)]
        return _kept_tables(self, attention.relative_attention_bias.weight, buckets)

    def encode_tokens(self, checked: CheckedEncoder, packed: Mapping[str, torch.Tensor], sequences: Sequences,
                      record: Callable[[torch.Tensor], torch.Tensor] | None) -> torch.Tensor:
        """Run embeddings, layers and the last norm on packed tokens."""
        embedded = packed.get("inputs_embeds")
        tokens = self.dropout(self.embed_tokens(packed["input_ids"]) if embedded is None else embedded)
        tokens = run_layers(self, checked, tokens[0], sequences, record=record)[None]
        return self.dropout(self.final_layer_norm(tokens))


def _kept_tables(model: PackedModel, weight: torch.Tensor, buckets: Sequence[torch.Tensor]
                 ) -> Mapping[str, torch.Tensor]:
    """Look up addends by head and distance; they are kept as long as the weight is the same, unless it is trained."""
    def look_up(weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {name: weight[each].T.contiguous() for name, each in zip(("bias_before", "bias_after"), buckets,
                                                                        strict=True)}

    if weight.requires_grad and torch.is_grad_enabled():
        return look_up(weight)
    state, key = model.state(), content_hash(weight)
    kept = state.tables
    if kept is None or kept[0] != key:
        with torch.inference_mode(False), torch.no_grad():  # later calls may need gradients of other tensors
            kept = state.tables = key, look_up(weight.detach())
    return kept[1]


MODELS = {original(each): each for each in (
    BertModel, RobertaModel, XLMRobertaModel, CamembertModel, ElectraModel, DistilBertModel, MPNetModel,
    ModernBertModel, T5Stack)}
"""Original class -> packed class."""
