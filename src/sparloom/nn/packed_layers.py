"""Encoder layers of models that run as one ragged program each: where their parameters are, and how they are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sparloom.errors import Unsupported
from sparloom.nn.batches import TokenBatch
from sparloom.nn.custom_ops import needs_derivatives
from sparloom.nn.ragged_layers import activation_name, norm_gain
from sparloom.nn.ragged_programs import JoinedParameters, PackedWeights, call_layer
from sparloom.nn.torch_integration import eager, run_weight_hooks, torch_threads
from sparloom.ragged import EncoderSchedule, EncoderShape, Structure, compiled_encoder_layer

ACTIVATION_CLASSES: Mapping[str, str] = {  # of transformers; others are those of torch
    "GELUActivation": "gelu", "NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh",
    "GELUTanh": "gelu_tanh", "SiLUActivation": "silu"}


@dataclass(frozen=True)
class LayerPaths:
    """Where an encoder layer has its modules, by their paths.

    Args:
        qkv: torch.nn.Linear of queries, keys and values; none if they are no such modules.
        out: of the result of attention.
        into, back: of the feed-forward network.
        norms: torch.nn.LayerNorm after, or before, attention and the feed-forward network.
        activation: of the feed-forward network, a module or a function.
    """

    qkv: tuple[str, ...]
    out: str
    into: str
    back: str
    norms: tuple[str, str]
    activation: str

    @property
    def linears(self) -> tuple[str, ...]:
        return (*self.qkv, self.out, self.into, self.back)


class PackedLayer:
    """Mixin of encoder layers: called with `sequences`, the layer runs as one program on packed tokens.

    Called without, it computes what its class in the original library computes.
    """

    paths: ClassVar[LayerPaths]

    def count_heads(self) -> int:
        """Return the number of heads."""
        raise NotImplementedError

    def form(self) -> EncoderShape:
        """Describe the layer.

        Raises:
            Unsupported: there is no program for it; says why.
        """
        first, second = (self.get_submodule(path).eps for path in self.paths.norms)
        if first != second:
            raise Unsupported(f"{self.paths.norms[0]} has eps {first} and {self.paths.norms[1]} {second}: both must be "
                              "equal")
        into = self.get_submodule(self.paths.into)
        return EncoderShape(into.in_features, self.count_heads(), into.out_features, first,
                            activation=named_activation(_attribute(self, self.paths.activation)))

    def program_parameters(self) -> JoinedParameters:
        """Return the parameters by their names in the program."""
        paths, found = self.paths, dict(self.projection_parameters())
        for name, path in (("out", paths.out), ("in", paths.into), ("back", paths.back)):
            module = self.get_submodule(path)
            found |= {f"w_{name}": module.weight, f"b_{name}": module.bias}
        for number, path in enumerate(paths.norms, start=1):
            norm = self.get_submodule(path)
            found |= {f"gain_{number}": norm_gain(norm), f"shift_{number}": norm.bias}
        return found

    def projection_parameters(self) -> JoinedParameters:
        """Return those of the projection to queries, keys and values."""
        modules = [self.get_submodule(path) for path in self.paths.qkv]
        biases = [module.bias for module in modules]
        if any(bias is None for bias in biases) != all(bias is None for bias in biases):
            raise Unsupported(f"of {', '.join(self.paths.qkv)} some have a bias: either all must have one, or none")
        return {"w_qkv": tuple([module.weight for module in modules]),
                "b_qkv": None if biases[0] is None else tuple(biases)}

    def dropouts(self) -> Iterator[tuple[str, float]]:
        """Yield the names and probabilities of all dropout."""
        return ((name, module.p) for name, module in self.named_modules() if isinstance(module, torch.nn.Dropout))

    def check(self) -> None:
        """Check that the layer can run as a program.

        Raises:
            Unsupported: it cannot; says why.
        """
        for path in self.paths.linears:
            module = self.get_submodule(path)
            if not isinstance(module, torch.nn.Linear) or type(module).forward is not torch.nn.Linear.forward:
                raise Unsupported(f"{path} is a {type(module).__name__}, not a torch.nn.Linear: merge adapters into "
                                  "the model, or pass it before it is quantised")
        for path in self.paths.norms:
            module = self.get_submodule(path)
            if type(module).forward is not torch.nn.LayerNorm.forward:
                raise Unsupported(f"{path} is a {type(module).__name__}, not a torch.nn.LayerNorm")
        for name, parameter in self.named_parameters():
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise Unsupported(f"{name} is {parameter.dtype} on {parameter.device}: packed layers compute in "
                                  "torch.float32 on the CPU: pass model.float().cpu()")
        self.form()
        self.program_parameters()

    def forward(self, tokens: torch.Tensor, *arguments: Any, sequences: Structure | None = None,
                record: list[torch.Tensor] | None = None, **options: Any) -> Any:
        """Apply the layer to (1, tokens, width) packed tokens.

        Args:
            record: list to which the tokens are appended.
        """
        if sequences is None:
            return super().forward(tokens, *arguments, **options)
        if record is not None:
            record.append(tokens)
        return run_packed(self, self.form(), tokens[0], sequences)[None]


@eager
def run_packed(module: Any, form: EncoderShape, tokens: torch.Tensor, sequences: Structure) -> torch.Tensor:
    """Run the program of a layer on (tokens, width).

    Raises:
        Unsupported: in training, the layer has dropout.
        RuntimeError: a submodule has hooks or was replaced, which would have no effect.
    """
    if module.training:
        for name, share in module.dropouts():
            if share > 0:
                raise Unsupported(f"{name} has p={share} in training: packed layers have no dropout: set p to 0, or "
                                  "call model.eval()")
    paths = module.paths
    run_weight_hooks(torch.nn.Linear, **{path: module.get_submodule(path) for path in paths.linears})
    run_weight_hooks(torch.nn.LayerNorm, **{path: module.get_submodule(path) for path in paths.norms})
    layer = compiled_encoder_layer(form, EncoderSchedule(), torch_threads())
    batch, parameters = TokenBatch(tokens.contiguous(), sequences), module.program_parameters()
    packed = module.__dict__.setdefault("_sparloom_packed", PackedWeights())
    if needs_derivatives([tokens, *flat_parameters(parameters)]):
        joined = {name: torch.cat(value) if isinstance(value, tuple) else value for name, value in parameters.items()}
        return call_layer(layer, batch, joined, packed)
    weights = packed.sampled(layer, parameters)  # kept alive while the program reads it
    out = torch.empty_like(batch.x)
    layer.infer(sequences, batch.x.detach().numpy(), weights.weights, out.numpy())
    return out


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


def _attribute(module: torch.nn.Module, path: str) -> Any:
    *parents, name = path.split(".")
    return getattr(module.get_submodule(".".join(parents)), name)
