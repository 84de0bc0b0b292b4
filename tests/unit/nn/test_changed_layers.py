"""Accelerated layers compute what PyTorch Geometric's compute after any change, or leave the call to them."""

import copy
import functools
import itertools

import pytest
import torch
from sparse_tensors import dense
from torch.nn.utils import parametrizations, parametrize, prune

import sparloom.nn
from sparloom.nn import accelerate, restore

geometric = pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
pytestmark = [
    pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")]

nn = geometric.nn
gcn_conv = nn.conv.gcn_conv
NODES, EDGES, WIDTH, FEATURES = 18, 70, 6, 3
SHARE = 13  # one of so many cases is in the suite
ERRORS = (AssertionError, AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)

LAYERS = {
    "GCN": lambda: nn.GCNConv(WIDTH, WIDTH), "GCN of weights": lambda: nn.GCNConv(WIDTH, 4, improved=True),
    "GCN with a cache": lambda: nn.GCNConv(WIDTH, WIDTH, cached=True, bias=False),
    "SAGE": lambda: nn.SAGEConv(WIDTH, WIDTH), "SAGE of a matrix": lambda: nn.SAGEConv(WIDTH, 4, "max"),
    "SAGE with all": lambda: nn.SAGEConv(WIDTH, 4, "sum", project=True, normalize=True),
    "Graph of weights": lambda: nn.GraphConv(WIDTH, WIDTH, "mean"),
    "GIN": lambda: nn.GINConv(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()), train_eps=True),
    "RGCN": lambda: nn.RGCNConv(WIDTH, WIDTH, 2, num_bases=2), "FastRGCN": lambda: nn.FastRGCNConv(WIDTH, 4, 2),
    "GAT": lambda: nn.GATConv(WIDTH, WIDTH), "GAT of a pair": lambda: nn.GATConv((WIDTH, WIDTH), WIDTH),
    "GAT of features": lambda: nn.GATConv(WIDTH, 3, heads=2, edge_dim=FEATURES, residual=True),
    "GATv2": lambda: nn.GATv2Conv(WIDTH, WIDTH, share_weights=True),
    "GATv2 of features": lambda: nn.GATv2Conv(WIDTH, 3, heads=2, edge_dim=FEATURES, residual=True),
    "Transformer": lambda: nn.TransformerConv(WIDTH, WIDTH, root_weight=False),
    "Transformer of features": lambda: nn.TransformerConv(WIDTH, 3, heads=2, edge_dim=FEATURES, beta=True),
}


def inputs(name):
    x = dense(NODES, WIDTH).requires_grad_()
    edges = torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(2))
    if name.endswith("a matrix"):
        return x, x, torch.sparse_coo_tensor(edges, dense(EDGES).abs() + 0.1, (NODES, NODES)).to_sparse_csr()
    more = ([dense(EDGES).abs() + 0.1] if name.endswith("weights") else [dense(EDGES, FEATURES)]
            if name.endswith("of features") else [torch.arange(EDGES) % 2] if "RGCN" in name else [])
    return x, (x, x * 2) if name.endswith("a pair") else x, edges, *more


def outcome(layer, name):
    """Return the result and the gradients of a call, or the error that it raises."""
    x, *arguments = inputs(name)
    parameters = [each for _, each in sorted(layer.named_parameters())]
    torch.manual_seed(3)
    try:
        result = layer(*arguments)
        grads = torch.autograd.grad(result.tanh().sum(), [x, *parameters], allow_unused=True, materialize_grads=True)
    except ERRORS as error:
        return error
    return [result, *grads]


class LowRank(torch.nn.Module):
    """An adapter: a layer with an addend."""

    def __init__(self, inner, inputs, outputs):
        super().__init__()
        self.inner, self.down = inner, torch.nn.Linear(inputs, 1, bias=False)
        self.up = torch.nn.Linear(1, outputs, bias=False)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))


class Rows(torch.nn.Module):
    """Part of the rows of what a layer returns, or these repeated."""

    def __init__(self, inner, share):
        super().__init__()
        self.inner, self.share = inner, share

    def forward(self, x):
        result = self.inner(x)
        rows = int(self.share * len(result))
        return torch.cat([result, result])[:rows].contiguous()


class Doubled(torch.nn.Module):
    """A parametrization."""

    def forward(self, weight):
        return 2 * weight


def halved(function):
    """Wrap a function so that tensors that it returns are halved."""
    @functools.wraps(function)
    def wrapper(*arguments, **named):
        result = function(*arguments, **named)
        is_number = isinstance(result, torch.Tensor) and result.is_floating_point()
        return result / 2 if is_number else result

    return wrapper


