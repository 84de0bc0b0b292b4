"""Which schedule a layer runs with: one that is given, or the one that is chosen for batches like this.

Parameters in the storage of compiled programs, packed again when their content is another.

Layers of ragged programs as functions of tensors, with first gradients.

Second derivatives, and those in forward mode, there are none of. The node that computes gradients refuses to be
differentiated itself, so asking for them is an error wherever they would be needed: behind create_graph=True,
in torch.autograd.functional and in torch.func.
"""

from __future__ import annotations

import itertools
import math
import operator
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
import torch

from sparloom.jit import aligned
from sparloom.nn.batches import Batch
from sparloom.nn.custom_ops import asks_for_derivatives, check_batched, in_transform, looped
from sparloom.nn.torch_integration import autocast_operands
from sparloom.nn.version_guard import fingerprint
from sparloom.ragged import Layer, Structure, Weight
from sparloom.tuning import RaggedOperator, choose_schedule

__all__ = [
    "Packed", "PackedWeights", "Parameters", "Schedule", "call_layer", "checked_schedule", "packed_views",
    "schedule_of",
]

S = TypeVar("S")
Schedule = S | Literal["auto"] | None

_chosen: dict[tuple[object, ...], Any] = {}


def checked_schedule(given: Schedule[S], kind: type[S]) -> S | Literal["auto"]:
    """Put the default in place of None.

    Raises:
        ValueError: it is no schedule of this kind.
    """
    if given is None:
        return kind()
    if given == "auto" or isinstance(given, kind):
        return given
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise ValueError(f"schedule={given!r}: give {article} {kind.__name__}, 'auto', or None for the default")


def schedule_of(given: S | Literal["auto"], kind: type[S], operator: Callable[[], RaggedOperator],
                structure: Structure, threads: int) -> S:
    """Give the schedule of a batch; "auto" searches when batches like this are met for the first time on a machine.

    Args:
        operator: gives the one whose schedule is searched.
    """
    if isinstance(given, kind):
        return given
    chosen_for = operator()
    key = (chosen_for.name, tuple(chosen_for.alike(structure).items()), threads)
    if key not in _chosen:
        config = choose_schedule(chosen_for, structure, threads=threads).config
        _chosen[key] = kind(**dict(config.values))
    return _chosen[key]


Parameters = Mapping[str, torch.Tensor | None]
Weights = Mapping[str, Weight]

LINE = 16  # floats: weights begin at a cache line


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights that a program reads; they stay as they are for as long as this object, or its `memory`, lives.

    Args:
        content: fingerprint of the parameters.
        memory: all weights, one behind the other.
        weights: views of it, by name.
    """

    content: tuple[int, int]
    memory: np.ndarray
    weights: dict[str, np.ndarray]


class PackedWeights:
    """Packs the parameters of one module for the programs of a layer.

    Every call compares the content of the parameters with what was packed, so no write is missed, however it was done.
    Memory that a call still reads, or that gradients will be computed with, is not written again: there is new memory
    then. Copies of the module pack anew. Needs no lock: calls of several threads pack at worst twice.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Layer, str], Packed] = {}
        self._spare: dict[tuple[Layer, str], list[np.ndarray]] = {}

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return PackedWeights, ()

    def inference(self, layer: Layer, parameters: Parameters) -> Packed:
        """Give the weights of the forward programs.

        Args:
            parameters: by the names of the layer; those that are None are zeros.

        Raises:
            TypeError, ValueError: one is not of float32, or not on the CPU.
        """
        arrays = {name: _array(name, parameter) for name, parameter in parameters.items()}
        return self._packed((layer, "forward"), layer.forward_weights, arrays, _content(arrays))

    def training(self, layer: Layer, parameters: Parameters) -> tuple[Packed, Packed]:
        """Give the weights of the forward programs and of the program of gradients, as `inference`."""
        arrays = {name: _array(name, parameter) for name, parameter in parameters.items()}
        content = _content(arrays)
        return (self._packed((layer, "forward"), layer.forward_weights, arrays, content),
                self._packed((layer, "backward"), layer.backward_weights, arrays, content))

    def _packed(self, key: tuple[Layer, str], weights: Weights, arrays: Mapping[str, np.ndarray | None],
                content: tuple[int, int]) -> Packed:
        kept = self._kept.get(key)
        if kept is not None and kept.content == content:
            return kept
        del kept
        self._kept.pop(key, None)  # its memory becomes spare now, unless a call still reads it
        memory = self._memory(key, sum(map(_room, weights.values())))
        views = packed_views(weights, memory)
        for name, weight in weights.items():
            if arrays[name] is None:
                views[name].fill(0)
            else:
                _check_shape(name, arrays[name], weight)
                weight.packed(arrays[name], views[name])
        found = self._kept[key] = Packed(content, memory, views)
        return found

    def _memory(self, key: tuple[Layer, str], size: int) -> np.ndarray:
        """Allocate memory that becomes spare when the array that is returned, and all tensors on it, are gone."""
        spare = self._spare.setdefault(key, [])
        whole = spare.pop() if spare else aligned((size,), np.float32)
        memory = whole[:]
        weakref.finalize(memory, _give_back, spare, whole).atexit = False
        return memory


