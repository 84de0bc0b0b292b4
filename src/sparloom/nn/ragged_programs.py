"""Run ragged programs as functions of tensors: schedules, packed weights and autograd functions.

There are first gradients only. The autograd node that computes them refuses to be differentiated, so that requests for
second derivatives or forward mode fail wherever they come from: create_graph=True, torch.autograd.functional or
torch.func.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
import torch

from sparloom.jit import address_of, aligned
from sparloom.nn.batches import TokenBatch
from sparloom.nn.content_hash import contiguous_array, fingerprint, sampled_hash
from sparloom.nn.custom_ops import in_functorch, needs_derivatives, refuse_legacy_vmap, vmap_by_loop
from sparloom.nn.torch_integration import autocast_operands, torch_threads
from sparloom.ragged import ACTIVATIONS, BoundRun, Layer, Structure, Weight, run_bound
from sparloom.tuning import RaggedOperator, choose_schedule

S = TypeVar("S")
Schedule = S | Literal["auto"] | None

_chosen: dict[tuple[object, ...], Any] = {}

LINE_BYTES = 64  # weights start at a cache line
FORWARD_ARGUMENTS = 4  # of _RaggedFunction before x and the parameters
PUBLIC_NAMES = {"encoder": "TransformerEncoderLayer", "attention": "MultiheadAttention",
                "cross_attention": "MultiheadAttention", "layer_norm": "LayerNorm",
                "softmax": "ragged_softmax"}
Parameters = Mapping[str, torch.Tensor | None]
JoinedParameters = Mapping[str, torch.Tensor | tuple[torch.Tensor, ...] | None]
"""Several tensors are joined along their first dimension."""

Weights = Mapping[str, Weight]
SAMPLED_BLOCKS = 1  # of 4 KiB, of each parameter whose writes torch counts; reading them from memory takes time
Tensors = tuple[torch.Tensor, ...]

FUNCTIONS = {torch.relu: "relu", torch.nn.functional.relu: "relu", torch.nn.functional.gelu: "gelu",
             torch.nn.functional.silu: "silu"}
MODULES = {torch.nn.ReLU: "relu", torch.nn.SiLU: "silu"}
APPROXIMATE = {"none": "gelu", "tanh": "gelu_tanh"}  # of torch.nn.GELU
TRANSFORMERS_MODULES = {"GELUActivation": "gelu", "NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh",
                        "GELUTanh": "gelu_tanh", "SiLUActivation": "silu"}


def validate_schedule(schedule: Schedule[S], kind: type[S]) -> S | Literal["auto"]:
    """Replace None by the default schedule; refuse schedules of another kind."""
    if schedule is None:
        return kind()
    if schedule == "auto" or isinstance(schedule, kind):
        return schedule
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise ValueError(f"schedule={schedule!r}: expected {article} {kind.__name__}, 'auto', or None for the default")


def _resolved(
    schedule: S | Literal["auto"], operator: Callable[[], RaggedOperator] | None, structure: Structure, threads: int,
) -> S:
    """Return the schedule; "auto" searches for it the first time that a machine sees batches like this one."""
    if schedule != "auto":
        return schedule
    searched = operator()
    key = (searched.name, tuple(searched.alike(structure).items()), threads)
    if key not in _chosen:
        _chosen[key] = searched.schedule(choose_schedule(searched, structure, threads=threads).config)
    return _chosen[key]


@dataclass(frozen=True, eq=False)
class PackedProgramWeights:
    """Weights that a program reads; they do not change while this object, its `memory` or a view of that lives.

    Args:
        content: fingerprint of the parameters, or what else tells whether they have changed.
        memory: all weights, concatenated.
        weights: views of it, by name.
        addresses: of these.
    """

    content: Hashable
    memory: np.ndarray
    weights: Mapping[str, np.ndarray]
    addresses: Mapping[str, int]


class PackedWeights:
    """Packs the parameters of one module for the programs of a layer.

    Every call compares the content of the parameters with what was packed, so that no write is missed, however it was
    made. Memory that a running call or a later backward pass reads is never overwritten; new memory is allocated
    instead. Copies of the module pack again. No lock is needed: at worst, concurrent calls pack twice.
    """

    def __init__(self) -> None:
        self.computed: dict[str, tuple[Hashable, torch.Tensor]] = {}  # parameters made of others, and what they were
        self._current: dict[int, PackedProgramWeights] = {}  # by the identity of what layers of a module share
        self._spare: dict[int, list[np.ndarray]] = {}

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return PackedWeights, ()

    @property
    def nbytes(self) -> int:
        """Bytes of all packed weights."""
        return sum(packed.memory.nbytes for packed in list(self._current.values()))

    def inference(self, layer: Layer, parameters: Parameters) -> PackedProgramWeights:
        """Return the weights of the forward programs.

        Args:
            parameters: by the names of the layer; None stands for zeros.

        Raises:
            TypeError, ValueError: one is not float32, or not on the CPU.
        """
        arrays = _weight_arrays(layer, parameters)
        return self._packed(layer.forward_weights, arrays, _content(arrays))

    def sampled(self, layer: Layer, parameters: JoinedParameters) -> PackedProgramWeights:
        """Return the weights of the forward programs, as `inference`, but read little of parameters that are packed.

        Writes are detected that torch counts, and those that change one of the sampled blocks, such as the writes of
        optimisers to whole parameters.
        """
        flat = flat_parameters(parameters)
        content = (tuple([tensor.data_ptr() for tensor in flat]), sampled_hash(*flat, blocks=SAMPLED_BLOCKS))
        current = self._current.get(id(layer.forward_weights))
        if current is not None and current.content == content:
            return current
        arrays = {name: np.concatenate([_array(name, part) for part in value]) if isinstance(value, tuple)
                  else _array(name, value) for name, value in parameters.items()}
        return self._packed(layer.forward_weights, arrays, content)

    def training(self, layer: Layer, parameters: Parameters) -> tuple[PackedProgramWeights, PackedProgramWeights]:
        """Return the weights of the forward programs and of the backward program, as `inference`."""
        arrays = _weight_arrays(layer, parameters)
        content = _content(arrays)
        return tuple(self._packed(each, arrays, content) for each in (layer.forward_weights, layer.backward_weights))

    def _packed(self, weights: Weights, arrays: Mapping[str, np.ndarray | None], content: Hashable
                ) -> PackedProgramWeights:
        key = id(weights)
        current = self._current.get(key)
        if current is not None and current.content == content:
            return current
        del current
        self._current.pop(key, None)  # its memory becomes spare now unless a call still reads it
        memory = self._memory(key, sum(map(_padded_size, weights.values())))
        views = packed_views(weights, memory)
        Weight.pack_all(weights, arrays, views)
        packed = self._current[key] = PackedProgramWeights(
            content, memory, views, {name: address_of(view) for name, view in views.items()})
        return packed

    def _memory(self, key: int, size: int) -> np.ndarray:
        """Allocate memory that becomes spare when the returned array, and all views of it, are freed."""
        spare = self._spare.setdefault(key, [])
        try:
            whole = spare.pop()
        except IndexError:
            whole = aligned((size,), np.uint8)
        memory = np.frombuffer(memoryview(whole), np.uint8)  # views keep this array alive, not `whole`
        weakref.finalize(memory, _return_memory, spare, whole).atexit = False
        return memory


def flat_parameters(parameters: JoinedParameters) -> list[torch.Tensor]:
    """Return all tensors among the parameters of a program."""
    return [tensor for value in parameters.values()
            for tensor in (value if isinstance(value, tuple) else (value,)) if tensor is not None]


def packed_views(weights: Weights, memory: np.ndarray) -> dict[str, np.ndarray]:
    """Return views of the weights in the memory of a `PackedProgramWeights`, by name."""
    views, begin = {}, 0
    for name, weight in weights.items():
        views[name] = memory[begin : begin + weight.elements * weight.dtype.itemsize].view(weight.dtype)
        begin += _padded_size(weight)
    return views


def _padded_size(weight: Weight) -> int:
    return -(-weight.elements * weight.dtype.itemsize // LINE_BYTES) * LINE_BYTES


def _return_memory(spare: list[np.ndarray], memory: np.ndarray) -> None:
    if not spare:
        spare.append(memory)


def _content(arrays: Mapping[str, np.ndarray | None]) -> tuple[int, int]:
    return fingerprint([np.zeros(0, np.float32) if array is None else array for array in arrays.values()])


def _weight_arrays(layer: Layer, parameters: Parameters) -> dict[str, np.ndarray | None]:
    return {name: _array(name, parameter) for name, parameter in parameters.items() if name not in layer.by_token}


def _token_arrays(layer: Layer, batch: TokenBatch, x: torch.Tensor, parameters: Parameters) -> dict[str, np.ndarray]:
    """Return what a program reads by token: x, what belongs to the batch, and such parameters."""
    return {**batch.arrays(x), **{name: _array(name, tensor) for name, tensor in parameters.items()
                                  if name in layer.by_token}}


def _array(name: str, parameter: torch.Tensor | None) -> np.ndarray | None:
    if parameter is None:
        return None
    if parameter.device.type != "cpu":
        raise ValueError(f"parameter {name} is on {parameter.device}: this layer supports the CPU only: use "
                         "layer.cpu()")
    if parameter.dtype != torch.float32:
        raise TypeError(f"parameter {name} is {parameter.dtype}, but this layer computes in torch.float32: use "
                        "layer.float()")
    return contiguous_array(parameter)


def run_layer(
    batch: TokenBatch, schedule: S | Literal["auto"], compiled: Callable[[S, int], Layer],
    operator: Callable[[], RaggedOperator] | None, *, parameters: Parameters = MappingProxyType({}),
    packed: PackedWeights | None = None,
) -> torch.Tensor:
    """Run a layer on a batch, whose form the result has.

    Args:
        compiled: returns the layer of a schedule and a number of threads.
        operator: returns the operator to search schedules for, if the schedule may be "auto".
        parameters, packed: see `call_layer`.
    """
    threads = torch_threads()
    layer = compiled(_resolved(schedule, operator, batch.structure, threads), threads)
    return batch.like(call_layer(layer, batch, parameters, packed or PackedWeights()))


def call_layer(layer: Layer, batch: TokenBatch, parameters: Parameters, packed: PackedWeights) -> torch.Tensor:
    """Run a layer on a batch, (tokens, width).

    If gradients may be needed, intermediate results and the packed weights are saved for them, so that gradients are
    those of the weights of this call even if the parameters are overwritten in between; writes that torch counts raise
    an error, as in torch's own layers. See `sparloom.ragged.Layer`.

    Args:
        parameters: by the names of the layer: weights, and tokens besides those of the batch.
        packed: of these parameters.
    """
    tensors = autocast_operands(batch.x, *parameters.values())
    parameters = dict(zip(parameters, tensors[1:], strict=True))
    for name, tensor in parameters.items():
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled() and name not in layer.learned:
            raise RuntimeError(f"{name} requires gradients, which {_name(layer)} has not: call requires_grad_(False) "
                               "on the parameter that it is made of")
    inputs = (layer, batch.without_tokens(), packed, tuple(parameters), *tensors)
    if in_functorch():
        return _FunctorchRaggedFunction.apply(*inputs)[0]
    if needs_derivatives(tensors):
        return _RaggedFunction.apply(*inputs)
    run, out = bind_layer(layer, batch, packed.inference(layer, parameters), parameters)
    run_bound([run])
    return out


def bind_layer(layer: Layer, batch: TokenBatch, weights: PackedProgramWeights,
               parameters: Parameters = MappingProxyType({})) -> tuple[BoundRun, torch.Tensor]:
    """Check the arguments of a program that runs later, and allocate its result; see `call_layer`."""
    out = torch.empty_like(batch.x)
    run = layer.bind(batch.structure, _token_arrays(layer, batch, batch.x, parameters), weights.addresses, out.numpy())
    run.kept.append(weights)
    return run, out


def _run_training(layer: Layer, batch: TokenBatch, packed: PackedWeights, names: tuple[str, ...], x: torch.Tensor,
                  *parameters: torch.Tensor | None) -> Tensors:
    """Compute the result, the weights packed for the gradients, and the intermediate results to save."""
    x = x.contiguous()
    out = torch.empty_like(x)
    kept = {name: x.new_empty(size) for name, size in layer.sizes(batch.structure).items()}
    named = dict(zip(names, parameters, strict=True))
    forward, backward = packed.training(layer, named)
    layer.train(batch.structure, _token_arrays(layer, batch, x, named), forward.weights, out.numpy(),
                kept={name: tensor.numpy() for name, tensor in kept.items()})
    return out, torch.from_numpy(backward.memory), *kept.values()


def _save_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    """Save the parameters, too, although they are not read, so that torch detects writes to them."""
    ctx.layer, ctx.batch, _, ctx.names = inputs[:FORWARD_ARGUMENTS]
    ctx.save_for_backward(*inputs[FORWARD_ARGUMENTS:], *output[1:])


def _backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    refuse_legacy_vmap(upstream, _name(ctx.layer))
    needed = ctx.needs_input_grad[FORWARD_ARGUMENTS:]
    inputs = (ctx.layer, ctx.batch, ctx.names, needed, upstream, *ctx.saved_tensors)
    differentiable = torch.is_grad_enabled() or in_functorch()
    gradients = iter(_RaggedGradients.apply(*inputs) if differentiable else _run_gradients(*inputs))
    return (*(None,) * FORWARD_ARGUMENTS, *(next(gradients) if each else None for each in needed))


def _run_gradients(
    layer: Layer, batch: TokenBatch, names: tuple[str, ...], needed: tuple[bool, ...], upstream: torch.Tensor,
    x: torch.Tensor, *saved: torch.Tensor | None,
) -> Tensors:
    """Compute the needed gradients of x and the parameters.

    Args:
        saved: parameters, the weights packed for this program, and intermediate results.
    """
    parameters, packed, kept = saved[:len(names)], saved[len(names)], saved[len(names) + 1:]
    inputs = zip(("x", *names), (x, *parameters), needed, strict=True)
    grads = {name: torch.empty(tensor.shape, dtype=torch.float32, device="cpu")
             for name, tensor, is_needed in inputs if is_needed}
    layer.differentiate(
        batch.structure, _token_arrays(layer, batch, x, dict(zip(names, parameters, strict=True))),
        packed_views(layer.backward_weights, packed.numpy()),
        upstream.detach().contiguous().numpy(),
        kept={name: tensor.numpy() for name, tensor in zip(layer.kept, kept, strict=True)},
        wanted={name: grad.numpy() for name, grad in grads.items()})
    return tuple(grads.values())


def _name(layer: Layer) -> str:
    name = layer.training.program.name
    return PUBLIC_NAMES.get(name, name)


def _refuse_second_derivative(ctx: Any, *_: Any) -> NoReturn:
    raise RuntimeError(f"{_name(ctx.layer)} is once_differentiable, it has neither second derivatives nor forward "
                       "mode: use backward() without create_graph=True, or torch's layer")


class _RaggedFunction(torch.autograd.Function):
    """Runs the program that saves what gradients need, and the program of the gradients."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        output = _run_training(*inputs)
        _save_context(ctx, inputs, output)
        return output[0]

    backward = staticmethod(_backward)
    jvp = staticmethod(_refuse_second_derivative)