def replace_method(method):
    def change(layer, _):
        setattr(layer, method, halved(getattr(layer, method)))
    return change


def patch_class(method):
    def change(layer, patch):
        kind = getattr(layer, "original", type(layer))
        patch.setattr(kind, method, halved(getattr(kind, method)))
    return change


def subclass(method):
    def change(layer, _):
        kind = type(layer)
        layer.__class__ = type(f"Own{kind.__name__}", (kind,), {method: halved(getattr(kind, method))})
    return change


def register(part, when):
    hook = (lambda *_: None) if when == "pre_hook" else lambda module, given, result: 3 * result

    def change(layer, _):
        getattr(layer, f"register_{part}_forward_{when}")(hook)
    return change


def assign(name, value):
    return lambda layer, _: setattr(layer, name, value)


METHODS = ("forward", "propagate", "message", "aggregate", "message_and_aggregate", "update", "edge_update",
           "edge_updater", "_lift", "_collect", "collect", "edge_collect")
CHANGES = {f"{method} of the {what}": make(method) for method in METHODS for what, make in (
    ("layer", replace_method), ("class", patch_class), ("subclass", subclass))}
CHANGES |= {f"{when} of {part}": register(part, when) for when in ("pre_hook", "hook") for part in (
    "propagate", "message", "aggregate", "message_and_aggregate", "edge_update")}
VALUES = {
    "normalize": (False, True), "add_self_loops": (False, True), "improved": (True,), "cached": (True, False),
    "flow": ("target_to_source", "no flow"), "node_dim": (0, -2, 1, -1), "aggr": ("max", "mean", "sum", None),
    "concat": (False, True), "negative_slope": (0.5, 0.0), "dropout": (1.0, 1.5, -1.0), "root_weight": (False, True),
    "edge_dim": (None, FEATURES, torch.ones(2)), "residual": (False, True, torch.ones(2)), "res": (None,),
    "share_weights": (True, False), "fill_value": ("add", 2.0), "att_dst": (torch.nn.Parameter(torch.ones(1, 2, 3)),),
    "project": (True, False), "heads": (1, 2, 3), "out_channels": (2, 3), "fuse": (False,),
    "bias": (None, *(torch.nn.Parameter(torch.ones(shape)) for shape in (1, WIDTH, (1, WIDTH)))), "eps": (2.0,),
    "beta": (False, True), "num_bases": (None,), "num_relations": (1,), "root": (None,), "explain": (True, False),
    "decomposed_layers": (2, 3), "att_src": (torch.nn.Parameter(torch.ones(1, 1, 3)),), "att_edge": (None,),
    "att": (torch.nn.Parameter(torch.ones(1, 1, 3)), torch.nn.Parameter(torch.ones(1, 1, 1)), None),
    "lin_beta": (None,), "aggr_module": (nn.MaxAggregation(), nn.SumAggregation()), "lin": (None,), "lin_edge": (None,),
    "is_sorted": (True,), "lin_r": (None,), "_cached_edge_index": (None,),
}
CHANGES |= {f"{name}={tuple(value.shape) if isinstance(value, torch.Tensor) else value}": assign(name, value)
            for name, values in VALUES.items() for value in values}


def patch_function(kind, name):
    return lambda layer, patch: patch.setattr(kind, name, halved(getattr(kind, name)))


def doubled_norm(layer, patch):
    norm = gcn_conv.gcn_norm
    patch.setattr(gcn_conv, "gcn_norm", lambda *given, **named: (lambda edges, weights: (edges, 2 * weights))(
        *norm(*given, **named)))


def averaged_as_one_head(layer, _):
    layer.heads, layer.concat = 1, False


def as_reduced(layer, _):
    layer.aggr_module.reduce = halved(layer.aggr_module.reduce)


def explained_before(layer, _):
    layer.explain = True
    layer.explain = False


def decomposed_before(layer, _):
    layer.decomposed_layers = 2
    layer.decomposed_layers = 1


def scaled_cache(layer, _):
    layer(*inputs("GCN")[1:])
    layer._cached_edge_index[1].mul_(3)


def filled_cache(layer, _):
    layer(*inputs("GCN")[1:])
    layer.cached = False
    layer.add_self_loops = False


CHANGES |= {f"{kind.__name__}.{name}": patch_function(kind, name) for kind, name in (
    (nn.Linear, "forward"), (torch.nn.Linear, "forward"), (nn.SumAggregation, "forward"),
    (nn.MeanAggregation, "forward"), (nn.MaxAggregation, "forward"), (nn.Aggregation, "reduce"))}
