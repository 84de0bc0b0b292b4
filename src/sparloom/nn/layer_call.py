"""Layers of ragged programs as functions of tensors, with gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from sparloom.nn.tokens import Batch
from sparloom.nn.weights import PackedWeights, Parameters
from sparloom.ragged import Layer

__all__ = ["call_layer"]

GIVEN = 4  # arguments of _Trained before x and the parameters


def call_layer(layer: Layer, batch: Batch, parameters: Parameters, packed: PackedWeights) -> torch.Tensor:
    """Compute a layer of a batch, (tokens, width).

    Where a gradient may be asked for, intermediate results are kept for it; see `sparloom.ragged.Layer`.

    Args:
        parameters: by the names of the layer.
        packed: of these parameters.
    """
    asked = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (batch.x, *parameters.values()))
    if asked:
        return _Trained.apply(layer, batch.structure, packed, tuple(parameters), batch.x, *parameters.values())
    out = torch.empty_like(batch.x)
    layer.infer(batch.structure, batch.x.detach().numpy(), packed.forward(layer, parameters), out.numpy())
    return out


class _Trained(torch.autograd.Function):
    """The program that keeps what gradients need, and the program of the gradients."""

    @staticmethod
    def forward(ctx: Any, layer: Layer, structure: Any, packed: PackedWeights, names: tuple[str, ...], x: torch.Tensor,
                *parameters: torch.Tensor | None) -> torch.Tensor:
        out = torch.empty_like(x)
        kept = {name: x.new_empty(size) for name, size in layer.sizes(structure).items()}
        weights = packed.forward(layer, dict(zip(names, parameters, strict=True)))
        layer.train(structure, x.detach().numpy(), weights, out.numpy(),
                    kept={name: tensor.numpy() for name, tensor in kept.items()})
        ctx.save_for_backward(x, *parameters, *kept.values())
        ctx.layer, ctx.structure, ctx.packed, ctx.names = layer, structure, packed, names
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        count = len(ctx.names)
        parameters = dict(zip(ctx.names, saved[:count], strict=True))
        kept = {name: tensor.numpy() for name, tensor in zip(ctx.layer.kept, saved[count:], strict=True)}
        given = (x, *parameters.values())
        grads = [torch.empty(tensor.shape) if wants else None
                 for tensor, wants in zip(given, ctx.needs_input_grad[GIVEN:], strict=True)]
        wanted = {name: grad.numpy() for name, grad in zip(("x", *ctx.names), grads, strict=True) if grad is not None}
        weights = ctx.packed.backward(ctx.layer, parameters)
        ctx.layer.differentiate(ctx.structure, x.detach().numpy(), weights, upstream.contiguous().numpy(), kept=kept,
                                wanted=wanted)
        return (*(None,) * GIVEN, *grads)
