"""Encoder layers of models that run as one ragged program each: where their parameters are, and how they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

from sparloom.errors import Unsupported
from sparloom.nn.batches import Sequences, TokenBatch, WaitingLayers
from sparloom.nn.checked_layers import CheckedLayer, CheckedLayers
from sparloom.nn.content_hash import fingerprint_tensors, sampled_hash
from sparloom.nn.custom_ops import needs_derivatives
from sparloom.nn.ragged_layers import activation_name, norm_gain
from sparloom.nn.ragged_programs import JoinedParameters, PackedProgramWeights, PackedWeights, call_layer
from sparloom.nn.torch_integration import (
    autocast_operands,
    eager,
    has_default_forward,
    run_weight_hooks,
    torch_threads,
)
from sparloom.ragged import EncoderSchedule, EncoderShape, Layer, compiled_encoder_layer, run_bound

PRECISION, PACKED_WEIGHTS = "_sparloom_precision", "_sparloom_packed"  # attributes of packed modules
FEW_TOKENS = 1024  # of a batch, up to which threads share columns: measured with the sizes of MiniLM and BERT-base
SHARED_PANELS = 12  # of weights, which threads share: the smallest products of these models have as many
TRAINING = EncoderSchedule(depth=768)  # products of the width of BERT-base are not cut
MANY = replace(TRAINING, rows=96)
ACTIVATION_CLASSES: Mapping[str, str] = {  # of transformers; others are those of torch
    "GELUActivation": "gelu", "NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh",
    "GELUTanh": "gelu_tanh", "SiLUActivation": "silu"}


@dataclass(frozen=True)
class LayerPaths:
    """Where an encoder layer has its modules, by their paths.

    Args:
        qkv: torch.nn.Linear of queries, keys and values; none if they are no such modules.
        out: of the result of attention.
        into, up, back: of the feed-forward network; `up` if it is gated by a module of its own.
        norms: after, or before, attention and the feed-forward network; a torch.nn.Identity is none.
        activation: of the feed-forward network, a module or a function.
    """

    qkv: tuple[str, ...]
    out: str
    into: str
    back: str
    norms: tuple[str, str]
    activation: str
    up: str | None = None

    @property
    def linears(self) -> tuple[str, ...]:
        return (*self.qkv, self.out, self.into, self.back, *(() if self.up is None else (self.up,)))


class PackedLayer:
    """Mixin of encoder layers: called with `sequences`, the layer runs as one program on packed tokens.

    Called without, it computes what its class in the original library computes.
    """

    paths: ClassVar[LayerPaths]
    norm_class: ClassVar[type[torch.nn.Module]] = torch.nn.LayerNorm

    def count_heads(self) -> int:
        """Return the number of heads."""
        raise NotImplementedError

    def form(self) -> EncoderShape:
        """Describe the layer.

        Raises:
            Unsupported: there is no program for it; says why.
        """
        epsilons = {path: self.epsilon(norm) for path, norm in self.norms()}
        if len(set(epsilons.values())) > 1:
            raise Unsupported(f"norms have different epsilons, {epsilons}: they must be equal")
        back = submodule(self, self.paths.back)
        return _shape(back.out_features, self.count_heads(), back.in_features, next(iter(epsilons.values())),
                      named_activation(_activation(self, self.paths.activation)))

    def norms(self) -> list[tuple[str, torch.nn.Module]]:
        """Return the paths and modules of the norms that there are."""
        found = [(path, submodule(self, path)) for path in self.paths.norms]
        return [(path, norm) for path, norm in found if not isinstance(norm, torch.nn.Identity)]

    def called_modules(self) -> list[torch.nn.Module]:
        """Return the modules whose parameters the program reads instead of calling them."""
        return [*(submodule(self, path) for path in self.paths.linears), *(norm for _, norm in self.norms())]

    def epsilon(self, norm: Any) -> float:
        """Return what a norm adds to variances."""
        return norm.eps

    def program_parameters(self) -> JoinedParameters:
        """Return the parameters by their names in the program."""
        paths, found = self.paths, dict(self.projection_parameters())
        found |= self.network_parameters()
        for name, path in (("out", paths.out), ("back", paths.back)):
            found[f"w_{name}"], found[f"b_{name}"] = self.projection(path)
        for path, norm in self.norms():
            number = 1 + paths.norms.index(path)
            gain = parameter(norm, "weight")
            found[f"gain_{number}"] = norm_gain(norm) if gain is None else gain
            found[f"shift_{number}"] = parameter(norm, "bias")
        return found

    def network_parameters(self) -> JoinedParameters:
        """Return those of the projections into the feed-forward network."""
        paths, found = {"in": self.paths.into, "up": self.paths.up}, {}
        for name, path in paths.items():
            if path is not None:
                found[f"w_{name}"], found[f"b_{name}"] = self.projection(path)
        return found

    def projection(self, path: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the weight and the bias of a torch.nn.Linear, with the adapters that are active.

        Raises:
            Unsupported: adapters are of a kind that does not only add to the weight.
        """
        module = submodule(self, path)
        if not has_adapters(module):
            return parameter(module, "weight"), parameter(module, "bias")
        return _adapted_weight(module, path, packed_weights(self)), parameter(module.base_layer, "bias")

    def projection_parameters(self) -> JoinedParameters:
        """Return those of the projection to queries, keys and values."""
        weights, biases = zip(*map(self.projection, self.paths.qkv), strict=True)
        if any(bias is None for bias in biases) != all(bias is None for bias in biases):
            raise Unsupported(f"of {', '.join(self.paths.qkv)} some have a bias: either all must have one, or none")
        return {"w_qkv": weights, "b_qkv": None if biases[0] is None else biases}

    def dropout_shares(self) -> tuple[float, float, float, float]:
        """Return the probabilities of dropout in training, see `EncoderShape`."""
        raise NotImplementedError

    def check(self) -> None:
        """Check that the layer can run as a program.

        Raises:
            Unsupported: it cannot; says why.
        """
        for path in self.paths.linears:
            module = without_adapters(submodule(self, path))
            if not isinstance(module, torch.nn.Linear) or type(module).forward is not torch.nn.Linear.forward:
                raise Unsupported(f"{path} is a {type(module).__name__}, not a torch.nn.Linear: merge adapters into "
                                  "the model, or pass it before it is quantised")
        for path, norm in self.norms():
            if type(norm).forward is not self.norm_class.forward:
                raise Unsupported(f"{path} is a {type(norm).__name__}, not a {self.norm_class.__name__}")
        check_parameters(self)
        self.form()
        self.program_parameters()

    def forward(self, tokens: torch.Tensor, *arguments: Any, sequences: Sequences | None = None,
                record: list[torch.Tensor] | None = None, **options: Any) -> Any:
        """Apply the layer to (1, tokens, width) packed tokens.

        Args:
            record: list to which the tokens are appended.
        """
        if sequences is None:
            return super().forward(tokens, *arguments, **options)
        if record is not None:
            record.append(tokens)
        return run_packed(self, self.form(), tokens[0], sequences, self.by_token(**options))[None]

    def by_token(self, **options: Any) -> Mapping[str, np.ndarray]:
        """Return further arrays by token that the program reads, from the arguments of the layer."""
        return {}


