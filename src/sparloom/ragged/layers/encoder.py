"""The encoder layer of the transformer on ragged batches, forward and backward, for CPU and GPU.

Around attention, see `sparloom.ragged.layers.attention`, are norms, residual sums and a feed-forward network:

    norms after the sums    attended = attention(x) + x, norm_1 of it; fed = network(norm_1) + norm_1, norm_2 of it
    norms first             norm_1 of x; attended = attention(norm_1) + x, norm_2 of it; fed = network(norm_2)
                            + attended
    with norms of sums      attended = attention(norm_1), norm_3 = norm of it + x, norm_2 of that;
                            fed = network(norm_2), norm_4 = norm of it + norm_3
    network                 active w_back + b_back, with active = activation(t w_in + b_in) of tokens t, if gated times
                            up = t w_up + b_up

On a CPU, bias, activation, gate and residual are applied to each tile of a product in the cache, and norms are computed
a token at a time. The forward pass stores the tensors in `KEPT` for training: for most activations also inner, their
arguments. The gradient of a tensor t is d_t; that of the result, d_norm_2 or d_fed, is an input. The backward pass
reads weights as PyTorch stores them:

    w_in, w_up[hidden, channel]    w_back[model, hidden]

Activations, of which a new one is a line of `ACTIVATIONS`:

    relu         max(x, 0)
    gelu         x (1 + erf(x / sqrt(2))) / 2
    gelu_tanh    x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
    silu         x / (1 + exp(-x))

Source: CoRa §7.2, Figure 3 (the nine kernels; hidden sizes of the base model); Hendrycks and Gimpel 2016 (gelu, silu).
Departures: activations other than relu, gates, norms first and without means; CoRa has no backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sparloom.ir import Expr
from sparloom.ragged.definition import program
from sparloom.ragged.layers.attention import (
    define_attention,
    schedule_attention,
    schedule_on_device,
    with_step,
)
from sparloom.ragged.layers.attention_gradients import (
    define_attention_gradients,
    projection_gradients,
    schedule_attention_gradients,
    table_gradients,
)
from sparloom.ragged.layers.norms import define_norm, define_norm_gradients, schedule_norm, schedule_norm_gradients
from sparloom.ragged.layers.precision import operand, round_for_products
from sparloom.ragged.layers.tokens import (
    TOKENS,
    EncoderSchedule,
    EncoderShape,
    batch,
    channel,
    drop,
    hidden,
    model,
    pos,
    schedule_elementwise,
    schedule_linear,
    schedule_parameter_gradients,
    spread_rows,
    sum_over_tokens,
)
from sparloom.ragged.nests import (
    Operation,
    Program,
    compute,
    erf,
    exp,
    less,
    maximum,
    minimum,
    real,
    sum_over,
    tanh,
    where,
)
from sparloom.ragged.tensor import Tensor

KEPT = ("peak", "total", *(f"{name}_{norm}" for norm in "1234" for name in ("mean", "spread")), "spread_q", "spread_k",
        "inner")
"""Intermediate results that the forward pass stores for the gradients, besides those it stores anyway."""

HALF, ONE = real(0.5), real(1.0)
CUBIC = 0.044715  # of the argument of tanh in gelu_tanh
TANH_SCALE = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class Activation:
    """An element-wise function of f32.

    Args:
        value: the function.
        derivative: its derivative; of relu at 0 it is 0, as in PyTorch.
        rough: the function to within 5e-5, in fewer instructions, where results are rounded to bfloat16, whose numbers
            are 8e-3 apart at 1.
    """

    value: Callable[[Expr], Expr]
    derivative: Callable[[Expr], Expr]
    rough: Callable[[Expr], Expr] | None = None


def _gelu_derivative(x: Expr) -> Expr:
    density = exp(x * x * real(-0.5)) * real(1 / math.sqrt(2 * math.pi))
    return _normal_share(x) + x * density


def _normal_share(x: Expr) -> Expr:
    """Return the share of a normal distribution below x."""
    return HALF + HALF * erf(x * real(math.sqrt(0.5)))


def _gelu_tanh_derivative(x: Expr) -> Expr:
    bent, slope = _bent(x), real(TANH_SCALE) * (ONE + real(3 * CUBIC) * x * x)
    return HALF + HALF * bent + HALF * x * (ONE - bent * bent) * slope


def _bent(x: Expr) -> Expr:
    return tanh(real(TANH_SCALE) * (x + real(CUBIC) * x * x * x))


def _rough_gelu(x: Expr, farthest: float, coefficients: Sequence[float]) -> Expr:
    """Compute x (1/2 + p(x^2) x) for x up to `farthest` from 0; beyond it the sum is 0 or 1.

    Args:
        coefficients: of p, which makes the largest error as small as possible; that of the highest power comes first.
    """
    least = maximum(real(-farthest), x)
    near = minimum(real(farthest), least)
    share = real(coefficients[0])
    for each in coefficients[1:]:
        share = share * (near * near) + real(each)
    return least * (HALF + near * share)


def _silu_derivative(x: Expr) -> Expr:
    return _sigmoid(x) * (ONE + x * (ONE - _sigmoid(x)))


def _sigmoid(x: Expr) -> Expr:
    return ONE / (ONE + exp(x * real(-1.0)))


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType({
    "relu": Activation(lambda x: maximum(x, real(0.0)), lambda x: where(less(real(0.0), x), ONE, real(0.0))),
    "gelu": Activation(lambda x: x * _normal_share(x), _gelu_derivative, lambda x: _rough_gelu(x, 4.4, (
        3.569432937e-11, -3.754052212e-9, 1.740848453e-7, -4.724870372e-6, 8.429303989e-5, -1.054992651e-3,
        9.643028540e-3, -6.607643102e-2, 3.987616102e-1))),
    "gelu_tanh": Activation(lambda x: HALF * x * (ONE + _bent(x)), _gelu_tanh_derivative, lambda x: _rough_gelu(
        x, 4.3, (4.898563906e-11, -4.891177153e-9, 2.150391249e-7, -5.529641982e-6, 9.360381493e-5, -1.118169781e-3,
                 9.872627893e-3, -6.640569988e-2, 3.987643613e-1))),
    "silu": Activation(lambda x: x * _sigmoid(x), _silu_derivative),
})
"""Activation functions by name."""


def encoder_layer(shape: EncoderShape, *, differentiable: bool = False) -> Program:
    """Define the encoder layer, unscheduled; its result is norm_2, or fed if norms come first, or norm_4.

    Inputs besides those of `attention` are w_in[channel, hidden], b_in[hidden], w_back[hidden, model], b_back[model],
    gain and shift of the norms, gain_1, shift_1, gain_2, shift_2, each as wide as a token, and, if the network is
    gated, w_up[channel, hidden] and b_up[hidden].

    Args:
        differentiable: the arguments of the activation are stored, as gradients need them.
    """
    if shape.norm_first:
        x = Tensor("x", {**TOKENS, model: shape.width})
        norm_1 = _define_norm(shape, x, "1") if shape.first_norm else []
        *before, attended = define_attention(shape, residual=not shape.sum_norms, inputs=norm_1[-1] if norm_1 else None)
        norm_3 = _define_norm(shape, attended, "3", residual=x) if shape.sum_norms else []
        summed = norm_3[-1] if norm_3 else attended
        norm_2 = _define_norm(shape, summed, "2")
        network = _define_network(shape, norm_2[-1], None if norm_3 else summed, differentiable=differentiable)
        norm_4 = _define_norm(shape, network[-1], "4", residual=summed) if norm_3 else []
        return program("encoder", [*norm_1, *before, attended, *norm_3, *norm_2, *network, *norm_4])
    *before, attended = define_attention(shape, residual=True)
    norm_1 = _define_norm(shape, attended, "1")
    network = _define_network(shape, norm_1[-1], norm_1[-1], differentiable=differentiable)
    return program("encoder", [*before, attended, *norm_1, *network, *_define_norm(shape, network[-1], "2")])


def scheduled_encoder_layer(shape: EncoderShape, schedule: EncoderSchedule, *, kept: Collection[str] = ()) -> Program:
    """Schedule `encoder_layer` for a CPU.

    Args:
        kept: intermediate results to store whole, for gradients.

    Raises:
        IllegalSchedule: the step of a causal shape is not a multiple of the tile of queries.
    """
    prog = encoder_layer(with_step(shape, schedule), differentiable="inner" in kept)
    prog = schedule_attention(prog, schedule, kept)
    names = {nest.name for nest in prog.nests()}
    for nest in ("up", "inner", "active"):
        if nest == "active" and "inner" in names:
            prog = schedule_elementwise(prog, nest)
        elif nest in names:
            prog = schedule_linear(prog, nest, "hidden", "channel", schedule)
    prog = schedule_linear(prog, "fed", "model", "hidden", schedule)
    for number in (each for each in "1234" if f"norm_{each}" in names):
        prog = schedule_norm(prog, number, prog.nest(f"norm_{number}").loops[-1].name, kept)
    return prog if kept else spread_rows(prog, "norm_1", "norm_2", "active")  # gradients read rows without gaps


def _define_norm(shape: EncoderShape, inputs: Operation | Tensor, number: str, *,
                 residual: Operation | Tensor | None = None) -> list[Operation]:
    axes = (inputs if isinstance(inputs, Tensor) else inputs.output).axes
    return define_norm(inputs, number, axes[-1][0], width=shape.width, epsilon=shape.epsilon, kind=shape.norm,
                       residual=residual)


def _define_network(shape: EncoderShape, tokens: Operation, residual: Operation | None, *, differentiable: bool
                    ) -> list[Operation]:
    """Define the feed-forward network, plus a residual if given; the last operation is fed."""
    outs = {hidden: shape.hidden}
    many, into = {**TOKENS, **outs}, operand(shape, tokens, {channel: shape.width})
    found = [*into.operations]

    def project(name: str) -> Expr:
        return into.times(f"w_{name}", {channel: shape.width}, outs) + Tensor(f"b_{name}", outs)[hidden]

    inner = project("in")
    if differentiable and _stores_inner(shape):
        found.append(compute("inner", many, inner))
        inner = found[-1][batch, pos, hidden]
    activation = ACTIVATIONS[shape.activation]
    rough = activation.rough if shape.precision == "bfloat16" else None
    value = (rough or activation.value)(inner)
    if shape.gated:
        found.append(compute("up", many, project("up")))
        value = value * found[-1][batch, pos, hidden]
    active = compute("active", many, *round_for_products(shape, drop(shape, 2, pos, hidden, value)))
    back = operand(shape, active, outs)
    added = back.times("w_back", outs, {model: shape.width}) + Tensor("b_back", {model: shape.width})[model]
    fed = drop(shape, 3, pos, model, added)
    fed = fed if residual is None else fed + residual[batch, pos, model]
    return [*found, active, *back.operations, compute("fed", {**TOKENS, model: shape.width}, fed)]


def _stores_inner(shape: EncoderShape) -> bool:
    """Whether gradients need the arguments of the activation; where relu is 0 is seen from its results."""
    return shape.gated or shape.activation != "relu"


def encoder_backward(shape: EncoderShape) -> Program:
    """Define the gradients of `encoder_layer`, unscheduled; outputs: d_x, then in the order of PyTorch's parameters."""
    size, found = shape.width, []
    x, attended, fed = (Tensor(name, {**TOKENS, last: size}) for name, last in (
        ("x", model), ("attended", channel), ("fed", model)))
    upstream = Tensor(f"d_{'norm_4' if shape.sum_norms else 'fed' if shape.norm_first else 'norm_2'}",
                      {**TOKENS, model: size})
    if shape.norm_first:
        summed, d_fed = attended, upstream
        if shape.sum_norms:
            summed = Tensor("norm_3", {**TOKENS, channel: size})
            norm_4, d_fed = _define_norm_gradients(shape, "4", fed, upstream)
            found += norm_4
        found += _define_network_gradients(shape, d_fed, "norm_2")
        norm_2, d_summed = _define_norm_gradients(shape, "2", summed, found[-1], residual=upstream)
        found += norm_2
        d_attended = d_summed
        if shape.sum_norms:
            norm_3, d_attended = _define_norm_gradients(shape, "3", attended, d_summed)
            found += norm_3
        found += define_attention_gradients(
            shape, d_attended, residual=not shape.first_norm and not shape.sum_norms, inputs=_attending(shape))
        if shape.first_norm:
            found += _define_norm_gradients(shape, "1", x, found[-1], residual=d_summed)[0]
    else:
        norm_2, d_fed = _define_norm_gradients(shape, "2", fed, upstream)
        network = list(_define_network_gradients(shape, d_fed, "norm_1", residual=d_fed))
        norm_1, d_attended = _define_norm_gradients(shape, "1", attended, network[-1])
        found = [*norm_2, *network, *norm_1, *define_attention_gradients(shape, d_attended, residual=True)]
    up = ["d_w_up", "d_b_up"] if shape.gated else []
    norms = ["1"] * shape.first_norm + ["2"] + ["3", "4"] * shape.sum_norms
    return program("encoder_backward", found, [
        "d_x", *projection_gradients(shape), "d_w_in", "d_b_in", *up, "d_w_back", "d_b_back",
        *(f"d_{name}_{norm}" for norm in norms for name in ("gain", "shift")), *table_gradients(shape)])