CHANGES |= {
    "gcn_norm": doubled_norm, "averaged as one head": averaged_as_one_head,
    "hooks of aggr_module": lambda layer, _: layer.aggr_module.register_forward_hook(lambda *each: 2 * each[-1]),
    "reduce of aggr_module": as_reduced, "explained before": explained_before, "decomposed before": decomposed_before,
    "parametrized attention": lambda layer, _: parametrize.register_parametrization(layer, "att_src", Doubled()),
    "parametrized weight": lambda layer, _: parametrize.register_parametrization(layer, "weight", Doubled()),
    "pruned bias": lambda layer, _: prune.l1_unstructured(layer, "bias", 2), "scaled cache": scaled_cache,
    "filled cache": filled_cache, "hook of all modules": lambda layer, patch: patch.setitem(
        torch.nn.modules.module._global_forward_hooks, -1, lambda module, given, result: (
            2 * result if isinstance(module, nn.Linear) else None)),
}
CHILDREN = {
    "wrapped": lambda child, ins, outs: LowRank(child, ins, outs),
    "before dropout": lambda child, ins, outs: torch.nn.Sequential(child, torch.nn.Dropout(0.5)),
    "before relu": lambda child, ins, outs: torch.nn.Sequential(child, torch.nn.ReLU()),
    "with a bias": lambda child, ins, outs: nn.Linear(ins, outs, bias=True),
    "of torch": lambda child, ins, outs: torch.nn.Linear(ins, outs, bias=True),
    "identity": lambda child, ins, outs: torch.nn.Identity(), "norm": lambda child, ins, outs: torch.nn.LayerNorm(ins),
    "bilinear": lambda child, ins, outs: torch.nn.BatchNorm1d(ins),
    "double": lambda child, ins, outs: child.double(), "none": lambda child, ins, outs: None,
    "lazy": lambda child, ins, outs: nn.Linear(-1, outs, bias=False),
    "hooked": lambda child, ins, outs: (child.register_forward_hook(lambda *each: each[-1].tanh()), child)[1],
    "replaced forward": lambda child, ins, outs: (setattr(child, "forward", halved(child.forward)), child)[1],
    "parametrized": lambda child, ins, outs: parametrize.register_parametrization(child, "weight", Doubled()),
    "weight_norm": lambda child, ins, outs: parametrizations.weight_norm(child),
    "pruned": lambda child, ins, outs: prune.l1_unstructured(child, "weight", 3),
    "with fewer rows": lambda child, ins, outs: Rows(child, 0.6),
    "with one bias": lambda child, ins, outs: (setattr(child, "bias", torch.nn.Parameter(torch.ones(1))), child)[1],
    "in place": lambda child, ins, outs: torch.nn.Sequential(child, torch.nn.ReLU(inplace=True)),
}
LINEAR = ("lin", "lin_l", "lin_r", "lin_src", "lin_dst", "lin_edge", "lin_key", "lin_query", "lin_value", "lin_skip",
          "lin_beta", "lin_rel", "lin_root", "res", "nn")


def replace_child(name, make):
    def change(layer, _):
        child = getattr(layer, name)
        first = child[0] if isinstance(child, torch.nn.Sequential) else child
        outs, ins = first.weight.shape
        setattr(layer, name, make(child, ins, outs))
    return change


CHANGES |= {f"{name} {what}": replace_child(name, make) for name in LINEAR for what, make in CHILDREN.items()}


def applies(name, change):
    """Return whether a layer has the part that is changed."""
    if name.startswith(("RGCN", "Transformer")) and change.startswith("out_channels"):
        return False  # computes, or fails, where the original does the other
    layer = LAYERS[name]()
    part = change.split("=")[0].split(" ")[0]
    if part in (*VALUES, *LINEAR, *METHODS):
        return getattr(layer, part, None) is not None or (part in ("lin_edge", "res", "bias") and "=" in change)
    if "cache" in change:
        return name == "GCN with a cache"
    parts = {"parametrized attention": "att_src", "parametrized weight": "weight", "pruned bias": "bias"}
    return change not in parts or getattr(layer, parts[change], None) is not None


CASES = [pytest.param(name, change, id=f"{name}, {change}", marks=pytest.mark.exhaustive if number % SHARE else ())
         for number, (name, change) in enumerate(itertools.product(LAYERS, CHANGES)) if applies(name, change)]


def assert_alike(actual, expected):
    if isinstance(expected, Exception):
        assert isinstance(actual, Exception), f"no {expected!r}"
        return
    if isinstance(actual, Exception):
        raise actual
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * max(1.0, other.abs().max().item()))


