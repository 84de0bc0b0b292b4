"""Attention over the edges of a graph, with gradients: the kernels of kernels/cpu/graph_attention_pass.hpp.

    graph_attention    sums of what senders have, weighted by a softmax over the edges of each receiver

Kernels read the edges of a graph by receiver and by sender, run at once (nothing is raced or decided), and store no
messages: at most one number per edge and head, and that only while gradients of additive scores are computed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, NamedTuple, NoReturn, get_args

import torch

from sparloom.jit import compile_cpp
from sparloom.nn.attention_edges import EdgeOrder
from sparloom.nn.custom_ops import Gradients, define_operator, needs_derivatives
from sparloom.nn.torch_integration import check_shapes, torch_threads

Score = Literal["additive", "leaky", "dot"]
SCORES = get_args(Score)
DTYPES = {torch.float32: "f32", torch.float64: "f64"}
REQUIRED: dict[Score, tuple[str, ...]] = {
    "additive": ("factors",), "leaky": ("factors", "targets"), "dot": ("targets", "sources")}
REQUIRED_WITH_FEATURES = {"leaky": ("edge_weight",), "dot": ("edge_queries",)}
"""Operands that a score also reads if edges have features."""

SLICE_WORK = 1 << 18  # numbers that are read in one slice of rows, which takes a thread about 100 microseconds
MAX_SLICES = 256
MAX_SLICES_OF_PARTS = 32  # where each slice sums gradients of its own
INDEX_NAMES = ("row_pointers", "senders", "row_edges", "col_pointers", "receivers", "col_edges")
INDEX_COUNT = len(INDEX_NAMES)
_OPTIONS = "int score, float slope, float dropout, int weights, bool differentiable"
OPTION_COUNT = len(_OPTIONS.split(","))


@dataclass(frozen=True, kw_only=True)
class AttentionOperands:
    """Operands of `graph_attention`, for E edges from cols senders to rows receivers; float32, or all float64.

    Scores of an edge from j to i in a head, leaky(x) being x, or slope * x if x <= 0:

        additive   leaky(factors[0] . values(j) + factors[1] . targets(i) + edge_scores)      Velickovic et al., GAT
        leaky      factors . leaky(targets(i) + values(j) + edge_features edge_weight)        Brody et al., GATv2
        dot        targets(i) . sources(j) + edge_features . edge_queries(i)                  Shi et al.

    Args:
        values: (cols, heads, width).
        targets: (rows, heads, width); if additive, None: receivers are the senders, or have no features.
        sources: (cols, heads, width), if dot.
        edge_scores: (E, heads) or None, if additive.
        edge_features: (E, features) or None, unless additive.
        edge_weight: (features, heads, width), if leaky and with features.
        edge_queries: (rows, features, heads), if dot and with features.
        factors: (1, heads, width), if leaky; (2, heads, width) if additive, or (1, heads, width) for receivers without
            features.
        bias: (heads, width), is added to the result; None: 0.
        slope: of leaky.
        dropout: probability with which a weight is 0; the others are divided by 1 - dropout.
        seed: int64, one number, of dropout: which weights are 0 is a function of it, the edge and the head.
    """

    values: torch.Tensor
    targets: torch.Tensor | None = None
    sources: torch.Tensor | None = None
    edge_scores: torch.Tensor | None = None
    edge_features: torch.Tensor | None = None
    edge_weight: torch.Tensor | None = None
    edge_queries: torch.Tensor | None = None
    factors: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    slope: float = 0.0
    dropout: float = 0.0
    seed: torch.Tensor | None = None


class Attended(NamedTuple):
    """Results of `graph_attention`.

    Args:
        values: (rows, heads, width), weighted sums of the values of senders, and the bias; 0 without both.
        edges: (rows, features, heads), weighted sums of the features of edges, if dot and with features.
        weights: (E, heads), if requested.
    """

    values: torch.Tensor
    edges: torch.Tensor | None
    weights: torch.Tensor | None


def graph_attention(
    score: Score, order: EdgeOrder, operands: AttentionOperands, *, weights: Literal["none", "used", "whole"] = "none",
) -> Attended:
    """Attend from each receiver to its senders, with first derivatives of all operands.

    Args:
        order: the edges by receiver and by sender.
        weights: also return the weights: as used, some dropped, or whole.

    Raises:
        TypeError: an operand that the score reads is missing, or dtypes differ.
        ValueError: an operand has another shape than the edges and the values imply.
    """
    contiguous = [None if each is None else each.resolve_neg().contiguous()
                  for each in _checked_operands(score, order, operands)]
    values, edges, *_, coefficients = _attention(
        *order.tensors, *contiguous, operands.seed, SCORES.index(score), operands.slope, operands.dropout,
        ("none", "used", "whole").index(weights), needs_derivatives(contiguous))
    has_edges = score == "dot" and operands.edge_features is not None
    return Attended(values, edges if has_edges else None, None if weights == "none" else coefficients)


def _checked_operands(score: Score, order: EdgeOrder, operands: AttentionOperands) -> list[torch.Tensor | None]:
    """Check what the kernel reads without bounds, and repeat factors and the bias to their full shapes."""
    tensors = {name: getattr(operands, name) for name in TENSORS}
    required = REQUIRED[score] + (REQUIRED_WITH_FEATURES.get(score, ()) if operands.edge_features is not None else ())
    for name, tensor in tensors.items():
        if tensor is None and name in required:
            raise TypeError(f"{name} is None: scores of kind {score!r} need it")
        if tensor is not None and (tensor.dtype != operands.values.dtype or tensor.dtype not in DTYPES):
            raise TypeError(f"{name} are {tensor.dtype} and values {operands.values.dtype}: all must be float32, or "
                            "all float64")
    rows, cols, edges = (order.by_receiver[0].shape[0] - 1, order.by_sender[0].shape[0] - 1,
                         order.by_receiver[1].shape[0])
    context = f"{cols} senders, {rows} receivers and {edges} edges"
    if operands.values.dim() != 3:
        raise ValueError(f"values has shape {tuple(operands.values.shape)}: expected ({cols}, heads, width)")
    heads, width = operands.values.shape[1:]
    features = 0 if operands.edge_features is None else operands.edge_features.shape[-1]
    receives = score == "additive" and operands.factors.shape[:1] == (2,)
    shapes = {
        "values": (cols, heads, width), "targets": (rows, heads, width), "sources": (cols, heads, width),
        "edge_scores": (edges, heads), "edge_features": (edges, features), "edge_weight": (features, heads, width),
        "edge_queries": (rows, features, heads), "factors": (1 + receives, heads, width), "bias": (heads, width)}
    for name in ("factors", "bias"):
        tensor, shape = tensors[name], shapes[name]
        if tensor is not None and tensor.dim() == len(shape) and all(
                size in (1, full) for size, full in zip(tensor.shape, shape, strict=True)):
            tensors[name] = tensor.expand(shape)
    check_shapes(tensors, shapes, context)
    if receives and operands.targets is None and rows != cols:
        raise ValueError(f"targets is None for {context}: receivers are the senders only if there are as many")
    return list(tensors.values())


def dropout_seed() -> torch.Tensor:
    """Draw a seed for dropout from torch's generator of the CPU."""
    return torch.randint(2**62, ())