def scheduled_encoder_backward(shape: EncoderShape, schedule: EncoderSchedule) -> Program:
    """Schedule `encoder_backward` for a CPU; raises IllegalSchedule as `scheduled_encoder_layer` does."""
    shape = with_step(shape, schedule)
    prog = encoder_backward(shape)
    tokens, norms = "norm_1", {"2": "d_fed", "1": "d_attended"}
    if shape.norm_first:
        tokens, norms = "norm_2", {"2": "d_norm_3" if shape.sum_norms else "d_attended"}
        norms |= {"1": "d_x"} if shape.first_norm else {}
        norms |= {"3": "d_attended", "4": "d_fed"} if shape.sum_norms else {}
    for number, inward in norms.items():
        prog = schedule_norm_gradients(prog, number, inward)
    names = {nest.name for nest in prog.nests()}
    prog = schedule_parameter_gradients(prog, {"back": 1, "in": 1, **({"up": 1} if shape.gated else {})})
    prog = schedule_linear(prog, "d_active" if shape.gated else "d_inner", "hidden", "model", schedule)
    for nest in (*(("d_inner", "d_up") if shape.gated else ()), *(("d_fed_added",) if shape.dropout[3] else ())):
        prog = schedule_elementwise(prog, nest)
    for nest in (each for each in (f"d_{tokens}_up", f"d_{tokens}") if each in names):
        prog = schedule_linear(prog, nest, "channel", "hidden", schedule)
    return schedule_attention_gradients(prog, shape, schedule, _attending(shape))


