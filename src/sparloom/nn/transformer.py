"""The encoder layer of the transformer, in place of PyTorch's, on packed sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from sparloom.nn.attention import MultiheadAttention
from sparloom.nn.eager import eager
from sparloom.nn.hooks import prepare_weights
from sparloom.nn.layer_call import call_layer
from sparloom.nn.schedules import Schedule, checked_schedule, schedule_of
from sparloom.nn.threads import torch_threads
from sparloom.nn.tokens import Lengths, batch_of
from sparloom.nn.transforms import Layer, check_counts, check_real
from sparloom.nn.weights import PackedWeights, Parameters
from sparloom.ragged import EncoderSchedule, EncoderShape, compiled_encoder_layer
from sparloom.tuning import encoder_operators

__all__ = ["TransformerEncoderLayer"]

RELU = (torch.relu, torch.nn.functional.relu)
DROPOUTS = ("dropout", "dropout1", "dropout2")  # of torch's layer


class TransformerEncoderLayer(Layer):
    """Self-attention and a feed-forward network, each added to its tokens and normalised, takes the place of torch's.

    Parameters have the names, shapes and initial values of torch.nn.TransformerEncoderLayer, so state dicts fit;
    results and gradients agree up to rounding. Sequences are not padded: the time is that of the tokens there are.

    Args:
        d_model: width of a token.
        nhead: heads, dividing the width.
        dim_feedforward: columns between the two layers of the network.
        dropout: 0; there is no other.
        activation: relu; there is no other.
        layer_norm_eps: added to variances.
        batch_first: True: the sequences of a batch follow each other.
        norm_first: False: norms are behind the sums.
        bias: whether projections and norms have one.
        schedule: of the programs; that of `EncoderSchedule` unless given; "auto": searched, see
            `sparloom.tuning.choose_schedule`, when batches like one are met for the first time on a machine.

    Raises:
        ValueError: an argument that this layer cannot follow; the message says which.

    Source: CoRa §7.2.
    """

    only: ClassVar[Mapping[str, Any]] = {"norm_first": False, "activation_relu_or_gelu": 1}

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.0,
        activation: str | Callable[[torch.Tensor], torch.Tensor] = "relu", layer_norm_eps: float = 1e-5,
        batch_first: bool = True, norm_first: bool = False, bias: bool = True,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None, *,
        schedule: Schedule[EncoderSchedule] = None,
    ) -> None:
        super().__init__()
        self.accepted("activation", activation)
        if norm_first:
            raise ValueError("norm_first=True: norms of this layer are behind the sums: give False")
        check_counts(dim_feedforward=dim_feedforward)
        made = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first, schedule=schedule, **made)
        self.linear1 = torch.nn.Linear(d_model, dim_feedforward, bias=bias, **made)
        self.linear2 = torch.nn.Linear(dim_feedforward, d_model, bias=bias, **made)
        self.norm1 = torch.nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **made)
        self.norm2 = torch.nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **made)
        self.schedule = schedule
        self._packed = PackedWeights()

    def accepted(self, name: str, value: Any) -> Any:
        """Refuse other activations than relu, dropout, and what is no schedule."""
        if name == "activation" and value != "relu" and value not in RELU and not isinstance(value, torch.nn.ReLU):
            raise ValueError(f"activation={value!r}: this layer has relu only")
        if name in DROPOUTS and getattr(value, "p", value) != 0:
            raise ValueError(f"{name}={value!r}: this layer has none: give torch.nn.Dropout(0), and drop outside of it")
        return checked_schedule(value, EncoderSchedule) if name == "schedule" else value

    @eager
    def forward(self, tokens: torch.Tensor, lengths: Lengths | None = None, *, is_causal: bool = False) -> torch.Tensor:
        """Compute the layer.

        Args:
            tokens: (tokens, d_model), the sequences one after the other, float32; or a nested tensor of layout
                torch.jagged, (batch, length, d_model).
            lengths: of the sequences, which may be 0: a tensor, any sequence, or a Structure, which layers share; None
                beside a nested tensor.
            is_causal: tokens attend to themselves and those before.

        Returns:
            As tokens.

        Raises:
            TypeError, ValueError: tokens, lengths and layer do not fit together, or its norms add different eps; the
                message says how.
        """
        attention = self.self_attn
        prepare_weights(torch.nn.Linear, linear1=self.linear1, linear2=self.linear2, out_proj=attention.out_proj)
        prepare_weights(torch.nn.LayerNorm, norm1=self.norm1, norm2=self.norm2)
        prepare_weights(MultiheadAttention, self_attn=attention)
        check_real("norm1.eps", self.norm1.eps)
        if self.norm1.eps != self.norm2.eps:
            raise ValueError(f"norm1 has eps {self.norm1.eps} and norm2 {self.norm2.eps}: this layer has one for both: "
                             "set them alike")
        batch = batch_of(tokens, lengths, self.linear1.in_features)
        shape = EncoderShape(self.linear1.in_features, self.self_attn.num_heads, self.linear1.out_features,
                             self.norm1.eps, is_causal)
        threads = torch_threads()
        schedule = schedule_of(self.schedule, EncoderSchedule, lambda: encoder_operators(shape)["encoder"],
                               batch.structure, threads)
        layer = compiled_encoder_layer(shape, schedule, threads)
        return batch.like(call_layer(layer, batch, self.weights(), self._packed))

    def weights(self) -> Parameters:
        """Parameters by the names of the program."""
        return {**self.self_attn.weights(), "w_in": self.linear1.weight, "b_in": self.linear1.bias,
                "w_back": self.linear2.weight, "b_back": self.linear2.bias,
                "gain_1": _gain(self.norm1), "shift_1": self.norm1.bias,
                "gain_2": _gain(self.norm2), "shift_2": self.norm2.bias}


def _gain(norm: torch.nn.LayerNorm) -> torch.Tensor:
    """Give the weight of a norm; ones for a norm without one."""
    return torch.ones(norm.normalized_shape, dtype=torch.float32, device="cpu") if norm.weight is None else norm.weight