def packed_views(weights: Weights, memory: np.ndarray) -> dict[str, np.ndarray]:
    """Find weights in the memory of a `Packed`, by name."""
    views, begin = {}, 0
    for name, weight in weights.items():
        views[name] = memory[begin : begin + weight.elements]
        begin += _room(weight)
    return views


def _room(weight: Weight) -> int:
    return -(-weight.elements // LINE) * LINE


def _give_back(spare: list[np.ndarray], memory: np.ndarray) -> None:
    if not spare:
        spare.append(memory)


def _check_shape(name: str, array: np.ndarray, weight: Weight) -> None:
    """Refuse a matrix with as many elements, but other rows."""
    if array.size != math.prod(weight.shape) or array.shape[0] not in itertools.accumulate(weight.shape, operator.mul):
        raise ValueError(f"parameter {name} has shape {array.shape}: this layer takes as many elements as "
                         f"{weight.shape}, {math.prod(weight.shape)}, in rows of these dimensions")


def _content(arrays: Mapping[str, np.ndarray | None]) -> tuple[int, int]:
    return fingerprint([np.zeros(0, np.float32) if array is None else array for array in arrays.values()])


def _array(name: str, parameter: torch.Tensor | None) -> np.ndarray | None:
    if parameter is None:
        return None
    if parameter.device.type != "cpu":
        raise ValueError(f"parameter {name} on {parameter.device}: this layer computes on the CPU: use .cpu()")
    if parameter.dtype != torch.float32:
        raise TypeError(f"parameter {name} of {parameter.dtype}: this layer computes in torch.float32: use .float()")
    array = parameter.numpy(force=True)
    return array if array.flags.c_contiguous and array.flags.aligned else np.require(array, requirements=["C", "A"])


GIVEN = 4  # arguments of _Trained before x and the parameters
GIVEN_GRADIENTS = 4  # of _Gradients before tensors
LAYERS = {"encoder": "TransformerEncoderLayer", "attention": "MultiheadAttention", "layer_norm": "LayerNorm",
          "softmax": "ragged_softmax"}

Tensors = tuple[torch.Tensor, ...]


def call_layer(layer: Layer, batch: Batch, parameters: Parameters, packed: PackedWeights) -> torch.Tensor:
    """Compute a layer of a batch, (tokens, width).

    Where a gradient may be asked for, intermediate results and the packed weights are kept for it, so gradients are
    those of the weights that this call has seen, whoever writes into the parameters in between; writes that torch
    counts are an error then, as for its own layers. See `sparloom.ragged.Layer`.

    Args:
        parameters: by the names of the layer.
        packed: of these parameters.
    """
    tensors = autocast_operands(batch.x, *parameters.values())
    parameters = dict(zip(parameters, tensors[1:], strict=True))
    given = (layer, batch.structure, packed, tuple(parameters), *tensors)
    if in_transform():
        return _Transformed.apply(*given)[0]
    if asks_for_derivatives(tensors):
        return _Trained.apply(*given)
    weights = packed.inference(layer, parameters) if parameters else None  # held as long as the program reads it
    out = torch.empty_like(batch.x)
    layer.infer(batch.structure, batch.x.detach().numpy(), weights.weights if weights else {}, out.numpy())
    return out


class _Trained(torch.autograd.Function):
    """The program that keeps what gradients need, and the program of the gradients."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        output = _trained(*given)
        _keep(ctx, given, output)
        return output[0]

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _backward(ctx, upstream)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        _refuse(ctx)


class _Transformed(torch.autograd.Function):
    """The same for the transforms of torch.func, which give no context to `forward`: what is kept is a result there."""

    @staticmethod
    def forward(*given: Any) -> Tensors:
        return _trained(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        _keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, ...]:
        return (None,) * len(ctx.needs_input_grad) if upstream is None else _backward(ctx, upstream)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        _refuse(ctx)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Tensors, tuple[int | None, ...]]:
        return looped(_Transformed, info, in_dims, given)


class _Gradients(torch.autograd.Function):
    """The program of the gradients as a node of the graph; of what needs a gradient itself, it is behind all of it."""

    @staticmethod
    def forward(*given: Any) -> Tensors:
        return _gradients(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.layer = inputs[0]

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> NoReturn:
        _refuse(ctx)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        _refuse(ctx)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Tensors, tuple[int | None, ...]]:
        return looped(_Gradients, info, in_dims, given)


def _trained(layer: Layer, structure: Any, packed: PackedWeights, names: tuple[str, ...], x: torch.Tensor,
             *parameters: torch.Tensor | None) -> Tensors:
    """Compute the result, the weights packed for the gradients, and what the program keeps for them."""
    x = x.contiguous()
    out = torch.empty_like(x)
    kept = {name: x.new_empty(size) for name, size in layer.sizes(structure).items()}
    forward, backward = packed.training(layer, dict(zip(names, parameters, strict=True)))
    layer.train(structure, x.detach().numpy(), forward.weights, out.numpy(),
                kept={name: tensor.numpy() for name, tensor in kept.items()})
    return out, torch.from_numpy(backward.memory), *kept.values()


def _keep(ctx: Any, given: tuple[Any, ...], output: Tensors) -> None:
    """Keep parameters, too, though they are not read: so torch notices that they were written."""
    ctx.layer, ctx.structure, _, ctx.names = given[:GIVEN]
    ctx.save_for_backward(*given[GIVEN:], *output[1:])


def _backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    check_batched(upstream, _name(ctx.layer))
    wanted = ctx.needs_input_grad[GIVEN:]
    given = (ctx.layer, ctx.structure, ctx.names, wanted, upstream, *ctx.saved_tensors)
    apart = torch.is_grad_enabled() or in_transform()
    found = iter(_Gradients.apply(*given) if apart else _gradients(*given))
    return (*(None,) * GIVEN, *(next(found) if each else None for each in wanted))


def _gradients(layer: Layer, structure: Any, names: tuple[str, ...], wanted: tuple[bool, ...], upstream: torch.Tensor,
               x: torch.Tensor, *saved: torch.Tensor | None) -> Tensors:
    """Compute the gradients that are wanted, of x and the parameters.

    Args:
        saved: parameters, the weights packed for this program, and what was kept.
    """
    parameters, packed, kept = saved[:len(names)], saved[len(names)], saved[len(names) + 1:]
    called = zip(("x", *names), (x, *parameters), wanted, strict=True)
    grads = {name: torch.empty(tensor.shape, dtype=torch.float32, device="cpu")
             for name, tensor, asked in called if asked}
    layer.differentiate(
        structure, x.detach().contiguous().numpy(), packed_views(layer.backward_weights, packed.numpy()),
        upstream.detach().contiguous().numpy(),
        kept={name: tensor.numpy() for name, tensor in zip(layer.kept, kept, strict=True)},
        wanted={name: grad.numpy() for name, grad in grads.items()})
    return tuple(grads.values())


def _name(layer: Layer) -> str:
    name = layer.training.program.name
    return LAYERS.get(name, name)


def _refuse(ctx: Any) -> NoReturn:
    raise RuntimeError(f"{_name(ctx.layer)} is once_differentiable: it has neither second derivatives nor those in "
                       "forward mode: take first ones by backward(), or use the layer of torch where gradients are "
                       "differentiated")
