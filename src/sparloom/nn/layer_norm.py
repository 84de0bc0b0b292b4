"""Layer norm of the tokens of a batch, in place of PyTorch's, on packed sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparloom.nn.eager import eager
from sparloom.nn.layer_call import call_layer
from sparloom.nn.schedules import Schedule, checked_schedule, schedule_of
from sparloom.nn.threads import torch_threads
from sparloom.nn.tokens import Lengths, batch_of
from sparloom.nn.transforms import Layer, check_counts, check_real
from sparloom.nn.weights import PackedWeights, Parameters
from sparloom.ragged import NormSchedule, compiled_layer_norm
from sparloom.tuning import token_operators

__all__ = ["LayerNorm"]


class LayerNorm(Layer):
    """(x - mean) / sqrt(variance + eps) * weight + bias of every token, takes the place of torch's on the CPU.

    Parameters have the names, shapes and initial values of torch.nn.LayerNorm, so state dicts fit; results and
    gradients agree up to rounding.

    Args:
        normalized_shape: width of a token; as in PyTorch a sequence, too, but of one number.
        eps: added to variances.
        elementwise_affine: whether there are a weight and a bias.
        bias: whether there is one beside the weight.
        schedule: of the programs; that of `NormSchedule` unless given; "auto": searched, as of
            `TransformerEncoderLayer`.

    Raises:
        ValueError: an argument that this layer cannot follow; the message says which.

    Source: CoRa §7.2.
    """

    sizes = frozenset({"normalized_shape"})

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: torch.device | str | None = None, dtype: torch.dtype | None = None, *,
        schedule: Schedule[NormSchedule] = None,
    ) -> None:
        super().__init__()
        shape = tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)
        if len(shape) != 1 or shape[0] == 0:
            raise ValueError(f"normalized_shape={normalized_shape}: tokens have one dimension: give their width, at "
                             f"least 1")
        check_counts(normalized_shape=shape[0])
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.schedule = schedule
        made = {"device": device, "dtype": dtype}
        for name, wanted in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, **made)) if wanted else None)
        self.reset_parameters()
        self._packed = PackedWeights()

    def accepted(self, name: str, value: Any) -> Any:
        """Refuse an eps that is no number, and what is no schedule."""
        if name == "eps":
            check_real(name, value)
        return checked_schedule(value, NormSchedule) if name == "schedule" else value

    def reset_parameters(self) -> None:
        """Set the weight to 1, and the bias to 0."""
        for parameter, value in ((self.weight, 1.0), (self.bias, 0.0)):
            if parameter is not None:
                torch.nn.init.constant_(parameter, value)

    @eager
    def forward(self, tokens: torch.Tensor, lengths: Lengths | None = None) -> torch.Tensor:
        """Normalise tokens.

        Args:
            tokens: (tokens, width), the sequences one after the other, float32; or a nested tensor of layout
                torch.jagged, (batch, length, width).
            lengths: of the sequences, which may be 0: a tensor, any sequence, or a Structure, which layers share; None
                beside a nested tensor.

        Returns:
            As tokens.

        Raises:
            TypeError, ValueError: tokens, lengths and layer do not fit together; the message says how.
        """
        width, = self.normalized_shape
        batch = batch_of(tokens, lengths, width)
        threads = torch_threads()
        schedule = schedule_of(self.schedule, NormSchedule, lambda: token_operators(width, self.eps)["norm"],
                               batch.structure, threads)
        layer = compiled_layer_norm(width, self.eps, schedule, threads)
        return batch.like(call_layer(layer, batch, self.weights(), self._packed))

    def weights(self) -> Parameters:
        """Parameters by the names of the program."""
        weight = self.weight
        if weight is None:
            weight = torch.ones(self.normalized_shape, dtype=torch.float32, device="cpu")
        return {"gain_1": weight, "shift_1": self.bias}

    def extra_repr(self) -> str:
        """Show the arguments as PyTorch does."""
        return (f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
                f"bias={self.bias is not None}")