def _attending(shape: EncoderShape) -> str:
    """Name the tokens that attend to each other."""
    return "norm_1" if shape.norm_first and shape.first_norm else "x"


def _define_norm_gradients(shape: EncoderShape, number: str, into: Tensor, upstream: Tensor | Operation, *,
                           residual: Tensor | Operation | None = None) -> tuple[list[Operation], Operation]:
    """Define the gradients of a norm; also return that of its inputs."""
    found = define_norm_gradients(number, into, upstream, last=into.axes[-1][0], width=shape.width, kind=shape.norm,
                                  residual=residual)
    return found, next(each for each in found if each.name == f"d_{into.name}")


def _define_network_gradients(shape: EncoderShape, d_fed: Tensor | Operation, tokens: str, *,
                              residual: Operation | None = None) -> Iterator[Operation]:
    """Define the gradients of the feed-forward network; the last one is that of its tokens, plus a residual."""
    size, many, act = shape.width, {hidden: shape.hidden}, ACTIVATIONS[shape.activation]
    into = Tensor(tokens, {**TOKENS, channel: size})[batch, pos, channel]
    active, inner, up = (Tensor(name, {**TOKENS, **many})[batch, pos, hidden] for name in ("active", "inner", "up"))
    w_back = Tensor("w_back", {model: size, **many})
    added = d_fed
    if shape.dropout[3]:
        added = compute("d_fed_added", {**TOKENS, model: size}, drop(shape, 3, pos, model, d_fed[batch, pos, model]))
        yield added
    yield sum_over_tokens("d_w_back", {model: size, **many}, added[batch, pos, model] * active)
    yield sum_over_tokens("d_b_back", {model: size}, added[batch, pos, model])
    d_active = sum_over({model: size}, added[batch, pos, model] * w_back[model, hidden])
    d_active = drop(shape, 2, pos, hidden, d_active)
    if not _stores_inner(shape):
        parts = {"in": compute("d_inner", {**TOKENS, **many}, where(less(real(0.0), active), d_active, real(0.0)))}
    elif not shape.gated:
        parts = {"in": compute("d_inner", {**TOKENS, **many}, d_active * act.derivative(inner))}
    else:
        whole = compute("d_active", {**TOKENS, **many}, d_active)
        yield whole
        grad = whole[batch, pos, hidden]
        parts = {"up": compute("d_up", {**TOKENS, **many}, grad * act.value(inner)),
                 "in": compute("d_inner", {**TOKENS, **many}, grad * up * act.derivative(inner))}
    for name, part in parts.items():
        yield part
        weights, grad = Tensor(f"w_{name}", {**many, channel: size}), part[batch, pos, hidden]
        yield sum_over_tokens(f"d_w_{name}", {**many, channel: size}, grad * into)
        yield sum_over_tokens(f"d_b_{name}", many, grad)
        inward = sum_over(many, grad * weights[hidden, channel])
        residual = compute(f"d_{tokens}_{name}" if name != "in" else f"d_{tokens}", {**TOKENS, channel: size},
                           inward if residual is None else inward + residual[batch, pos, channel])
        yield residual


def device_encoder_layer(shape: EncoderShape) -> Program:
    """Schedule `encoder_layer` for a GPU."""
    return schedule_on_device(encoder_layer(shape))
