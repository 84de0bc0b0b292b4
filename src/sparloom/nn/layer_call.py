"""Layers of ragged programs as functions of tensors, with first gradients.

Second derivatives, and those in forward mode, there are none of. The node that computes gradients refuses to be
differentiated itself, so asking for them is an error wherever they would be needed: behind create_graph=True,
in torch.autograd.functional and in torch.func.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from sparloom.nn.autocast import autocast_operands
from sparloom.nn.derivatives import asks_for_derivatives, check_batched, in_transform, looped
from sparloom.nn.tokens import Batch
from sparloom.nn.weights import PackedWeights, Parameters, packed_views
from sparloom.ragged import Layer

__all__ = ["call_layer"]

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
