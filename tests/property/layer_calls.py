"""Draws calls of layers of tokens and of graphs through rounds of training, against torch's and PyTorch Geometric's."""

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch_geometric.nn
from array_calls import Case, Wrong, in_child, pick
from tensor_calls import VIEWS, WRONG_TENSORS, changed, compare, drawn, near

from sparloom.nn import (
    GCNConv,
    Graph,
    LayerNorm,
    MultiheadAttention,
    SAGEConv,
    TransformerConv,
    TransformerEncoderLayer,
    ragged_softmax,
)
from sparloom.ragged import structure_of

__all__ = ["draw_graph_layer", "draw_graph_steps", "draw_token_layer", "draw_wrong_graph_layer", "draw_wrong_tokens"]

NODES = 12

def _copied(rng: np.random.Generator, layer: torch.nn.Module) -> torch.nn.Module:
    way = pick(rng, ("same", "same", "deepcopy", "pickle", "save"))
    if way == "deepcopy":
        return copy.deepcopy(layer)
    if way == "pickle":
        return pickle.loads(pickle.dumps(layer))
    if way == "save":
        file = io.BytesIO()
        torch.save(layer, file)
        return torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    return layer


def _write(rng: np.random.Generator, layer: torch.nn.Module) -> str:
    """Change the weights of a layer, partly by writes that torch does not count."""
    way = pick(rng, ("SGD", "Adam", "AdamW", "Adagrad", "plain", "data", "NumPy", "load", "none", "gaps", "parameter"))
    parameters = [each for each in layer.parameters() if each.grad is not None]
    if way in ("SGD", "Adam", "AdamW", "Adagrad", "plain"):
        if parameters:
            kind = getattr(torch.optim, "SGD" if way == "plain" else way)
            kind(parameters, lr=0.05, fused=way != "plain").step()
    elif way == "data":
        for each in layer.parameters():
            each.data.mul_(1.1).add_(0.01)
    elif way == "NumPy":
        for each in layer.parameters():
            each.detach().numpy()[...] += 0.05
    elif way == "gaps":
        for each in layer.parameters():
            each.data = torch.stack([each.data * 1.1, each.data], -1)[..., 0]
    elif way == "parameter":
        for module in layer.modules():
            for name, each in [*module.named_parameters(recurse=False)]:
                setattr(module, name, torch.nn.Parameter(each.detach().T.contiguous().T * 0.9))
    elif way == "load":
        layer.load_state_dict({name: each * 0.9 for name, each in layer.state_dict().items()})
    return way


def _rounds(
    rng: np.random.Generator, layer: torch.nn.Module, theirs: torch.nn.Module, call: Callable[..., torch.Tensor],
    reference: Callable[..., torch.Tensor], draw: Callable[[], dict[str, torch.Tensor]],
) -> None:
    """Call a layer in training or evaluation a few times, its weights written in between."""
    layer.zero_grad()
    for number in range(3):
        layer = _copied(rng, layer)
        torch.set_num_threads(pick(rng, (1, 2)))
        learn = rng.random() < 0.7
        layer.train(learn)
        theirs.load_state_dict({name: each.double() for name, each in layer.state_dict().items()})
        theirs.train(learn).zero_grad()
        layer.zero_grad()
        try:
            with torch.enable_grad() if learn else pick(rng, (torch.no_grad, torch.inference_mode))():
                compare(rng, draw(), partial(call, layer), partial(reference, theirs), learn=learn, tolerance=3e-4)
            for (name, own), wide in zip(layer.named_parameters(), theirs.parameters(), strict=True):
                if learn and wide.grad is not None:
                    near(torch.zeros_like(own) if own.grad is None else own.grad, wide.grad, f"gradient of {name}",
                          3e-4)
        except Wrong as error:
            raise Wrong(f"round {number}: {error}") from None
        _write(rng, layer)


def _token_layer(kind: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    match kind:
        case "norm":
            return LayerNorm(8), torch.nn.LayerNorm(8)
        case "attention":
            return MultiheadAttention(8, 2), torch.nn.MultiheadAttention(8, 2, batch_first=True)
        case "narrow attention":
            return MultiheadAttention(6, 6, bias=False), torch.nn.MultiheadAttention(6, 6, bias=False, batch_first=True)
    return (TransformerEncoderLayer(8, 2, 16),
            torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))


