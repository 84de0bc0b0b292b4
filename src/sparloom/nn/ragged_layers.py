"""Layers on sequences of different lengths, without padding: drop-in replacements for those of torch on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from sparloom.nn.batches import Lengths, TokenBatch, parse_tokens
from sparloom.nn.ragged_programs import (
    PackedWeights,
    Parameters,
    Schedule,
    activation_name,
    call_layer,
    norm_gain,
    run_layer,
    validate_schedule,
)
from sparloom.nn.torch_integration import (
    CompiledModule,
    check_bool,
    check_positive_ints,
    check_real,
    eager,
    run_weight_hooks,
    torch_threads,
    unscriptable,
)
from sparloom.ragged import (
    LENGTHS,
    EncoderSchedule,
    EncoderShape,
    Layer,
    NormSchedule,
    SoftmaxSchedule,
    compiled_attention,
    compiled_cross_attention,
    compiled_encoder_layer,
    compiled_layer_norm,
    compiled_softmax,
    structure_of,
)
from sparloom.tuning import RaggedOperator, token_operators

DROPOUTS = ("dropout", "dropout1", "dropout2")  # submodules of torch's layer


@unscriptable
@eager
def ragged_softmax(tokens: torch.Tensor, lengths: Lengths | None = None, *, schedule: Schedule[SoftmaxSchedule] = None
                   ) -> torch.Tensor:
    """Apply softmax over the tokens of every sequence, separately for each column, as torch.softmax(sequence, dim=0)
    does.

    Results and gradients agree with PyTorch's up to rounding. Nothing is padded.

    Args:
        tokens: (tokens, width) or (tokens,), the sequences concatenated, float32, on the CPU; or a nested tensor of
            layout torch.jagged, (batch, length, width).
        lengths: of the sequences, possibly 0: a tensor, any sequence, or a Structure, which calls can share; None with
            a nested tensor.
        schedule: of the programs (default: `SoftmaxSchedule()`); "auto": searched by `sparloom.tuning.choose_schedule`
            the first time that a machine sees batches like this one.

    Returns:
        As tokens.

    Source: CoRa §7.2; the operation is jagged_softmax of FBGEMM.
    """
    chosen = validate_schedule(schedule, SoftmaxSchedule)
    if isinstance(tokens, torch.Tensor) and tokens.dim() == 1:
        return ragged_softmax(tokens[:, None], lengths, schedule=chosen)[:, 0]
    width = tokens.shape[-1] if isinstance(tokens, torch.Tensor) and tokens.dim() else 0
    batch = parse_tokens(tokens, lengths, width)
    if not width:
        return batch.like(batch.x.clone())
    return run_layer(batch, chosen, lambda *options: compiled_softmax(width, *options),
                     lambda: token_operators(width)["softmax"])


class ScheduledModule(CompiledModule):
    """Base class of layers that run a program on packed tokens.

    Args:
        schedule: of the programs, of `schedule_kind`, "auto" or None. Where schedules are not `searched`, "auto" is
            the default.
    """

    schedule_kind: ClassVar[type]
    searched: ClassVar[bool] = True

    def __init__(self, schedule: Schedule[Any]) -> None:
        super().__init__()
        self.schedule = schedule
        self._packed = PackedWeights()

    def validated(self, name: str, value: Any) -> Any:
        """Check the schedule."""
        if name != "schedule":
            return value
        return validate_schedule(None if value == "auto" and not self.searched else value, self.schedule_kind)

    def weights(self) -> Parameters:
        """Return the parameters by the names of the program."""
        raise NotImplementedError

    def _run(self, batch: TokenBatch, compiled: Callable[..., Layer],
             operator: Callable[[], RaggedOperator] | None = None) -> torch.Tensor:
        return run_layer(batch, self.schedule, compiled, operator, parameters=self.weights(), packed=self._packed)


class LayerNorm(ScheduledModule):
    """Layer norm of every token, a drop-in replacement for torch.nn.LayerNorm on the CPU.

    Arguments, and names, shapes and initial values of parameters, are those of torch.nn.LayerNorm, so state dicts are
    interchangeable; results and gradients agree up to rounding.

    Args:
        normalized_shape: width of a token, or a sequence with this one number.
        schedule: of the programs (default: `NormSchedule()`), or "auto", as in `ragged_softmax`.

    Source: CoRa §7.2.
    """

    schedule_kind = NormSchedule
    fixed_attributes = frozenset({"normalized_shape"})

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: torch.device | str | None = None, dtype: torch.dtype | None = None, *,
        schedule: Schedule[NormSchedule] = None,
    ) -> None:
        super().__init__(schedule)
        shape = tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)
        if len(shape) != 1 or shape[0] == 0:
            raise ValueError(f"normalized_shape={normalized_shape}: expected the width of a token, at least 1")
        check_positive_ints(normalized_shape=shape[0])
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        factory_kwargs = {"device": device, "dtype": dtype}
        for name, exists in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, **factory_kwargs)) if exists else None)
        self.reset_parameters()

    def validated(self, name: str, value: Any) -> Any:
        """Check eps and the schedule."""
        if name == "eps":
            check_real(name, value)
        return super().validated(name, value)

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0."""
        for parameter, value in ((self.weight, 1.0), (self.bias, 0.0)):
            if parameter is not None:
                torch.nn.init.constant_(parameter, value)

    @eager
    def forward(self, tokens: torch.Tensor, lengths: Lengths | None = None) -> torch.Tensor:
        """Normalise tokens.

        Arguments, results and errors are those of `ragged_softmax`, with tokens of two dimensions or nested.
        """
        width, = self.normalized_shape
        return self._run(parse_tokens(tokens, lengths, width),
                         lambda *options: compiled_layer_norm(width, self.eps, *options),
                         lambda: token_operators(width, self.eps)["norm"])

    def weights(self) -> Parameters:
        return {"gain_1": norm_gain(self), "shift_1": self.bias}

    def extra_repr(self) -> str:
        """Return the arguments as PyTorch does."""
        return (f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
                f"bias={self.bias is not None}")


