"""Encoder layers that run as one ragged program each: where their parameters are, and how programs run.

A packed encoder checks that its layers are what programs compute, reads their parameters, and runs programs; the layers
themselves stay as they are, and are called where programs cannot compute a call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

from sparloom.errors import Unsupported
from sparloom.nn.batches import Sequences, TokenBatch
from sparloom.nn.content_hash import fingerprint_tensors, sampled_hash
from sparloom.nn.custom_ops import in_functorch, needs_derivatives
from sparloom.nn.encoder_checks import CheckedLayers, ModuleSnapshot, adapter_flags, has_adapters
from sparloom.nn.ragged_programs import (
    JoinedParameters,
    PackedProgramWeights,
    PackedWeights,
    activation_name,
    bind_layer,
    call_layer,
    flat_parameters,
    norm_gain,
)
from sparloom.nn.torch_integration import autocast_operands, refuse_tracing, torch_threads
from sparloom.ragged import (
    EncoderSchedule,
    EncoderShape,
    Layer,
    Weight,
    check_precision,
    compiled_encoder_layer,
    run_bound,
)

log = logging.getLogger(__name__)

NO_TABLES: Mapping[str, torch.Tensor] = MappingProxyType({})
PRECISION, STATE = "_sparloom_precision", "_sparloom_encoder"  # attributes of packed encoders
FEW_TOKENS = 1024  # of a batch, up to which threads share columns: measured with the sizes of MiniLM and BERT-base
SHARED_PANELS = 12  # of weights, which threads share: the smallest products of these models have as many
TRAINING = EncoderSchedule(depth=768)  # products of the width of BERT-base are not cut
MANY = replace(TRAINING, rows=96)


@dataclass(frozen=True)
class LayerPaths:
    """Where an encoder layer has its modules, by their paths.

    Args:
        heads: the attribute with the number of heads.
        qkv: torch.nn.Linear of queries, keys and values; none if they are no such modules.
        out: of the result of attention.
        into, up, back: of the feed-forward network; `up` if it is gated by a module of its own.
        norms: after, or before, attention and the feed-forward network, and of what these add if there are four; a
            torch.nn.Identity is none.
        activation: of the feed-forward network, a module or a function.
        dropouts: of weights of attention, of the result of attention, of the hidden columns, and of the result of the
            network: the module in whose training mode there is dropout, and the attribute with the probability.
    """

    heads: str
    qkv: tuple[str, ...]
    out: str
    into: str
    back: str
    norms: tuple[str, ...]
    activation: str
    dropouts: tuple[tuple[str, str] | None, ...]
    up: str | None = None


class LayerReader:
    """Reads the form and the parameters of one encoder layer.

    Args:
        path: of the layer in the encoder, for messages.
    """

    paths: ClassVar[LayerPaths]

    def __init__(self, layer: Any, path: str) -> None:
        self.layer, self.path, self.packed = layer, path, PackedWeights()

    def count_heads(self) -> int:
        """Return the number of heads."""
        return attribute(self.layer, self.paths.heads)

    def form(self) -> EncoderShape:
        """Describe the layer.

        Raises:
            Unsupported, ValueError: there is no program for it; says why.
        """
        epsilons = {path: self.epsilon(norm) for path, norm in self.norms()}
        if len(set(epsilons.values())) > 1:
            raise Unsupported(f"norms have different epsilons, {epsilons}: they must be equal")
        width, hidden = self.base(self.paths.back).weight.shape
        return EncoderShape(width, self.count_heads(), hidden, next(iter(epsilons.values())),
                            activation=activation_name(attribute(self.layer, self.paths.activation)))

    def compiled(self, form: EncoderShape, schedule: EncoderSchedule, threads: int) -> Layer:
        """Return the program of a form."""
        return compiled_encoder_layer(form, schedule, threads)

    def norms(self) -> list[tuple[str, torch.nn.Module]]:
        """Return the paths and modules of the norms that there are."""
        norms = [(path, submodule(self.layer, path)) for path in self.paths.norms]
        return [(path, norm) for path, norm in norms if not isinstance(norm, torch.nn.Identity)]

    def epsilon(self, norm: Any) -> float:
        """Return what a norm adds to variances."""
        return norm.eps

    def parameters(self) -> JoinedParameters:
        """Return the parameters by their names in the program.

        Raises:
            Unsupported: adapters are of a kind that does not only add to the weight; biases are incomplete.
        """
        paths = self.paths
        parameters = {**self.projection_parameters(), **self.network_parameters()}
        for name, path in (("out", paths.out), ("back", paths.back)):
            parameters[f"w_{name}"], parameters[f"b_{name}"] = self.projection(path)
        for path, norm in self.norms():
            number = 1 + paths.norms.index(path)
            gain = norm._parameters["weight"]
            parameters[f"gain_{number}"] = norm_gain(norm) if gain is None else gain
            parameters[f"shift_{number}"] = norm._parameters.get("bias")
        return parameters

    def network_parameters(self) -> JoinedParameters:
        """Return those of the projections into the feed-forward network."""
        parameters = {}
        for name, path in (("in", self.paths.into), ("up", self.paths.up)):
            if path is not None:
                parameters[f"w_{name}"], parameters[f"b_{name}"] = self.projection(path)
        return parameters

    def projection(self, path: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the weight and the bias of a torch.nn.Linear, with the adapters that are active."""
        module = submodule(self.layer, path)
        if not has_adapters(module):
            return module.weight, module.bias
        return _adapted_weight(module, path, self.packed), module.base_layer.bias

    def base(self, path: str) -> torch.nn.Linear:
        """Return a torch.nn.Linear without its adapters."""
        module = submodule(self.layer, path)
        return module.base_layer if has_adapters(module) else module

    def projection_parameters(self) -> JoinedParameters:
        """Return those of the projection to queries, keys and values."""
        weights, biases = self.joined_projections(self.paths.qkv)
        return {"w_qkv": weights, "b_qkv": biases}

    def joined_projections(self, paths: Sequence[str]
                           ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...] | None]:
        """Return weights and biases of projections that are one in the program.

        Raises:
            Unsupported: some have a bias, and some have none.
        """
        weights, biases = zip(*map(self.projection, paths), strict=True)
        if any(bias is None for bias in biases) != all(bias is None for bias in biases):
            raise Unsupported(f"of {', '.join(paths)} some have a bias: either all must have one, or none")
        return weights, None if biases[0] is None else biases

    def dropout_shares(self) -> tuple[float, ...]:
        """Return the probabilities of dropout, which are 0 of modules that are not in training mode."""
        shares = []
        for place in self.paths.dropouts:
            module = None if place is None else submodule(self.layer, place[0])
            is_active = module is not None and module.training and not isinstance(module, torch.nn.Identity)
            shares.append(float(attribute(module, place[1])) if is_active else 0.0)
        return tuple(shares)