@eager
def run_packed(module: Any, form: EncoderShape, tokens: torch.Tensor, sequences: Sequences,
               others: Mapping[str, np.ndarray] = MappingProxyType({})) -> torch.Tensor:
    """Run the program of a layer on (tokens, width).

    Args:
        others: further arrays by token that the program reads, by name.

    Raises:
        RuntimeError: a submodule has hooks or was replaced, which would have no effect.
    """
    if sequences.waiting is None or id(module) not in sequences.waiting.known:
        _check_all_hooks(module)
    if sequences.mask is not None:
        form, others = replace(form, masked=True), {**others, "mask": sequences.mask}
    shares = module.dropout_shares() if module.training else ()
    if any(shares):
        random = torch.randint(1 << 31, (len(tokens),)).numpy().astype(np.float64)
        form, others = replace(form, dropout=tuple(map(float, shares))), {**others, "random": random}
    return run_program(module, compiled_encoder_layer, form, tokens, sequences, lambda: {
        **module.program_parameters(), **sequences.tables}, others)


def _check_all_hooks(module: Any) -> None:
    """Check the modules whose parameters the program of a layer reads instead of calling them."""
    linears = [(path, submodule(module, path)) for path in module.paths.linears]
    _check_hooks(torch.nn.Linear, [(path, without_adapters(each)) for path, each in linears])
    for path, each in linears:
        if has_adapters(each):
            _check_hooks(type(each), [(path, each)])
            _check_hooks(torch.nn.Linear, [(f"{path}.{part}.{name}", getattr(each, part)[name])
                                           for part in ("lora_A", "lora_B") for name in getattr(each, part)])
    _check_hooks(module.norm_class, module.norms())