class MultiheadAttention(ScheduledModule):
    """Multi-head attention with projections, a drop-in replacement for torch.nn.MultiheadAttention on the CPU.

    Queries, keys and values are projections of the same tokens, or keys and values those of other ones. Arguments, and
    names, shapes and initial values of parameters, are those of torch.nn.MultiheadAttention, so state dicts are
    interchangeable; results and gradients agree up to rounding. Nothing is padded.

    Args:
        dropout: 0 only.
        batch_first: True only: the sequences of a batch are concatenated.
        schedule: of the programs, as in `TransformerEncoderLayer`.

    Source: CoRa §7.2 (multi-head attention on ragged tensors); Vaswani et al. 2017, §3.2.3 (other tokens).
    """

    schedule_kind = EncoderSchedule
    searched = False
    fixed_attributes = frozenset({"embed_dim"})
    required_attributes: ClassVar[Mapping[str, Any]] = {
        "dropout": 0, "batch_first": True, "add_zero_attn": False, "bias_k": None, "bias_v": None}

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, batch_first: bool = True,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None, *,
        schedule: Schedule[EncoderSchedule] = None,
    ) -> None:
        super().__init__(schedule)
        if dropout != 0:
            raise ValueError(f"dropout={dropout}: dropout is not supported: pass 0 and apply dropout outside the layer")
        if not batch_first:
            raise ValueError("batch_first=False: sequences are concatenated, so only True is supported")
        check_positive_ints(embed_dim=embed_dim)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        factory_kwargs = {"device": device, "dtype": dtype}
        self.in_proj_weight = torch.nn.Parameter(torch.empty(3 * embed_dim, embed_dim, **factory_kwargs))
        self.register_parameter(
            "in_proj_bias", torch.nn.Parameter(torch.empty(3 * embed_dim, **factory_kwargs)) if bias else None)
        self.out_proj = torch.nn.Linear(embed_dim, embed_dim, bias=bias, **factory_kwargs)
        self.reset_parameters()

    def validated(self, name: str, value: Any) -> Any:
        """Check the number of heads and the schedule."""
        if name == "num_heads":
            check_positive_ints(num_heads=value)
            if self.embed_dim % value:
                raise ValueError(f"embed_dim={self.embed_dim} must be divisible by num_heads={value}")
        return super().validated(name, value)

    def reset_parameters(self) -> None:
        """Reset the weight of the input projection (Glorot) and the biases (0)."""
        torch.nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            torch.nn.init.zeros_(self.in_proj_bias)
            torch.nn.init.zeros_(self.out_proj.bias)

    @eager
    def forward(
        self, tokens: torch.Tensor, lengths: Lengths | None = None, *, is_causal: bool = False,
        memory: torch.Tensor | None = None, memory_lengths: Lengths | None = None,
    ) -> torch.Tensor:
        """Let the tokens of every sequence attend to each other, or to those of another one.

        Tokens, lengths, results and errors are those of `LayerNorm`. Departure: attention weights are not returned,
        because they are never stored.

        Args:
            is_causal: tokens attend to themselves and earlier tokens only.
            memory: tokens that those of the sequence with the same number attend to instead, in the form of tokens.
                Where a sequence has none, its tokens get the bias of the output projection.
            memory_lengths: of the sequences of the memory, as many as there are lengths.
        """
        batch = parse_tokens(tokens, lengths, self.embed_dim)
        run_weight_hooks(torch.nn.Linear, out_proj=self.out_proj)
        if memory is not None:
            try:
                others = parse_tokens(memory, memory_lengths, self.embed_dim)
            except (TypeError, ValueError) as error:
                raise type(error)(f"memory: {error}") from None
            return self._attend_to(others, batch, is_causal=is_causal)
        if memory_lengths is not None:
            raise ValueError("memory_lengths without memory: pass both or none")
        shape = EncoderShape(self.embed_dim, self.num_heads, causal=is_causal)
        return self._run(batch, lambda *options: compiled_attention(shape, *options))

    def _attend_to(self, memory: TokenBatch, batch: TokenBatch, *, is_causal: bool) -> torch.Tensor:
        shape = EncoderShape(self.embed_dim, self.num_heads, causal=is_causal)
        layer = compiled_cross_attention(shape, self.schedule, torch_threads())
        both = replace(batch, structure=structure_of(*[each.structure.table(LENGTHS) for each in (batch, memory)]))
        width, bias = self.embed_dim, self.in_proj_bias
        return both.like(call_layer(layer, both, {
            "memory": memory.x, "w_q": self.in_proj_weight[:width], "b_q": None if bias is None else bias[:width],
            "w_kv": self.in_proj_weight[width:], "b_kv": None if bias is None else bias[width:],
            "w_out": self.out_proj.weight, "b_out": self.out_proj.bias}, self._packed))

    def weights(self) -> Parameters:
        return {"w_qkv": self.in_proj_weight, "b_qkv": self.in_proj_bias, "w_out": self.out_proj.weight,
                "b_out": self.out_proj.bias}

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.embed_dim}, {self.num_heads}"