@dataclass(frozen=True, eq=False)
class CheckedEncoder:
    """An encoder at a time when it was checked.

    Args:
        snapshot: of its modules; as long as they are unchanged, all this is valid.
        readers: of its layers.
        forms, inference_forms: of its layers in training, and in inference in the precision of the encoder.
        training_flags: attributes of modules whose training mode decides on dropout.
        adapters: projections with adapters, by their paths.
        refusal: why programs cannot compute it, if so.
    """

    snapshot: ModuleSnapshot
    readers: tuple[LayerReader, ...] = ()
    forms: tuple[EncoderShape, ...] = ()
    inference_forms: tuple[EncoderShape, ...] = ()
    training_flags: Sequence[Mapping[str, Any]] = ()
    adapters: Mapping[str, torch.nn.Module] = field(default_factory=dict)
    refusal: str | None = None

    @classmethod
    def of(cls, snapshot: ModuleSnapshot, readers: Sequence[LayerReader], precision: str) -> CheckedEncoder:
        """Read the forms of layers.

        Raises:
            Unsupported: there is no program for one; says why.
        """
        forms, same = [], {}
        for reader in readers:
            try:
                reader.parameters()
                forms.append(reader.form())
                check_precision(replace(forms[-1], precision=precision))
            except (Unsupported, ValueError) as error:
                raise Unsupported(f"{reader.path}: {error}" if reader.path else str(error)) from error
        forms = [same.setdefault(form, form) for form in forms]
        inference = [same.setdefault(each, each) for each in (replace(form, precision=precision) for form in forms)]
        flags = [vars(submodule(reader.layer, place[0])) for reader in readers for place in reader.paths.dropouts
                 if place is not None]
        adapters = {f"{reader.path}.{path}": module for reader in readers for path, module
                    in reader.layer.named_modules() if has_adapters(module)}
        return cls(snapshot, tuple(readers), tuple(forms), tuple(inference), flags, adapters)

    def check_call(self) -> None:
        """Check what may differ between calls of the same modules: types of parameters, and adapters.

        Raises:
            Unsupported: programs cannot compute the call; says why.
        """
        if self.refusal is not None:
            raise Unsupported(self.refusal)
        if not all([each is None or (each.dtype is torch.float32 and each.is_cpu)
                    for parameters in self.snapshot.parameters for each in parameters.values()]):
            for reader in self.readers:
                check_parameters(reader)
            raise Unsupported("a parameter is not of type torch.float32 on the CPU")
        for path, module in self.adapters.items():
            _check_active_adapters(module, path)