TENSORS = tuple(field.name for field in fields(AttentionOperands))[:9]
OPERANDS = slice(INDEX_COUNT, INDEX_COUNT + len(TENSORS))


class _Sizes(NamedTuple):
    rows: int
    cols: int
    nonzeros: int
    heads: int
    width: int
    features: int


def _sizes(index: Sequence[torch.Tensor], values: torch.Tensor, edge_features: torch.Tensor | None) -> _Sizes:
    features = 0 if edge_features is None else edge_features.shape[1]
    return _Sizes(index[0].shape[0] - 1, index[3].shape[0] - 1, index[1].shape[0], *values.shape[1:], features)


def _empty_results(inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Allocate the results of a forward call.

    These are values, edges, values without bias for the backward pass, statistics, scores of nodes and coefficients.
    """
    values, edge_features = inputs[INDEX_COUNT], inputs[INDEX_COUNT + TENSORS.index("edge_features")]
    score, _, _, weights, differentiable = inputs[-OPTION_COUNT:]
    size = _sizes(inputs, values, edge_features)
    with_edges = score == SCORES.index("dot") and edge_features is not None
    return (values.new_empty(size.rows, size.heads, size.width),
            values.new_empty(size.rows if with_edges else 0, size.features, size.heads),
            values.new_empty(size.rows if differentiable else 0, size.heads, size.width),
            values.new_empty(size.rows, 3, size.heads),
            values.new_empty(_scored_nodes(inputs, size), size.heads),
            values.new_empty(size.nonzeros if weights else 0, size.heads))


def _scored_nodes(inputs: Sequence[Any], size: _Sizes) -> int:
    if inputs[-OPTION_COUNT] != SCORES.index("additive"):
        return 0
    factors = inputs[INDEX_COUNT + TENSORS.index("factors")]
    return size.cols + (size.rows if factors.shape[0] == 2 else 0)


def _run(*inputs: Any) -> tuple[torch.Tensor, ...]:
    results = _empty_results(inputs)
    call = _Call(inputs)
    *_, weights, differentiable = inputs
    call.set(result=results[0], edge_result=results[1], sums=results[2] if differentiable else None,
             statistics=results[3], scores=results[4], coefficients=results[5] if weights else None)
    call.run("sparloom_graph_attention")
    return results


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:-OPTION_COUNT], *output[1:5])
    ctx.options = inputs[-OPTION_COUNT:]
    ctx.mark_non_differentiable(*output[2:5])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: torch.Tensor | None) -> Gradients:
    *inputs, edge_result, sums, statistics, scores = ctx.saved_tensors
    if all(grad is None for grad in (grads[0], grads[1], grads[5])):
        return (None,) * (len(inputs) + len(ctx.options))
    grad = torch.zeros_like(sums) if grads[0] is None else grads[0].resolve_neg().contiguous()
    edge_grad = torch.zeros_like(edge_result) if grads[1] is None else grads[1].resolve_neg().contiguous()
    needed = ctx.needs_input_grad[OPERANDS]
    by_name = dict(zip(TENSORS, needed, strict=True))
    receivers = any(by_name[name] for name in ("targets", "edge_features", "edge_weight", "edge_queries", "factors"))
    coefficients = None if grads[5] is None else grads[5].resolve_neg().contiguous()
    gradients = _attention_backward(
        *inputs, edge_result, sums, statistics, scores, grad, edge_grad, coefficients,
        by_name["values"] or by_name["sources"], receivers, *ctx.options)
    kept = [gradient if wanted else None for gradient, wanted in zip(gradients, needed, strict=True)]
    if by_name["bias"]:
        kept[TENSORS.index("bias")] = grad.sum(0)
    return *(None,) * INDEX_COUNT, *kept, None, *(None,) * len(ctx.options)


def _refuse_second_derivative(*_: Any) -> NoReturn:
    raise RuntimeError("graph attention has no second derivatives and no forward mode: use backward without "
                       "create_graph=True, or PyTorch Geometric's layer")


def _run_backward(*inputs: Any) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of all operands; of those that do not exist or were not wanted, empty tensors."""
    tensors, options = inputs[:-OPTION_COUNT], inputs[-OPTION_COUNT:]
    *operands, edge_result, sums, statistics, scores, grad, edge_grad, coefficients, senders, receivers = tensors
    additive = SCORES[options[0]] == "additive"
    call = _Call((*operands, *options))
    tensors = dict(zip(TENSORS, operands[OPERANDS], strict=True))
    senders = senders or additive
    receivers = tensors["factors"].shape[0] == 2 if additive else receivers
    gradients = _empty_gradients(inputs)
    summed = [gradients[name] for name in ("factors", "edge_weight")]
    sums_slices = (receivers or additive) and call.slices > 1
    parts = [each.new_zeros(call.slices, *each.shape) if sums_slices and each.numel() else each.zero_()
             for each in summed]
    needs_edge_scores = additive and (receivers or tensors["edge_scores"] is not None)
    edge_scores = grad.new_empty(call.size.nonzeros, call.size.heads) if needs_edge_scores else None
    call.set(sums=sums, edge_result=edge_result, statistics=statistics.clone(), scores=scores, grad=grad,
             grad_edge_result=edge_grad, grad_coefficients=coefficients, grad_edge_scores=edge_scores,
             grad_factors=parts[0], grad_edge_weight=parts[1],
             **{f"grad_{name}": gradients[name] for name in (
                 "targets", "sources", "values", "edge_features", "edge_queries") if gradients[name].numel()})
    call.arguments.to_senders = senders
    call.arguments.to_receivers = receivers
    call.run("sparloom_graph_attention_backward")
    if sums_slices:
        gradients["factors"], gradients["edge_weight"] = (part.sum(0) if part.numel() else part for part in parts)
    if tensors["edge_scores"] is not None:
        gradients["edge_scores"] = edge_scores
    return tuple(gradients[name] for name in TENSORS)


def _empty_gradients(inputs: Sequence[Any]) -> dict[str, torch.Tensor]:
    values = inputs[INDEX_COUNT]
    return {name: values.new_empty(0) if tensor is None else torch.empty_like(tensor)
            for name, tensor in zip(TENSORS, inputs[OPERANDS], strict=True)}  # that of the bias is not computed here


_SCHEMA = ", ".join([*(f"Tensor {name}" for name in INDEX_NAMES), "Tensor values",
                     *(f"Tensor? {name}" for name in TENSORS[1:]), "Tensor? seed"])

_attention = define_operator(
    "graph_attention", f"({_SCHEMA}, {_OPTIONS}) -> ({', '.join(['Tensor'] * 6)})",
    run=_run, fake=lambda *inputs: _empty_results(inputs), setup_context=_setup_context, backward=_backward,
    jvp=lambda inputs, tangents: _refuse_second_derivative())

_attention_backward = define_operator(
    "graph_attention_backward",
    f"({_SCHEMA}, Tensor edge_result, Tensor sums, Tensor statistics, Tensor scores, Tensor grad, "
    f"Tensor edge_grad, Tensor? coefficients, bool to_senders, bool to_receivers, {_OPTIONS}) -> "
    f"({', '.join(['Tensor'] * len(TENSORS))})",
    run=_run_backward, fake=lambda *inputs: tuple(_empty_gradients(inputs).values()),
    setup_context=lambda ctx, inputs, output: None, backward=_refuse_second_derivative,
    jvp=lambda inputs, tangents: _refuse_second_derivative())


class _Call:
    """A call of a kernel with the operands of the operator."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        index, tensors = inputs[:INDEX_COUNT], dict(zip(TENSORS, inputs[OPERANDS], strict=True))
        seed, score, slope, dropout, weights, _ = inputs[-OPTION_COUNT - 1:]
        self.size = size = _sizes(index, tensors["values"], tensors["edge_features"])
        self.dtype = tensors["values"].dtype
        work = (size.nonzeros + size.rows + size.cols) * size.heads * max(size.width, 4)
        limit = MAX_SLICES if tensors["factors"] is None else MAX_SLICES_OF_PARTS
        self.slices = max(1, min(limit, work // SLICE_WORK))
        number = 0 if seed is None else int(seed)
        self.arguments = _Arguments(
            receivers=_Incidence(*(each.data_ptr() for each in index[:3]), size.rows),
            senders=_Incidence(*(each.data_ptr() for each in index[3:]), size.cols), heads=size.heads,
            width=size.width, edge_width=size.features, slope=slope, dropout=dropout,
            seed=(ctypes.c_uint32 * 2)(number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF), kind=score,
            threads=min(torch_threads(), self.slices), slices=self.slices,
            sets=0 if tensors["factors"] is None else tensors["factors"].shape[0], dropped=weights != 2)
        self._kept: list[Any] = list(index)
        self.set(**tensors)

    def set(self, **tensors: torch.Tensor | None) -> None:
        """Pass tensors, contiguous, to the kernel."""
        for name, tensor in tensors.items():
            setattr(self.arguments, name, None if tensor is None else tensor.data_ptr())
        self._kept += tensors.values()

    def run(self, name: str) -> None:
        """Run a kernel, unless there is nothing to compute."""
        library = _library(DTYPES[self.dtype])
        arguments = ctypes.byref(self.arguments)
        scratch = torch.empty(self.arguments.threads * library.sparloom_graph_attention_scratch(arguments) + 64,
                              dtype=torch.uint8, device="cpu")
        self.arguments.scratch = -(-scratch.data_ptr() // 64) * 64
        getattr(library, name)(arguments)


class _Incidence(ctypes.Structure):
    """The struct Incidence of kernels/cpu/graph_attention_pass.hpp."""

    _fields_ = (*((name, ctypes.c_void_p) for name in ("indptr", "others", "edges")), ("rows", ctypes.c_int64))


class _Arguments(ctypes.Structure):
    """The struct GraphAttention of kernels/cpu/graph_attention_pass.hpp."""

    _fields_ = (
        ("receivers", _Incidence), ("senders", _Incidence),
        *((name, ctypes.c_int64) for name in ("heads", "width", "edge_width")),
        *((name, ctypes.c_void_p) for name in (
            "targets", "sources", "values", "edge_scores", "edge_features", "edge_weight", "edge_queries", "factors",
            "bias", "scores", "result", "sums", "edge_result", "statistics", "coefficients", "grad", "grad_edge_result",
            "grad_coefficients", "grad_targets", "grad_sources", "grad_values", "grad_edge_scores",
            "grad_edge_features", "grad_edge_queries", "grad_factors", "grad_edge_weight", "scratch")),
        ("slope", ctypes.c_double), ("dropout", ctypes.c_double), ("seed", ctypes.c_uint32 * 2),
        *((name, ctypes.c_int32) for name in (
            "kind", "threads", "slices", "sets", "dropped", "to_senders", "to_receivers")),
    )


@cache
def _library(dtype: str) -> Any:
    library = compile_cpp([f"cpu/graph_attention_{dtype}.cpp"])
    library.sparloom_graph_attention_scratch.restype = ctypes.c_int64
    for name in ("", "_backward", "_scratch"):
        function = getattr(library, f"sparloom_graph_attention{name}")
        function.argtypes = [ctypes.c_void_p]
        if name != "_scratch":
            function.restype = None
    return library
