"""Attributes of layers that are set after construction change the result or are refused."""

import pytest
import torch
from sparse_tensors import dense

from sparloom import nn

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache")]

NODES, WIDTH, LENGTHS = 20, 8, [5, 0, 12, 3]
EDGES = torch.unique(torch.randint(0, NODES, (2, 60), generator=torch.Generator().manual_seed(1)), dim=1)
LAYERS = {
    "SAGEConv": lambda **inputs: nn.SAGEConv(WIDTH, 4, **inputs),
    "GCNConv": lambda **inputs: nn.GCNConv(WIDTH, 4, **inputs),
    "TransformerConv": lambda **inputs: nn.TransformerConv(WIDTH, 4, **inputs),
    "GATConv": lambda **inputs: nn.GATConv(WIDTH, 4, **inputs),
    "GATv2Conv": lambda **inputs: nn.GATv2Conv(WIDTH, 4, **inputs),
    "LayerNorm": lambda **inputs: nn.LayerNorm(WIDTH, **inputs),
    "MultiheadAttention": lambda **inputs: nn.MultiheadAttention(WIDTH, **{"num_heads": 2} | inputs),
    "TransformerEncoderLayer": lambda **inputs: nn.TransformerEncoderLayer(WIDTH, 2, 16, **inputs),
}
REFUSED = [
    *(("SAGEConv", "aggr", value) for value in ("median", "mul", None, "", ["mean", "max"], torch.nn.ReLU())),
    *((kind, name, value) for kind in ("SAGEConv", "GCNConv", "TransformerConv") for name, value in (
        ("in_channels", 5), ("out_channels", 5), ("flow", "both"), ("node_dim", 0),
        ("aggr_module", torch.nn.ReLU()), ("message", lambda x_j: -x_j), ("aggregate", max), ("update", None.__eq__))),
    ("TransformerConv", "flow", "both"), ("GCNConv", "aggr", "max"), ("TransformerConv", "aggr", "mean"),
    ("SAGEConv", "project", True), ("SAGEConv", "project", "yes"), ("SAGEConv", "root_weight", None),
    ("TransformerConv", "root_weight", "no"),
    ("TransformerConv", "heads", 2), ("TransformerConv", "concat", False), ("TransformerConv", "beta", True),
    ("TransformerConv", "dropout", -0.5), ("TransformerConv", "edge_dim", 3),
    *((kind, name, value) for kind in ("GATConv", "GATv2Conv") for name, value in (
        ("heads", 2), ("concat", False), ("edge_dim", 3), ("dropout", 2.0), ("dropout", "half"), ("aggr", "mean"),
        ("negative_slope", None), ("residual", True), ("fill_value", "median"), ("add_self_loops", 1))),
    ("GATv2Conv", "share_weights", True),
    ("LayerNorm", "eps", "small"), ("LayerNorm", "eps", True), ("LayerNorm", "normalized_shape", (4,)),
    ("LayerNorm", "schedule", "fast"),
    ("MultiheadAttention", "num_heads", 3), ("MultiheadAttention", "num_heads", 0),
    ("MultiheadAttention", "num_heads", 2.0), ("MultiheadAttention", "embed_dim", 16),
    ("MultiheadAttention", "dropout", 0.5), ("MultiheadAttention", "batch_first", False),
    ("MultiheadAttention", "add_zero_attn", True), ("MultiheadAttention", "bias_k", torch.nn.Parameter(torch.ones(1))),
    ("MultiheadAttention", "schedule", 3),
    ("TransformerEncoderLayer", "norm_first", 1), ("TransformerEncoderLayer", "activation", "tanh"),
    ("TransformerEncoderLayer", "activation", torch.nn.Tanh()),
    ("TransformerEncoderLayer", "activation_relu_or_gelu", 2), ("TransformerEncoderLayer", "dropout", 0.1),
    *(("TransformerEncoderLayer", name, torch.nn.Dropout(0.1)) for name in ("dropout", "dropout1", "dropout2")),
    ("TransformerEncoderLayer", "schedule", "fast"),
]


def computed(layer: torch.nn.Module) -> torch.Tensor:
    graph = type(layer).__name__.endswith("Conv")
    return layer(dense(NODES, WIDTH), EDGES if graph else LENGTHS)