class TransformerEncoderLayer(ScheduledModule):
    """Encoder layer of the transformer, a drop-in replacement for torch.nn.TransformerEncoderLayer on the CPU.

    Arguments, and names, shapes and initial values of parameters, are those of torch's layer, so state dicts are
    interchangeable; results and gradients agree up to rounding. Sequences are not padded: the time depends on the
    actual number of tokens.

    Args:
        dropout, batch_first: as in `MultiheadAttention`.
        activation: "relu", "gelu", "gelu_tanh" or "silu", a function of torch.nn.functional, or such a module.
        norm_first: tokens are normalised before attention and before the feed-forward network, not after the sums.
        schedule: of the programs (default: `EncoderSchedule()`); "auto" is the default, too, since searches found
            nothing faster.

    Source: CoRa §7.2.
    """

    schedule_kind = EncoderSchedule
    searched = False

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.0,
        activation: str | Callable[[torch.Tensor], torch.Tensor] = "relu", layer_norm_eps: float = 1e-5,
        batch_first: bool = True, norm_first: bool = False, bias: bool = True,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None, *,
        schedule: Schedule[EncoderSchedule] = None,
    ) -> None:
        super().__init__(schedule)
        self.activation, self.norm_first = activation, norm_first
        check_positive_ints(dim_feedforward=dim_feedforward)
        factory_kwargs = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first, schedule=schedule, **factory_kwargs)
        self.linear1 = torch.nn.Linear(d_model, dim_feedforward, bias=bias, **factory_kwargs)
        self.linear2 = torch.nn.Linear(dim_feedforward, d_model, bias=bias, **factory_kwargs)
        self.norm1 = torch.nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **factory_kwargs)
        self.norm2 = torch.nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **factory_kwargs)

    def validated(self, name: str, value: Any) -> Any:
        """Refuse unknown activations, flags that are none, dropout, and invalid schedules."""
        if name == "activation":
            activation_name(value)
        if name == "norm_first":
            check_bool(name, value)
        if name == "activation_relu_or_gelu":
            raise ValueError(f"{name}={value!r}: it follows from the activation: set that")
        if name in DROPOUTS and getattr(value, "p", value) != 0:
            raise ValueError(f"{name}={value!r}: dropout is not supported: use torch.nn.Dropout(0) and apply dropout "
                             "outside")
        return super().validated(name, value)

    @eager
    def forward(self, tokens: torch.Tensor, lengths: Lengths | None = None, *, is_causal: bool = False) -> torch.Tensor:
        """Apply the layer; arguments, results and errors are those of `MultiheadAttention`.

        Raises:
            ValueError: also if the norms have different eps.
        """
        attention = self.self_attn
        run_weight_hooks(torch.nn.Linear, linear1=self.linear1, linear2=self.linear2, out_proj=attention.out_proj)
        run_weight_hooks(torch.nn.LayerNorm, norm1=self.norm1, norm2=self.norm2)
        run_weight_hooks(MultiheadAttention, self_attn=attention)
        check_real("norm1.eps", self.norm1.eps)
        if self.norm1.eps != self.norm2.eps:
            raise ValueError(f"norm1 has eps {self.norm1.eps} and norm2 {self.norm2.eps}: they must be equal")
        batch = parse_tokens(tokens, lengths, self.linear1.in_features)
        shape = EncoderShape(self.linear1.in_features, self.self_attn.num_heads, self.linear1.out_features,
                             self.norm1.eps, is_causal, activation=activation_name(self.activation),
                             norm_first=self.norm_first)
        return self._run(batch, lambda *options: compiled_encoder_layer(shape, *options))

    def weights(self) -> Parameters:
        return {**self.self_attn.weights(), "w_in": self.linear1.weight, "b_in": self.linear1.bias,
                "w_back": self.linear2.weight, "b_back": self.linear2.bias,
                "gain_1": norm_gain(self.norm1), "shift_1": self.norm1.bias,
                "gain_2": norm_gain(self.norm2), "shift_2": self.norm2.bias}
