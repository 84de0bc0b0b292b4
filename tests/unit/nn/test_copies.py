"""Copies of layers and of attributes of modules compute the same as the originals and share no mutable state."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from sparse_tensors import dense
from torch.nn.utils import parametrize

import sparloom
from sparloom import nn
from sparloom.ragged import LENGTHS, Structure
from sparloom.solvers import JacobiSolver, Sweeps
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"), pytest.mark.filterwarnings("ignore:Sparse")]

NODES, WIDTH, LENGTHS_GIVEN = 20, 8, [5, 0, 12, 3]


def edges() -> torch.Tensor:
    return torch.unique(torch.randint(0, NODES, (2, 60), generator=torch.Generator().manual_seed(1)), dim=1)


def saved(thing):
    sink = io.BytesIO()
    torch.save(thing, sink)
    sink.seek(0)
    return torch.load(sink, weights_only=False)


WAYS = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
        "save": saved, "send": lambda thing: pickle.loads(bytes(ForkingPickler.dumps(thing)))}
APART = [way for way in WAYS if way not in ("copy", "send")]  # memory is shared in these two

LAYERS = {
    "SAGEConv": lambda: nn.SAGEConv(WIDTH, 4), "largest": lambda: nn.SAGEConv(WIDTH, 12, "max"),
    "GCNConv": lambda: nn.GCNConv(WIDTH, 4), "cached": lambda: nn.GCNConv(WIDTH, 4, cached=True),
    "cached, wider": lambda: nn.GCNConv(WIDTH, 12, cached=True),
    "TransformerConv": lambda: nn.TransformerConv(WIDTH, 4, heads=2),
    "GATConv": lambda: nn.GATConv(WIDTH, 4, heads=2),
    "MultiheadAttention": lambda: nn.MultiheadAttention(WIDTH, 2), "LayerNorm": lambda: nn.LayerNorm(WIDTH),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16)}


def call(layer: torch.nn.Module) -> torch.Tensor:
    inner = getattr(layer, "module", layer)
    tokens = isinstance(inner, nn.MultiheadAttention | nn.LayerNorm | nn.TransformerEncoderLayer)
    return layer(dense(NODES, WIDTH), LENGTHS_GIVEN if tokens else edges())


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def train(layer: torch.nn.Module) -> None:
    steps = torch.optim.SGD(layer.parameters(), 0.5)
    (call(layer) - 1).square().sum().backward()
    steps.step()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", LAYERS)
def test_copies_before_and_after_calls_compute_the_same(kind, way) -> None:
    layer = LAYERS[kind]()
    early = WAYS[way](layer)
    expected = call(layer)
    call(layer).sum().backward()
    for copied in (early, WAYS[way](layer), WAYS[way](WAYS[way](layer))):
        assert torch.equal(call(copied), expected)


@pytest.mark.parametrize("way", APART)
@pytest.mark.parametrize("kind", LAYERS)
def test_training_a_copy_leaves_the_original_and_the_other_way_round(kind, way) -> None:
    layer = LAYERS[kind]()
    first = call(layer).detach()
    copied = WAYS[way](layer)
    train(copied)
    assert torch.equal(call(layer), first)
    assert not torch.equal(call(copied), first)
    second = call(copied).detach()
    train(layer)
    assert torch.equal(call(copied), second)
    torch.testing.assert_close(call(layer), second)


@pytest.mark.parametrize("kind", LAYERS)
def test_averages_of_models_follow_them(kind) -> None:
    layer = LAYERS[kind]()
    call(layer)
    averaged = torch.optim.swa_utils.AveragedModel(layer, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    assert torch.equal(call(averaged), call(layer))
    train(layer)
    averaged.update_parameters(layer)
    averaged.update_parameters(layer)
    fresh = LAYERS[kind]()
    fresh.load_state_dict({name: 0.5 * value + 0.5 * value for name, value in averaged.module.state_dict().items()})
    torch.testing.assert_close(call(averaged), call(fresh))
    assert not torch.equal(call(averaged), call(LAYERS[kind]()))


@pytest.mark.parametrize("kind", LAYERS)
def test_state_dicts_shared_memory_and_conversions_go_round(kind) -> None:
    layer = LAYERS[kind]()
    expected = call(layer)
    other = LAYERS[kind]()
    call(other)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(call(other), expected)
    assert torch.equal(call(layer.share_memory()), expected)
    assert torch.equal(call(layer.double().float().cpu().to(torch.float32)), expected)


def test_a_cached_matrix_is_converted_with_its_layer() -> None:
    layer, x = nn.GCNConv(WIDTH, 4, cached=True), dense(NODES, WIDTH)
    expected = layer(x, edges())
    found = layer.double()(x.double(), edges().flip(0))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), expected)
    found.sum().backward()
    torch.testing.assert_close(copy.deepcopy(layer)(x.double(), edges()), found)
    torch.testing.assert_close(layer.float()(x, edges()), expected)


@pytest.mark.parametrize("way", WAYS)
def test_cached_weights_that_learn_are_copied_as_numbers(way) -> None:
    layer, weight = nn.GCNConv(WIDTH, 4, cached=True), torch.rand(edges().shape[1], requires_grad=True)
    expected = layer(dense(NODES, WIDTH), edges(), weight)
    assert torch.equal(WAYS[way](layer)(dense(NODES, WIDTH), edges().flip(0)), expected)


class Holder(torch.nn.Module):
    """A module with an attribute that is no module."""

    def __init__(self, held) -> None:
        super().__init__()
        self.held = held
        self.lin = torch.nn.Linear(1, 1)


def graph(**options) -> nn.Graph:
    return nn.Graph(edges(), NODES, **options)


def weighted(learn: bool) -> nn.Graph:
    return nn.Graph(dense(NODES, NODES).relu().to_sparse_csr().requires_grad_(learn))


def matrix(dtype=np.float32) -> SparseMatrix:
    full = dense(NODES, NODES).numpy() * (dense(NODES, NODES, seed=3).numpy() > 0.5) + 20 * np.eye(NODES)
    rows, cols = np.nonzero(full)
    pattern = Pattern.from_coo(rows, cols, (NODES, NODES))
    return SparseMatrix(pattern, full[rows, cols], dtype)


SAGE, GCN, NORM = nn.SAGEConv(WIDTH, 4), nn.GCNConv(WIDTH, 4), nn.LayerNorm(WIDTH)
HELD = {
    "graph": (graph, lambda held: [layer(dense(NODES, WIDTH), held) for layer in (SAGE, GCN)]),
    "weights": (lambda: weighted(False), lambda held: [SAGE(dense(NODES, WIDTH), held)]),
    "learning weights": (lambda: weighted(True), lambda held: [SAGE(dense(NODES, WIDTH), held)]),
    "structure": (lambda: Structure({LENGTHS: LENGTHS_GIVEN}), lambda held: [NORM(dense(NODES, WIDTH), held)]),
    "prepared": (lambda: sparloom.prepare(matrix()), lambda held: [
        held.spmm(dense(NODES, 5).numpy()), held.spmm(dense(NODES, 5).numpy(), reduce="max")]),
    "solver": (lambda: JacobiSolver(matrix(np.float64), 3), lambda held: [
        held.solve(dense(NODES, 3).double().numpy()).solution]),
    "sweeps": (lambda: JacobiSolver(matrix(np.float64), 3).sweeps(dense(NODES, 3).double().numpy()), lambda held: [
        held.advance(), held.latest.copy()])}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", HELD)
def test_attributes_of_modules_are_copied_with_them(kind, way) -> None:
    make, compute = HELD[kind]
    early = WAYS[way](Holder(make()))
    model = Holder(make())
    compute(model.held)
    copied = WAYS[way](model)
    both = [model.held, copied.held] if not isinstance(model.held, Sweeps) or way != "copy" else []
    for expected, found in zip(*map(compute, both), strict=True) if both else ():
        np.testing.assert_allclose(torch.as_tensor(found).detach(), torch.as_tensor(expected).detach(), rtol=1e-5)
    assert len(compute(early.held)) == len(compute(model.held))


@pytest.mark.parametrize("way", APART)
def test_copies_of_a_prepared_matrix_have_values_and_options_of_their_own(way) -> None:
    prepared = sparloom.prepare(matrix(), threads=1, replay_only=False)
    x = dense(NODES, 5).numpy()
    expected = prepared.spmm(x)
    copied = WAYS[way](prepared)
    copied.matrix.values[:] = 0
    np.testing.assert_allclose(prepared.spmm(x), expected, rtol=1e-5, atol=1e-5)
    assert not copied.spmm(x).any()
    assert copied.threads == 1
    assert copied._key(copied._case("spmm", _operands(copied, x))) == prepared._key(
        prepared._case("spmm", _operands(prepared, x)))


def _operands(prepared, x):
    return sparloom.ops.Operands(prepared.matrix, {"B": x})


def test_copies_of_a_graph_drop_prepared_matrices() -> None:
    original = graph()
    SAGE(dense(NODES, WIDTH), original)
    copied = copy.deepcopy(original)
    assert copied.aggregation() is not original.aggregation()
    assert copied.edges.rows.data_ptr() != original.edges.rows.data_ptr()
    assert copied.nodes == NODES


@pytest.mark.parametrize("kind", ["SAGEConv", "GCNConv", "cached", "TransformerConv", "MultiheadAttention",
                                  "TransformerEncoderLayer", "LayerNorm"])
def test_parametrised_weights_are_read_once_per_call_and_learn(kind) -> None:
    layer, counted = LAYERS[kind](), []

    class Doubled(torch.nn.Module):
        def forward(self, weight):
            counted.append(1)
            return 2 * weight

    inner, name = {"SAGEConv": ("lin_l", "weight"), "GCNConv": ("lin", "weight"), "cached": ("lin", "weight"),
                   "TransformerConv": ("lin_value", "weight"), "MultiheadAttention": (None, "in_proj_weight"),
                   "TransformerEncoderLayer": ("linear1", "weight"), "LayerNorm": (None, "weight")}[kind]
    module = getattr(layer, inner) if inner else layer
    plain = copy.deepcopy(layer)
    with torch.no_grad():
        getattr(getattr(plain, inner) if inner else plain, name).mul_(2)
    parametrize.register_parametrization(module, name, Doubled())
    counted.clear()
    result = call(layer)
    assert len(counted) == 1
    torch.testing.assert_close(result, call(plain))
    result.square().sum().backward()
    call(plain).square().sum().backward()
    expected = getattr(getattr(plain, inner) if inner else plain, name).grad
    torch.testing.assert_close(getattr(module.parametrizations, name).original.grad, 2 * expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(call(copy.deepcopy(layer)), call(layer))