def alike(kind: str, name: str, value: object, **before: object) -> None:
    """Compare a layer with a changed attribute with one that is constructed with this value."""
    layer, wanted = LAYERS[kind](**before), LAYERS[kind](**before | {name: value})
    first = computed(layer)
    wanted.load_state_dict(layer.state_dict(), strict=False)
    setattr(layer, name, value)
    torch.testing.assert_close(computed(layer), computed(wanted))
    assert not torch.equal(first, computed(layer))


@pytest.mark.parametrize("kind", LAYERS)
def test_values_that_a_layer_does_not_have_are_refused_and_change_nothing(kind) -> None:
    layer = LAYERS[kind]()
    before = computed(layer)
    for each, name, value in REFUSED:
        if each == kind:
            with pytest.raises((TypeError, ValueError), match=rf"{name}="):
                setattr(layer, name, value)
    torch.testing.assert_close(computed(layer), before)


@pytest.mark.parametrize(("kind", "name", "value", "before"), [
    ("SAGEConv", "aggr", "max", {}), ("SAGEConv", "aggr", "sum", {}), ("SAGEConv", "aggr", "add", {"aggr": "max"}),
    ("SAGEConv", "normalize", True, {}), ("SAGEConv", "root_weight", False, {}),
    ("SAGEConv", "project", False, {"project": True}),
    ("SAGEConv", "aggr", "min", {}), ("SAGEConv", "flow", "target_to_source", {}),
    ("GCNConv", "flow", "target_to_source", {}),
    ("GCNConv", "add_self_loops", False, {}), ("GCNConv", "improved", True, {}),
    ("GCNConv", "improved", True, {"cached": True}), ("GCNConv", "add_self_loops", False, {"cached": True}),
    ("TransformerConv", "root_weight", False, {}), ("GATConv", "negative_slope", 0.6, {}),
    ("GATConv", "add_self_loops", False, {}), ("GATConv", "residual", False, {"residual": True}),
    ("GATv2Conv", "negative_slope", 0.6, {}), ("LayerNorm", "eps", 0.5, {}),
    ("MultiheadAttention", "num_heads", 4, {}), ("TransformerEncoderLayer", "norm_first", True, {}),
    ("TransformerEncoderLayer", "activation", "gelu", {}),
])
def test_other_values_are_computed_with(kind, name, value, before) -> None:
    alike(kind, name, value, **before)


def test_self_loops_without_normalisation_are_refused_when_it_is_computed() -> None:
    layer = nn.GCNConv(WIDTH, 4)
    layer.normalize = False
    with pytest.raises(ValueError, match=r"add_self_loops=True needs normalize=True: .* pass add_self_loops=False"):
        computed(layer)
    layer.add_self_loops = False
    plain = nn.GCNConv(WIDTH, 4, normalize=False)
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(computed(layer), computed(plain))


def test_a_value_that_came_past_the_assignment_is_refused_when_it_is_computed() -> None:
    layer = nn.SAGEConv(WIDTH, 4)
    layer.__dict__["aggr"] = "median"
    with pytest.raises(ValueError, match="aggr='median': expected one of mean, sum, add, max"):
        computed(layer)


def test_unchanged_values_may_be_set() -> None:
    encoder = LAYERS["TransformerEncoderLayer"]()
    before = computed(encoder)
    encoder.norm_first, encoder.activation, encoder.dropout = False, torch.nn.ReLU(), torch.nn.Dropout(0)
    encoder.self_attn.dropout = 0.0
    encoder.schedule = None
    torch.testing.assert_close(computed(encoder), before)
    convolution = LAYERS["TransformerConv"]()
    convolution.heads, convolution.flow = 1, "source_to_target"


def test_norms_of_an_encoder_take_another_eps() -> None:
    encoder = LAYERS["TransformerEncoderLayer"]()
    before = computed(encoder)
    encoder.norm1.eps = encoder.norm2.eps = 0.5
    assert not torch.allclose(computed(encoder), before)
    encoder.norm1.eps = encoder.norm2.eps = "small"
    with pytest.raises(TypeError, match="eps"):
        computed(encoder)