def run_layers(layers: Iterable[torch.nn.Module], tokens: torch.Tensor, *, sequences: Sequences, **options: Any
               ) -> torch.Tensor:
    """Call layers one after the other on (1, tokens, width).

    For few tokens without gradients, all layers are checked before the first one runs, and run in one call: checks in
    Python take longer between programs that empty the caches. If nothing has changed since the last such call, there is
    one check for all layers.

    Args:
        options: further arguments of all layers.
    """
    layers = list(layers)
    together = tokens.shape[1] <= FEW_TOKENS and not torch.is_grad_enabled() and not (
        torch.is_autocast_enabled("cpu") or forward_ad._current_level >= 0 or _has_any_global_hook()) and all(
        isinstance(layer, PackedLayer) and has_default_forward(layer, type(layer)) for layer in layers)
    if not (together and layers):
        for layer in layers:
            tokens = layer(tokens, sequences=sequences, **options)
        return tokens
    first = packed_weights(layers[0])
    waiting = WaitingLayers(first.checked.weights if first.checked is not None and first.checked.unchanged(layers)
                            else {})
    sequences = replace(sequences, waiting=waiting)
    for layer in layers:
        tokens = layer(tokens, sequences=sequences, **options)
    sequences.run_waiting()
    if waiting.found:
        first.checked = CheckedLayers.of(waiting.found) if len(waiting.found) == len(layers) else None
    return tokens


def run_program(module: torch.nn.Module, compiled: Callable[..., Layer], form: EncoderShape, tokens: torch.Tensor,
                sequences: Sequences, parameters: Callable[[], JoinedParameters],
                others: Mapping[str, np.ndarray] = MappingProxyType({})) -> torch.Tensor:
    """Run a program on (tokens, width): in float32 if gradients are needed, else in the precision of the module.

    Args:
        module: keeps the packed weights.
        compiled: returns the layer of a form, a schedule and a number of threads.
        parameters: returns the parameters by their names in the program.
        others: see `run_packed`.
    """
    threads = torch_threads()
    tokens, = autocast_operands(tokens)
    batch = TokenBatch(tokens.contiguous(), sequences.structure, None, others)
    packed, waiting = packed_weights(module), sequences.waiting
    layout, weights = _known_weights(module, waiting)
    given = parameters() if weights is None else {}
    if needs_derivatives([tokens, *flat_parameters(given)]):
        sequences.run_waiting()
        joined = {name: torch.cat(value) if isinstance(value, tuple) else value for name, value in given.items()}
        return call_layer(compiled(form, TRAINING, threads), batch, joined, packed)
    precision = module.__dict__.get(PRECISION, form.precision)
    form = form if precision == form.precision else replace(form, precision=precision)
    layer = compiled(form, few_tokens_schedule(threads) if len(tokens) <= FEW_TOKENS else MANY, threads)
    if weights is None or layout != layer.forward_layout:
        given = given or parameters()
        weights = packed.sampled(layer, given)
        if waiting is not None and isinstance(module, PackedLayer):
            waiting.found.append(CheckedLayer(module, module.called_modules(), flat_parameters(given),
                                              layer.forward_layout, weights))
    out = torch.empty_like(batch.x)
    run = layer.bind(batch.structure, batch.arrays(batch.x), weights.fixed_for(layer, batch.structure), out.numpy())
    run.kept.append(weights)
    if waiting is None:
        run_bound([run])
    else:
        waiting.runs.append(run)
    return out


def _known_weights(
    module: torch.nn.Module, waiting: WaitingLayers | None,
) -> tuple[int, PackedProgramWeights] | tuple[None, None]:
    """Return packed weights that need no check, and their layout, if there are any."""
    found = None if waiting is None else waiting.known.get(id(module))
    weights = None if found is None else found[1]()
    return (None, None) if weights is None else (found[0], weights)


@cache
def _shape(width: int, heads: int, hidden: int, epsilon: float, activation: str) -> EncoderShape:
    return EncoderShape(width, heads, hidden, epsilon, activation=activation)


