"""Softmax along the tokens of sequences of different lengths.

Layer norm of the tokens of a batch, in place of PyTorch's, on packed sequences.

Multi-head self-attention as a layer, in place of PyTorch's, on packed sequences.

The encoder layer of the transformer, in place of PyTorch's, on packed sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from sparloom.nn.batches import Lengths, batch_of
from sparloom.nn.ragged_programs import PackedWeights, Parameters, Schedule, call_layer, checked_schedule, schedule_of
from sparloom.nn.torch_integration import (
    Layer,
    check_counts,
    check_real,
    eager,
    prepare_weights,
    torch_threads,
    unscriptable,
)
from sparloom.ragged import (
    EncoderSchedule,
    EncoderShape,
    NormSchedule,
    SoftmaxSchedule,
    compiled_attention,
    compiled_encoder_layer,
    compiled_layer_norm,
    compiled_softmax,
)
from sparloom.tuning import encoder_operators, token_operators

__all__ = ["LayerNorm", "MultiheadAttention", "TransformerEncoderLayer", "ragged_softmax"]


@unscriptable
@eager
def ragged_softmax(tokens: torch.Tensor, lengths: Lengths | None = None, *, schedule: Schedule[SoftmaxSchedule] = None
                   ) -> torch.Tensor:
    """Normalise every column of every sequence, exp(x) / sum of exp(x) over its tokens: torch.softmax(sequence, dim=0).

    Results and gradients agree with PyTorch's up to rounding. Nothing is padded.

    Args:
        tokens: (tokens, width) or (tokens,), the sequences one after the other, float32, on the CPU; or a nested tensor
            of layout torch.jagged, (batch, length, width).
        lengths: of the sequences, which may be 0: a tensor, any sequence, or a Structure, which calls share; None
            beside a nested tensor.
        schedule: of the programs; that of `SoftmaxSchedule` unless given; "auto": searched, see
            `sparloom.tuning.choose_schedule`, when batches like one are met for the first time on a machine.

    Returns:
        As tokens.

    Raises:
        TypeError, ValueError: tokens and lengths do not fit together, or schedule is none; the message says how.

    Source: CoRa §7.2; the operation is jagged_softmax of FBGEMM.
    """
    chosen = checked_schedule(schedule, SoftmaxSchedule)
    if isinstance(tokens, torch.Tensor) and tokens.dim() == 1:
        return ragged_softmax(tokens[:, None], lengths, schedule=chosen)[:, 0]
    width = tokens.shape[-1] if isinstance(tokens, torch.Tensor) and tokens.dim() else 0
    batch = batch_of(tokens, lengths, width)
    if not width:
        return batch.like(batch.x.clone())
    threads = torch_threads()
    found = schedule_of(chosen, SoftmaxSchedule, lambda: token_operators(width)["softmax"], batch.structure, threads)
    return batch.like(call_layer(compiled_softmax(width, found, threads), batch, {}, PackedWeights()))


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
