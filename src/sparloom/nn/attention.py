"""Multi-head self-attention as a layer, in place of PyTorch's, on packed sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from sparloom.nn.eager import eager
from sparloom.nn.hooks import prepare_weights
from sparloom.nn.layer_call import call_layer
from sparloom.nn.schedules import Schedule, checked_schedule, schedule_of
from sparloom.nn.threads import torch_threads
from sparloom.nn.tokens import Lengths, batch_of
from sparloom.nn.transforms import Layer, check_counts
from sparloom.nn.weights import PackedWeights, Parameters
from sparloom.ragged import EncoderSchedule, EncoderShape, compiled_attention
from sparloom.tuning import encoder_operators

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Layer):
    """softmax(q kT / sqrt(head width)) v in every head, with projections, takes the place of torch's on the CPU.

    Self-attention: queries, keys and values are of the same tokens. Parameters have the names, shapes and initial
    values of torch.nn.MultiheadAttention, so state dicts fit; results and gradients agree up to rounding. Nothing is
    padded.

    Args:
        embed_dim: width of a token.
        num_heads: dividing the width.
        dropout: 0; there is no other.
        bias: whether projections have one.
        batch_first: True: the sequences of a batch follow each other.
        schedule: of the programs, as of `TransformerEncoderLayer`.

    Raises:
        ValueError: an argument that this layer cannot follow; the message says which.

    Source: CoRa §7.2 (multi-head attention on ragged tensors).
    """

    sizes = frozenset({"embed_dim"})
    only: ClassVar[Mapping[str, Any]] = {
        "dropout": 0, "batch_first": True, "add_zero_attn": False, "bias_k": None, "bias_v": None}

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, batch_first: bool = True,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None, *,
        schedule: Schedule[EncoderSchedule] = None,
    ) -> None:
        super().__init__()
        if dropout != 0:
            raise ValueError(f"dropout={dropout}: this layer has none: give 0, and drop outside of it")
        if not batch_first:
            raise ValueError("batch_first=False: the sequences of a batch follow each other here: give True")
        check_counts(embed_dim=embed_dim)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.schedule = schedule
        made = {"device": device, "dtype": dtype}
        self.in_proj_weight = torch.nn.Parameter(torch.empty(3 * embed_dim, embed_dim, **made))
        self.register_parameter(
            "in_proj_bias", torch.nn.Parameter(torch.empty(3 * embed_dim, **made)) if bias else None)
        self.out_proj = torch.nn.Linear(embed_dim, embed_dim, bias=bias, **made)
        self.reset_parameters()
        self._packed = PackedWeights()

    def accepted(self, name: str, value: Any) -> Any:
        """Refuse heads that do not divide the width, and what is no schedule."""
        if name == "num_heads":
            check_counts(num_heads=value)
            if self.embed_dim % value:
                raise ValueError(f"embed_dim={self.embed_dim} and num_heads={value}: heads divide the width")
        return checked_schedule(value, EncoderSchedule) if name == "schedule" else value

    def reset_parameters(self) -> None:
        """Draw the weights of the first projection anew (Glorot), and set biases to 0."""
        torch.nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            torch.nn.init.zeros_(self.in_proj_bias)
            torch.nn.init.zeros_(self.out_proj.bias)

    @eager
    def forward(self, tokens: torch.Tensor, lengths: Lengths | None = None, *, is_causal: bool = False) -> torch.Tensor:
        """Let the tokens of every sequence attend to each other.

        Args:
            tokens: (tokens, embed_dim), the sequences one after the other, float32; or a nested tensor of layout
                torch.jagged, (batch, length, embed_dim).
            lengths: of the sequences, which may be 0: a tensor, any sequence, or a Structure, which layers share; None
                beside a nested tensor.
            is_causal: tokens attend to themselves and those before.

        Returns:
            As tokens. Departure: no weights of attention beside it; they are never stored.

        Raises:
            TypeError, ValueError: tokens, lengths and layer do not fit together; the message says how.
        """
        batch = batch_of(tokens, lengths, self.embed_dim)
        prepare_weights(torch.nn.Linear, out_proj=self.out_proj)
        shape = EncoderShape(self.embed_dim, self.num_heads, causal=is_causal)
        threads = torch_threads()
        schedule = schedule_of(self.schedule, EncoderSchedule, lambda: encoder_operators(shape)["attention"],
                               batch.structure, threads)
        layer = compiled_attention(shape, schedule, threads)
        return batch.like(call_layer(layer, batch, self.weights(), self._packed))

    def weights(self) -> Parameters:
        """Parameters by the names of the program."""
        return {"w_qkv": self.in_proj_weight, "b_qkv": self.in_proj_bias, "w_out": self.out_proj.weight,
                "b_out": self.out_proj.bias}

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.embed_dim}, {self.num_heads}"