def _sequence(kind: str, theirs: torch.nn.Module, x: torch.Tensor, causal: bool) -> torch.Tensor:
    """Compute one sequence with torch."""
    mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[0], dtype=x.dtype) if causal else None
    if "attention" in kind:
        return theirs(x[None], x[None], x[None], need_weights=False, attn_mask=mask)[0][0]
    return theirs(x[None], src_mask=mask)[0] if kind == "encoder" else theirs(x)


LENGTHS: Mapping[str, Callable[[list[int]], Any]] = {
    "list": lambda n: n, "tuple": tuple, "tensor": torch.tensor, "int32": lambda n: torch.tensor(n, dtype=torch.int32),
    "uint8": lambda n: torch.tensor(n, dtype=torch.uint8), "array": np.array, "gaps": lambda n: np.repeat(n, 2)[::2],
    "structure": lambda n: structure_of(np.array(n)), "nested": lambda n: n,
}
WIDTHS = {"norm": 8, "attention": 8, "narrow attention": 6, "encoder": 8}


def draw_token_layer(rng: np.random.Generator) -> Case:
    """Draw a layer of tokens, or the softmax, through rounds of training."""
    kind = pick(rng, (*WIDTHS, "softmax"))
    lengths = [int(length) for length in rng.integers(0, 7, rng.integers(1, 5))]
    form, view = pick(rng, LENGTHS), pick(rng, VIEWS) if sum(lengths) else "plain"
    causal = kind not in ("norm", "softmax") and rng.random() < 0.4
    width = WIDTHS.get(kind) or pick(rng, (1, 3, 8))
    options = {"is_causal": True} if causal else {}

    def draw() -> dict[str, torch.Tensor]:
        return {"tokens": drawn(rng, sum(lengths), width)}

    def given(tokens: torch.Tensor) -> tuple[Any, ...]:
        tokens = VIEWS[view](tokens)
        if form != "nested":
            return tokens, LENGTHS[form](lengths)
        offsets = torch.tensor([0, *np.cumsum(lengths)])
        return (torch.nested.nested_tensor_from_jagged(tokens, offsets),)

    def flat(result: torch.Tensor) -> torch.Tensor:
        return result.values() if form == "nested" else result

    def softmax(tokens: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.softmax(part, 0) for part in VIEWS[view](tokens).split(lengths)])

    def reference(theirs: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        parts = VIEWS[view](tokens).split(lengths)
        return torch.cat([_sequence(kind, theirs, part, causal) if part.shape[0] else part for part in parts])

    def call() -> None:
        if kind == "softmax":
            compare(rng, draw(), lambda tokens: flat(ragged_softmax(*given(tokens))), softmax)
            return
        torch.manual_seed(int(rng.integers(2**31)))
        layer, theirs = _token_layer(kind)
        _rounds(rng, layer, theirs.double(), lambda own, tokens: flat(own(*given(tokens), **options)), reference, draw)

    return Case(f"tokens {kind}, lengths {lengths} as {form}, {view}, causal {causal}", call)


WRONG_LENGTHS: Mapping[str, Any] = {
    "too many": [3, 3], "too few": [2], "negative": [6, -1], "fractions": [2.5, 2.5], 
    "floats": torch.tensor([2.0, 3.0]),
    "two axes": [[2, 3]], "None": None, "text": "23", "bool": [True] * 5, "complex": [5j], "number": 5,
    "huge": [2**62, 2**62, 2**62, 2**62, 5], "wraps": np.array([2**64 - 1, 6], np.uint64), "objects": [None, 5],
    "meta": torch.tensor([2, 3], device="meta"), "NaN": [np.nan, 5.0], "beyond": [2**70],
    "sparse": torch.tensor([2, 3]).to_sparse(),
}


def draw_wrong_tokens(rng: np.random.Generator) -> Case:
    """Draw tokens or lengths that a layer refuses."""
    kind = pick(rng, (*WIDTHS, "softmax"))
    width = WIDTHS.get(kind, 8)
    tokens, lengths = drawn(rng, 5, width), [2, 3]
    if rng.random() < 0.5:
        form, fault = pick(rng, WRONG_LENGTHS), r"\b(lengths?|sequences)\b"
        lengths = WRONG_LENGTHS[form]
    else:
        form = pick(rng, [name for name in WRONG_TENSORS if name != "nested"] + ["wider"])
        tokens = torch.cat([tokens, tokens], 1)[:, : width + 1] if form == "wider" else WRONG_TENSORS[form](tokens)
        fault = r"\btokens\b"
        if kind == "softmax" and form == "wider":
            tokens = tokens[1:]
    call = ragged_softmax if kind == "softmax" else _token_layer(kind)[0]
    return Case(f"wrong tokens {kind}: {form}", lambda: call(tokens, lengths), fault)


def _graph_layer(kind: str, sizes: tuple[int, int]) -> tuple[torch.nn.Module, torch.nn.Module]:
    if kind == "gcn":
        return GCNConv(*sizes), torch_geometric.nn.GCNConv(*sizes)
    if kind == "transformer":
        return TransformerConv(*sizes, heads=2), torch_geometric.nn.TransformerConv(*sizes, heads=2)
    if kind == "transformer, mean":
        options = {"heads": 3, "concat": False}
        return TransformerConv(*sizes, **options), torch_geometric.nn.TransformerConv(*sizes, **options)
    aggregation, *rest = kind.split(", ")
    options = {"aggr": aggregation, "normalize": "normalize" in rest, "project": "project" in rest}
    return SAGEConv(*sizes, **options), torch_geometric.nn.SAGEConv(*sizes, **options)


GRAPH_LAYERS = ("gcn", "gcn", "transformer", "transformer, mean", "mean", "sum", "max", "mean, normalize",
                "sum, project")
GRAPH_FORMS = ("edges", "int32", "gaps", "Graph", "CSR", "COO", "Graph of CSR")
WRONG_GRAPHS: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "floats": lambda e: e.float(), "bool": lambda e: e > 3, "three rows": lambda e: torch.cat([e, e[:1]]),
    "beyond": lambda e: changed(e, 0, NODES), "negative": lambda e: changed(e, 1, -1), "array": lambda e: e.numpy(),
    "None": lambda e: None, "list": lambda e: e.tolist(), "one axis": lambda e: e[0], "meta": lambda e: e.to("meta"),
    "rectangular": lambda e: torch.ones(NODES, NODES + 1).to_sparse_csr(), "dense": lambda e: torch.ones(NODES, NODES),
    "smaller": lambda e: torch.ones(3, 3).to_sparse_csr(),
    "BSR": lambda e: torch.eye(NODES).to_sparse_bsr((1, 1)), "Graph of fewer": lambda e: Graph(e[:, :0], 3),
    "complex": lambda e: torch.eye(NODES, dtype=torch.complex64).to_sparse_csr(),
    "far": lambda e: changed(e, 0, 2**50),
}