@cache
def few_tokens_schedule(threads: int) -> EncoderSchedule:
    """Return the schedule of batches with few tokens."""
    return replace(TRAINING, shared_panels=max(SHARED_PANELS // threads, 1))


def packed_weights(module: torch.nn.Module) -> PackedWeights:
    """Return the packed weights of a module, which keeps them."""
    return module.__dict__.setdefault(PACKED_WEIGHTS, PackedWeights())


def has_adapters(module: torch.nn.Module) -> bool:
    """Tell whether a module is a torch.nn.Linear to which PEFT has added LoRA adapters."""
    kind = type(module)
    return kind is not torch.nn.Linear and (kind.__module__, kind.__name__) == ("peft.tuners.lora.layer", "Linear")


def without_adapters(module: torch.nn.Module) -> torch.nn.Module:
    """Return the torch.nn.Linear of a module that may have adapters."""
    return module.base_layer if has_adapters(module) else module


def _adapted_weight(module: Any, path: str, packed: PackedWeights) -> torch.Tensor:
    """Return the weight plus those of active LoRA adapters; the same tensor as long as neither changes.

    Source: Hu et al. 2021, W + s B A.
    """
    base = module.base_layer.weight
    names = [name for name in module.active_adapters if name in module.lora_A]
    if module.disable_adapters or module.merged or not names:
        return base
    for name in names:
        kind = type(module.lora_variant[name]).__name__ if name in module.lora_variant else None
        share = getattr(module.lora_dropout[name], "p", 0.0)
        kind = kind or ("a bias" if module.lora_bias[name] else None)
        if kind or (module.training and share):
            why, remedy = (kind, "") if kind else (f"dropout {share} of its inputs in training",
                                                   "call model.eval() for inference, train with lora_dropout=0, ")
            raise Unsupported(f"{path}: adapter {name!r} has {why}, and packed layers add adapters to weights: {remedy}"
                              "merge it, or call sparloom.nn.unpack(model) first")
    factors = [part[name].weight for name in names for part in (module.lora_A, module.lora_B)]
    if needs_derivatives([base, *factors]):
        return sum(map(module.get_delta_weight, names), base)
    key = (base.data_ptr(), sampled_hash(base), fingerprint_tensors(factors), *[module.scaling[name] for name in names])
    kept = packed.computed.get(path)
    if kept is None or kept[0] != key:
        kept = packed.computed[path] = key, sum(map(module.get_delta_weight, names), base)
    return kept[1]


def _check_hooks(kind: type[torch.nn.Module], modules: list[tuple[str, torch.nn.Module]]) -> None:
    """Run hooks that compute weights; refuse others, and modules that were replaced."""
    for path, module in modules:
        if not has_default_forward(module, kind):
            run_weight_hooks(kind, **{path: module})


def check_parameters(module: torch.nn.Module) -> None:
    """Check that programs can read the parameters of a module.

    Raises:
        Unsupported: one is not float32, or not on the CPU.
    """
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise Unsupported(f"{name} is {parameter.dtype} on {parameter.device}: packed layers compute in "
                              "torch.float32 on the CPU, and read such parameters in every precision: call "
                              "pack(model.float().cpu(), precision=...)")


def flat_parameters(parameters: JoinedParameters) -> list[torch.Tensor]:
    """Return all tensors among the parameters of a program."""
    return [tensor for value in parameters.values()
            for tensor in (value if isinstance(value, tuple) else (value,)) if tensor is not None]


def named_activation(activation: Any) -> str:
    """Return the name of an activation of torch or transformers.

    Raises:
        Unsupported: there is no such activation.
    """
    name = ACTIVATION_CLASSES.get(type(activation).__name__)
    if name is not None and type(activation).__module__.startswith("transformers."):
        return name
    try:
        return activation_name(activation)
    except ValueError as error:
        raise Unsupported(str(error)) from error


def submodule(module: torch.nn.Module, path: str) -> torch.nn.Module:
    """Look up a submodule by its path; unlike `get_submodule`, without the checks that each call would pay for."""
    for name in _names(path):
        found = module._modules.get(name)
        module = getattr(module, name) if found is None else found
    return module


def parameter(module: torch.nn.Module, name: str) -> torch.Tensor | None:
    """Return a parameter, None if there is none; computed ones are computed."""
    found = module._parameters.get(name)
    return getattr(module, name, None) if found is None else found


def _activation(module: torch.nn.Module, path: str) -> Any:
    """Return an activation, which may be a function."""
    *parents, name = _names(path)
    for each in parents:
        module = module._modules[each]
    return getattr(module, name)


@cache
def _names(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))