@pytest.mark.parametrize("when", ["before", "after", "after a call"])
@pytest.mark.parametrize(("name", "change"), CASES)
def test_a_changed_layer_computes_as_the_original(name, change, when, monkeypatch) -> None:
    torch.manual_seed(0)
    plain = LAYERS[name]()
    fast = copy.deepcopy(plain)
    if when == "after":
        accelerate(fast, check=False)
    elif when == "after a call":
        accelerate(fast, check=False)
        outcome(fast, name), outcome(plain, name)
    errors = []
    for layer in (plain, fast):
        torch.manual_seed(5)
        with monkeypatch.context() as patch:
            try:
                CHANGES[change](layer, patch)
            except ERRORS as error:
                errors.append(error)
            if when == "before" and layer is fast:
                accelerate(fast, check=False)
            found = outcome(layer, name), outcome(layer, name)
        if layer is plain:
            expected = found
    assert len(errors) in (0, 2)
    for actual, wanted in zip(found, expected, strict=True):
        assert_alike(actual, wanted)


@pytest.mark.parametrize(("name", "part"), [
    (name, part) for name in LAYERS for part in LINEAR if getattr(LAYERS[name](), part, None) is not None])
def test_more_rows_than_nodes_are_refused(name, part) -> None:
    plain = LAYERS[name]()
    replace_child(part, lambda child, *_: Rows(child, 1.5))(plain, None)
    fast = copy.deepcopy(plain)
    accelerate(fast, check=False)
    actual, expected = outcome(fast, name), outcome(plain, name)
    if not isinstance(actual, ValueError):
        assert_alike(actual, expected)


@pytest.mark.parametrize("rows", [0.5, 1.5])
@pytest.mark.parametrize("kind", ["GCNConv", "SAGEConv", "GATConv"])
def test_layers_of_large_graphs_check_rows(kind, rows) -> None:
    edges = torch.arange(12000).view(2, 6000).repeat(1, 3) % 2000
    own = getattr(sparloom.nn, kind)(8, 4, **{"project": True} if kind == "SAGEConv" else {})
    own.lin = Rows(own.lin, rows)
    with pytest.raises(ValueError, match=rf"has shape \({int(2000 * rows)}, .* 2000 senders"):
        own(dense(2000, 8), edges)


def test_a_layer_parametrized_later_goes_back() -> None:
    layer = LAYERS["GAT"]()
    accelerate(layer, check=False)
    parametrize.register_parametrization(layer, "att_src", Doubled())
    before = outcome(layer, "GAT")
    restore(layer)
    assert "sparloom" not in "".join(kind.__module__ for kind in type(layer).__mro__)
    assert_alike(outcome(layer, "GAT"), before)


@pytest.mark.parametrize("name", [name for name in LAYERS if "matrix" not in name])
@pytest.mark.parametrize("check", [True, False])
def test_indices_of_32_bits_have_the_gradients_of_64(name, check) -> None:
    torch.manual_seed(0)
    plain = LAYERS[name]()
    fast, left = copy.deepcopy(plain), copy.deepcopy(plain)
    accelerate(fast, check=check), accelerate(left, check=check)
    left.register_propagate_forward_hook(lambda *_: None)
    x, features, *graph = inputs(name)
    narrow = [each.int() if not each.is_floating_point() else each for each in graph]
    for layer in (fast, left):
        for _ in range(3):
            results = []
            for module, arguments in ((plain, graph), (layer, narrow)):
                result = module(features, *arguments)
                results.append([result, *torch.autograd.grad(result.tanh().sum(), [x, *module.parameters()],
                                                             allow_unused=True, retain_graph=True)])
            assert_alike(*([each for each in result if each is not None] for result in reversed(results)))


@pytest.mark.parametrize("faster", [True, False])
def test_a_guard_that_has_settled_keeps_to_64_bits(faster, monkeypatch) -> None:
    plain = LAYERS["SAGE"]()
    fast = copy.deepcopy(plain)
    accelerate(fast)
    monkeypatch.setattr(type(fast.__dict__["_sparloom_guard"]), "outcome", faster)
    x, features, edges = inputs("SAGE")
    matrix = inputs("SAGE of a matrix")[-1]
    narrow = torch.sparse_csr_tensor(matrix.crow_indices().int(), matrix.col_indices().int(), matrix.values(),
                                     matrix.shape)
    for graph, wide in ((edges.int(), edges), (narrow, matrix)):
        grads = [torch.autograd.grad(layer(features, each).square().sum(), x)
                 for layer, each in ((fast, graph), (plain, wide))]
        assert_alike(*grads)