class _FunctorchRaggedFunction(torch.autograd.Function):
    """The same for torch.func, which passes no context to `forward`: what is saved is an output."""

    forward = staticmethod(_run_training)
    jvp = staticmethod(_refuse_second_derivative)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        _save_context(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, ...]:
        return (None,) * len(ctx.needs_input_grad) if upstream is None else _backward(ctx, upstream)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensors, tuple[int | None, ...]]:
        return vmap_by_loop(_FunctorchRaggedFunction, info, in_dims, inputs)


class _RaggedGradients(torch.autograd.Function):
    """The program of the gradients as a node of the autograd graph."""

    forward = staticmethod(_run_gradients)
    backward = jvp = staticmethod(_refuse_second_derivative)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.layer = inputs[0]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensors, tuple[int | None, ...]]:
        return vmap_by_loop(_RaggedGradients, info, in_dims, inputs)


def activation_name(activation: str | Callable[[torch.Tensor], torch.Tensor]) -> str:
    """Return the name of an activation among those of the ragged language.

    Args:
        activation: a name, a function of torch, or a module of torch or transformers.

    Raises:
        ValueError: there is no such activation; lists those there are.
    """
    if isinstance(activation, torch.nn.GELU):
        return APPROXIMATE[activation.approximate]
    if isinstance(activation, torch.nn.Module):
        kind = type(activation)
        found = (TRANSFORMERS_MODULES.get(kind.__name__) if kind.__module__.startswith("transformers.")
                 else MODULES.get(kind))
    else:
        found = FUNCTIONS.get(activation) if callable(activation) else activation
    if found not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r}: expected one of {', '.join(ACTIVATIONS)}, or the function or "
                         "module of torch")
    return found


def norm_gain(norm: Any) -> torch.Tensor:
    """Return the weight of a norm, which is read once because it may be computed; ones for a norm without weight."""
    weight = norm.weight
    return torch.ones(norm.normalized_shape, dtype=torch.float32, device="cpu") if weight is None else weight