def _edges(rng: np.random.Generator, count: int) -> torch.Tensor:
    return torch.from_numpy(np.unique(rng.integers(0, NODES, (2, count)), axis=1))


def draw_wrong_graph_layer(rng: np.random.Generator) -> Case:
    """Draw features or a graph that a layer refuses."""
    kind, edges = pick(rng, GRAPH_LAYERS), _edges(rng, 20)
    layer, _ = _graph_layer(kind, (3, 5))
    x = drawn(rng, NODES, 3)
    if rng.random() < 0.5:
        form = pick(rng, WRONG_TENSORS)
        given, fault = (WRONG_TENSORS[form](x), Graph(edges, NODES)), r"\bx\b"
    else:
        form, fault = pick(rng, WRONG_GRAPHS), r"graph|edge|receiver|sender|adjacency|matrix"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch's compressed layouts are in beta
            given = x, WRONG_GRAPHS[form](edges)
    return Case(f"graph {kind}, wrong: {form}", lambda: layer(*given), fault)


def draw_graph_layer(rng: np.random.Generator) -> Case:
    """Draw a graph layer and a graph in one of its forms."""
    kind = pick(rng, GRAPH_LAYERS)
    sizes = pick(rng, ((3, 5), (5, 3), (1, 4)) if "normalize" in kind else ((3, 5), (5, 3), (1, 4), (4, 1)))
    edges, form = _edges(rng, pick(rng, (0, 1, 20, 60))), pick(rng, GRAPH_FORMS[:4] if kind == "max" else GRAPH_FORMS)
    sparse, gcn = form in ("CSR", "COO", "Graph of CSR"), kind == "gcn"
    double, view = gcn and rng.random() < 0.3, pick(rng, VIEWS)
    weighted = gcn and not sparse and rng.random() < 0.5
    others = {"edge_weight": drawn(rng, edges.shape[1]).abs() + 0.1} if weighted else {}
    layer, theirs = _graph_layer(kind, sizes)
    adjacency = torch.zeros(NODES, NODES)
    adjacency[edges[1], edges[0]] = drawn(rng, edges.shape[1]).abs() + 0.1 if gcn else 1
    graph = {
        "edges": lambda: edges, "int32": lambda: edges.int(), "Graph": lambda: Graph(edges, NODES),
        "gaps": lambda: edges.repeat_interleave(2, 1)[:, ::2], "CSR": lambda: adjacency.to_sparse_csr(),
        "COO": lambda: adjacency.to_sparse_coo(), "Graph of CSR": lambda: Graph(adjacency.to_sparse_csr())}[form]()
    wanted = adjacency.double().to_sparse_csr() if sparse and gcn else edges
    layer = layer.double() if double else layer

    def call(own: torch.nn.Module, x: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        return own(VIEWS[view](x).to(own.lin.weight.dtype if gcn else x.dtype), graph, *others.values())

    def run() -> None:
        _rounds(rng, layer, theirs.double(), call,
                lambda own, x, **others: own(VIEWS[view](x), wanted, *others.values()),
                lambda: {"x": drawn(rng, NODES, sizes[0]), **others})

    return Case(f"graph {kind}, {sizes}, {edges.shape[1]} edges as {form}, {view}, {[*others]}, double {double}", run)


def draw_graph_steps(rng: np.random.Generator) -> Case:
    """Draw calls of one graph layer, whose edges and weights are written in place between them."""
    kind = pick(rng, ("gcn", "gcn", "transformer", "mean", "sum"))
    layer, theirs = _graph_layer(kind, (3, 5))
    theirs.double().load_state_dict({name: each.double() for name, each in layer.state_dict().items()})
    number = torch.arange(20)  # of every edge
    edges = torch.stack([(number * 5 + number // NODES) % NODES, number % NODES])
    weights = {"edge_weight": drawn(rng, 20).abs() + 0.1} if kind == "gcn" and rng.random() < 0.6 else {}
    names = [pick(rng, ("call", "edges", "weights", "copied", "in_child")) for _ in range(rng.integers(3, 7))]

    def call() -> None:
        compare(rng, {"x": drawn(rng, NODES, 3)}, lambda x: layer(x, edges, *weights.values()),
                lambda x: theirs(x, edges, *weights.values()), tolerance=3e-4)

    def run() -> None:
        nonlocal edges
        call()
        for step, name in enumerate(names):
            try:
                if name == "edges":
                    edges[0] = (edges[0] + int(rng.integers(1, NODES))) % NODES
                elif name == "weights":
                    for weight in weights.values():
                        weight.data.copy_(drawn(rng, 20).abs() + 0.2)
                elif name == "copied":
                    edges = edges.clone()
                if name == "in_child" and rng.random() < 0.3:
                    with torch.no_grad():
                        x = drawn(rng, NODES, 3)
                        given = edges, *weights.values()
                        in_child(lambda x=x, given=given: near(layer(x, *given), theirs(x.double(), *given), "result"))
                call()
            except Wrong as error:
                raise Wrong(f"step {step}, {name}: {error}") from None

    return Case(f"steps of graph {kind}, {[*weights]}: {', '.join(names)}", run)