@dataclass(frozen=True, eq=False)
class _KeptWeights:
    """Packed weights of all layers, valid as long as `parameters` are unchanged, and the rest is this."""

    checked: CheckedEncoder
    parameters: CheckedLayers
    adapters: list[tuple[Any, ...]]
    tables: Mapping[str, torch.Tensor]
    layouts: list[Mapping[str, Weight]]
    weights: list[PackedProgramWeights]


class EncoderState:
    """What a packed encoder remembers between calls; copies of the encoder, and pickled ones, begin anew.

    Its attributes are replaced as a whole, so that several threads may call an encoder: at worst each packs once.
    """

    def __init__(self) -> None:
        self.checked: CheckedEncoder | None = None
        self.kept: _KeptWeights | None = None
        self.tables: tuple[Any, Mapping[str, torch.Tensor]] | None = None
        self.told: str | None = None  # why the last call was not computed by programs

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return EncoderState, ()

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights."""
        checked = self.checked
        return 0 if checked is None else sum(reader.packed.nbytes for reader in checked.readers)


class PackedEncoder:
    """Mixin of encoders whose layers run as programs, and that compute what programs cannot as their original class."""

    def take_snapshot(self) -> ModuleSnapshot:
        """Remember all modules whose change matters: by default all, which programs replace."""
        modules = [module for module in self.modules() if module is not self]
        return ModuleSnapshot(self, modules, modules)

    def check_layers(self) -> Sequence[LayerReader]:
        """Check that programs compute what the layers compute, and return readers of them.

        Raises:
            Unsupported: they do not; says why.
        """
        raise NotImplementedError

    def watched_values(self) -> tuple[Any, ...]:
        """Return further values whose change matters."""
        return ()

    def tables(self) -> Mapping[str, torch.Tensor]:
        """Return parameters that all layers share, by their names in programs; the same object while they are."""
        return NO_TABLES

    def state(self) -> EncoderState:
        """Return what the encoder remembers between calls."""
        return self.__dict__.get(STATE) or self.__dict__.setdefault(STATE, EncoderState())

    def checked(self) -> CheckedEncoder:
        """Check the encoder, unless nothing has changed since it was checked.

        Raises:
            Unsupported: programs cannot compute calls now; says why.
        """
        if _has_any_global_hook():
            raise Unsupported("hooks of all modules are registered, which packed programs do not call")
        if in_functorch():
            raise Unsupported("torch.func transforms the call, and programs have no rules for that")
        refuse_tracing()
        state = self.state()
        checked = state.checked
        if checked is None or not checked.snapshot.unchanged(self):
            state.kept = None
            snapshot = self.take_snapshot()  # first, so that the next call notices what changes meanwhile
            try:
                checked = CheckedEncoder.of(snapshot, self.check_layers(), self.__dict__.get(PRECISION, "float32"))
            except Unsupported as error:
                checked = CheckedEncoder(snapshot, refusal=str(error))
            state.checked = checked
        try:
            checked.check_call()
        except Unsupported:
            state.kept = None
            raise
        return checked

    def compute_as_before(self, reason: Unsupported, forward: Callable[..., Any], *arguments: Any, **options: Any
                          ) -> Any:
        """Call the forward of the original class, and log why, once for each reason in a row."""
        explanation = f"{type(self).__name__} computes this call without packing, as before: {reason}"
        state = self.state()
        if state.told != explanation:
            state.told = explanation
            log.warning(explanation)
        try:
            return forward(*arguments, **options)
        except Exception as error:
            error.add_note(explanation)
            raise


def run_layers(encoder: PackedEncoder, checked: CheckedEncoder, tokens: torch.Tensor, sequences: Sequences, *,
               causal: bool = False, by_token: Callable[[Any], Mapping[str, np.ndarray]] | None = None,
               record: Callable[[torch.Tensor], torch.Tensor] | None = None) -> torch.Tensor:
    """Run the layers of an encoder one after the other on (tokens, width).

    Args:
        by_token: returns further arrays by token that the program of a layer reads.
        record: called with the input of every layer, and returns what the layer reads.
    """
    tokens, tables = autocast_operands(tokens)[0].contiguous(), encoder.tables()
    has_dropout = any([flags["training"] for flags in checked.training_flags])
    call = _Call(sequences, causal, torch_threads(), has_dropout, by_token)
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        for reader, *forms in zip(checked.readers, checked.forms, checked.inference_forms, strict=True):
            tokens = tokens if record is None else record(tokens)
            tokens = _run_with_gradients(call, reader, forms, tokens, tables)
        return tokens
    schedule, runs = inference_schedule(len(tokens), call.threads), []
    layers = [call.layer(reader, form, schedule, len(tokens))
              for reader, form in zip(checked.readers, checked.inference_forms, strict=True)]
    packed = _packed_weights(encoder, checked, [layer for layer, _ in layers], tables)
    for (layer, arrays), weights in zip(layers, packed, strict=True):
        tokens = tokens if record is None else record(tokens)
        run, tokens = bind_layer(layer, TokenBatch(tokens, sequences.structure, None, arrays), weights)
        runs.append(run)
        if schedule is MANY:  # intermediate results of all layers would take much memory
            run_bound(runs)
            runs.clear()
    if runs:  # in one call: Python takes longer between programs, which empty its caches
        run_bound(runs)
    return tokens


def inference_schedule(tokens: int, threads: int) -> EncoderSchedule:
    """Return the schedule of a batch where no gradients are needed."""
    return MANY if tokens > FEW_TOKENS else _few_tokens_schedule(threads)


@cache
def _few_tokens_schedule(threads: int) -> EncoderSchedule:
    return replace(TRAINING, shared_panels=max(SHARED_PANELS // threads, 1))


@dataclass(frozen=True, eq=False)
class _Call:
    """What the layers of an encoder have in common in one call; other fields are arguments of `run_layers`."""

    sequences: Sequences
    causal: bool
    threads: int
    has_dropout: bool
    by_token: Callable[[Any], Mapping[str, np.ndarray]] | None

    def layer(self, reader: LayerReader, form: EncoderShape, schedule: EncoderSchedule, tokens: int
              ) -> tuple[Layer, dict[str, np.ndarray]]:
        """Return the program of a layer, and what it reads by token, with random numbers if there is dropout."""
        mask, shares = self.sequences.mask, reader.dropout_shares() if self.has_dropout else form.dropout
        arrays = {} if mask is None else {"mask": mask}
        if self.by_token is not None:
            arrays |= self.by_token(reader.layer)
        if any(shares):
            arrays["random"] = torch.randint(1 << 31, (tokens,)).numpy().astype(np.float64)
        if mask is not None or self.causal or any(shares):
            form = _form_of_call(form, mask is not None, self.causal, shares)
        return reader.compiled(form, schedule, self.threads), arrays


@cache
def _form_of_call(form: EncoderShape, is_masked: bool, is_causal: bool, shares: tuple[float, ...]) -> EncoderShape:
    return replace(form, masked=is_masked, causal=form.causal or is_causal, dropout=shares)


def _run_with_gradients(call: _Call, reader: LayerReader, forms: Sequence[EncoderShape], tokens: torch.Tensor,
                        tables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Run a layer where gradients may be needed, and as it is checkpointed by transformers.

    Args:
        forms: in training and in inference.
    """
    layer, count, structure = reader.layer, len(tokens), call.sequences.structure

    def run(tokens: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        parameters = {**reader.parameters(), **dict(zip(tables, values, strict=True))}
        if needs_derivatives([tokens, *flat_parameters(parameters)]):
            joined = {name: torch.cat(value) if isinstance(value, tuple) else value
                      for name, value in parameters.items()}
            program, arrays = call.layer(reader, forms[0], TRAINING, count)
            return call_layer(program, TokenBatch(tokens, structure, None, arrays), joined, reader.packed)
        program, arrays = call.layer(reader, forms[1], inference_schedule(count, call.threads), count)
        bound, result = bind_layer(program, TokenBatch(tokens, structure, None, arrays),
                                   reader.packed.sampled(program, parameters))
        run_bound([bound])
        return result

    if torch.is_grad_enabled() and layer.training and getattr(layer, "gradient_checkpointing", False):
        return layer._gradient_checkpointing_func(run, tokens, *tables.values())
    return run(tokens, *tables.values())


def _packed_weights(encoder: PackedEncoder, checked: CheckedEncoder, layers: Sequence[Layer],
                    tables: Mapping[str, torch.Tensor]) -> Sequence[PackedProgramWeights]:
    """Return the weights of all layers, which are packed again only if a parameter has changed."""
    state, layouts = encoder.state(), [layer.forward_weights for layer in layers]
    kept, adapters = state.kept, list(map(adapter_flags, checked.adapters.values()))
    if kept is not None and kept.checked is checked and kept.layouts == layouts and kept.tables is tables and (
            kept.adapters == adapters and kept.parameters.unchanged()):
        return kept.weights
    modules, weights = [reader.layer for reader in checked.readers], []
    parameters = CheckedLayers.of(modules)  # first, so that the next call notices what is written meanwhile
    for reader, layer in zip(checked.readers, layers, strict=True):
        weights.append(reader.packed.sampled(layer, {**reader.parameters(), **tables}))
    state.kept = None if parameters is None else _KeptWeights(
        checked, parameters, adapters, tables, layouts, weights)
    return weights


def _adapted_weight(module: Any, path: str, packed: PackedWeights) -> torch.Tensor:
    """Return the weight plus those of active LoRA adapters; the same tensor as long as neither changes.

    Source: Hu et al. 2021, W + s B A.
    """
    base = module.base_layer.weight
    names = _active_adapters(module)
    if not names:
        return base
    factors = [part[name].weight for name in names for part in (module.lora_A, module.lora_B)]
    if needs_derivatives([base, *factors]):
        return sum(map(module.get_delta_weight, names), base)
    key = (base.data_ptr(), sampled_hash(base), fingerprint_tensors(factors), *[module.scaling[name] for name in names])
    kept = packed.computed.get(path)
    if kept is None or kept[0] != key:
        kept = packed.computed[path] = key, sum(map(module.get_delta_weight, names), base)
    return kept[1]


def _active_adapters(module: Any) -> list[str]:
    """Return the names of the adapters that add to the weight of a module."""
    return [] if module.disable_adapters or module.merged else [
        name for name in module.active_adapters if name in module.lora_A]


def _check_active_adapters(module: Any, path: str) -> None:
    """Check that adapters only add to the weight.

    Raises:
        Unsupported: one does more; says what.
    """
    for name in _active_adapters(module):
        kind = type(module.lora_variant[name]).__name__ if name in module.lora_variant else None
        share, factors = getattr(module.lora_dropout[name], "p", 0.0), (module.lora_A[name], module.lora_B[name])
        kind = kind or ("a bias" if any(factor.bias is not None for factor in factors) else None)
        if kind or (module.training and share):
            why, remedy = (kind, "") if kind else (f"dropout {share} of its inputs in training",
                                                   "call model.eval() for inference, train with lora_dropout=0, ")
            raise Unsupported(f"{path}: adapter {name!r} has {why}, and packed layers add adapters to weights: {remedy}"
                              "merge it, or call sparloom.nn.unpack(model) first")


def check_parameters(reader: LayerReader) -> None:
    """Check that programs can read the parameters of a layer.

    Raises:
        Unsupported: one is not float32, or not on the CPU.
    """
    for parameter in reader.layer.parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            name = next(name for name, each in reader.layer.named_parameters() if each is parameter)
            raise Unsupported(f"{reader.path}.{name} is {parameter.dtype} on {parameter.device}: packed layers compute "
                              "in torch.float32 on the CPU, and read such parameters in every precision: call "
                              "pack(model.float().cpu(), precision=...)")


def submodule(module: torch.nn.Module, path: str) -> torch.nn.Module:
    """Look up a submodule by its path; unlike `get_submodule`, without the checks that each call would pay for."""
    for name in _names(path):
        module = module._modules[name]
    return module


def attribute(module: torch.nn.Module, path: str) -> Any:
    """Look up an attribute of a submodule, or a submodule that may be a function."""
    *parents, name = _names(path)
    return getattr(submodule(module, ".".join(parents)) if parents else module, name)


@cache
def _names(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))
