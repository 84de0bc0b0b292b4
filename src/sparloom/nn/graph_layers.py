"""Graph layers: drop-in replacements for those of PyTorch Geometric."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch

from sparloom.nn.attention_edges import weighted_edges
from sparloom.nn.attention_layers import AttentionLayer, check_nodes_of, exact_product, factors_of, pair_of
from sparloom.nn.convolution import Adjacency
from sparloom.nn.edges import Flow, Normalisation
from sparloom.nn.graph import (
    Graph,
    aggregation_inputs,
    cached_graph,
    check_features,
    check_nodes,
    fuses_on,
)
from sparloom.nn.message_passing import (
    Channels,
    Features,
    GraphLayer,
    LazyLinear,
    channel_pair,
    initialise_lazy,
    is_product,
    linear,
    reset_glorot,
    stored_weight,
)
from sparloom.nn.sparse import csr_attention
from sparloom.nn.torch_integration import (
    SUPPORTED_DEVICES,
    autocast_operands,
    check_bool,
    eager,
)

First = Literal["auto", "transform", "aggregate"]
GCN_DTYPES = {"cpu": (torch.float32, torch.float64), "cuda": (torch.float32,)}  # by device type


class GCNConv(GraphLayer):
    """D^-1/2 (A + I) D^-1/2 X W^T + b, a drop-in replacement for torch_geometric.nn.GCNConv.

    Arguments, initialisation, names and shapes of parameters are those of PyTorch Geometric; results and gradients
    agree up to rounding. On the CPU the sparse and the dense product are fused, forward and backward.

    Args:
        in_channels: columns of X; -1: those of the first call.
        improved: A + 2 I. Departure: also for an edge_index without weights, where PyTorch Geometric 2.8 uses A + I.
        cached: keep the first normalised matrix for all later calls, whatever graph they pass. Without it a matrix is
            still normalised once per tensor, until the tensor is written to.
        first: "transform": A (X W^T), on the CPU by tile fusion if the layer is called with a `Graph`, planned by
            `sparloom.tuning.plan_pair` in the first call; "aggregate": (A X) W^T, where A X is saved, and spares a
            sparse product in the backward pass, if X needs no gradient; "auto": "aggregate" unless the result has
            fewer columns than X.
        options: `flow`, see `Graph`; other options of PyTorch Geometric's MessagePassing must have their defaults.

    Source: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks.
    """

    fixed_attributes = frozenset({"in_channels", "out_channels"})
    supported_aggregations = ("add", "sum")

    def __init__(
        self, in_channels: int, out_channels: int, improved: bool = False, cached: bool = False,
        add_self_loops: bool | None = None, normalize: bool = True, bias: bool = True, *, first: First = "auto",
        **options: Any,
    ) -> None:
        super().__init__(**{"aggr": "add"} | options)
        if isinstance(in_channels, tuple | list):
            raise TypeError(f"in_channels={in_channels!r}: bipartite graphs are not supported: expected an int")
        channel_pair(in_channels, out_channels)
        if first not in get_args(First):
            raise ValueError(f"first={first!r}: expected one of {', '.join(get_args(First))}")
        add_self_loops = normalize if add_self_loops is None else add_self_loops
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached = improved, cached
        self.add_self_loops, self.normalize = add_self_loops, normalize
        self._check_self_loops()
        self.first = first
        self.lin = linear(in_channels, out_channels, bias=False, reset=reset_glorot)
        self.register_parameter("bias", torch.nn.Parameter(torch.empty(out_channels)) if bias else None)
        self.reset_parameters()

    def validated(self, name: str, value: Any) -> Any:
        """Drop the cached matrix if it would be normalised differently now."""
        if name in ("improved", "add_self_loops", "normalize") and value is not self.__dict__.get(name):
            self._cached = None
        return super().validated(name, value)

    def reset_parameters(self) -> None:
        """Reset the weight (Glorot) and the bias (0), and drop the cached matrix."""
        if not isinstance(self.lin, LazyLinear):
            reset_glorot(self.lin)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
        self._cached: Adjacency | None = None

    @eager
    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor | Graph, edge_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Convolve features over a graph.

        Args:
            x: (nodes, in_channels), float32 or, on the CPU, float64 like the weight; under torch.autocast also float16
                or bfloat16.
            edge_index: a Graph, which layers share, or edges to make one from, on the device of x.
            edge_weight: (edges,), with edge_index only (default: ones).

        Returns:
            (nodes, out_channels) of the dtype of x; float32 under torch.autocast.
        """
        return self.convolve(*self.prepare(x, edge_index, edge_weight))

    def prepare(
        self, x: torch.Tensor, edge_index: torch.Tensor | Graph, edge_weight: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Adjacency]:
        """Check the arguments of `forward`; return features and the normalised matrix, as `convolve` takes them."""
        check_features(x, self.in_channels)
        initialise_lazy(self.lin, x)
        return self.checked(x, lambda x: self._adjacency(x, edge_index, edge_weight))

    def checked(
        self, x: torch.Tensor, adjacency: Callable[[torch.Tensor], Adjacency],
    ) -> tuple[torch.Tensor, Adjacency]:
        """Check features and the matrix for them, which is made once they are checked."""
        x, weight = autocast_operands(x.resolve_neg(), stored_weight(self.lin))
        if weight is not None:
            _check_features(x, weight)
        made = adjacency(x)
        check_nodes(x, made)
        return x, made

    def _adjacency(
        self, x: torch.Tensor, edge_index: torch.Tensor | Graph, edge_weight: torch.Tensor | None,
    ) -> Adjacency:
        adjacency = self._cached
        if adjacency is None:
            adjacency = normalised(x, edge_index, edge_weight, self.normalisation, self.flow)
            if self.cached and self.normalize:
                self._cached = adjacency
        elif adjacency.dtype != x.dtype:
            adjacency = self._cached = adjacency.to(x.dtype)
        return adjacency

    def convolve(self, x: torch.Tensor, adjacency: Adjacency) -> torch.Tensor:
        """Compute the result from checked arguments."""
        is_plain = is_product(self.lin, self.linear_class)
        x, = (x,) if is_plain else autocast_operands(self.lin(x))
        weight = self.lin.weight.resolve_neg() if is_plain else torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        weight, bias = autocast_operands(weight, self.bias)
        _check_features(x, weight)
        _check_bias(x, weight, bias)
        order = "tile_fused" if self.first == "transform" else self.first
        if order == "auto":
            order = "aggregate" if weight.shape[1] <= weight.shape[0] else "transform"
        return adjacency.convolve(x, weight, bias, order=order)

    @property
    def normalisation(self) -> Normalisation:
        """Return how this layer normalises the adjacency matrix."""
        self._check_self_loops()
        return Normalisation((2.0 if self.improved else 1.0) if self.add_self_loops else 0.0, self.normalize)

    def _check_self_loops(self) -> None:
        if self.add_self_loops and not self.normalize:
            raise ValueError("add_self_loops=True needs normalize=True: normalize, or add the self-loops to the "
                             "graph and pass add_self_loops=False")

    def extra_repr(self) -> str:
        """Return the channels."""
        return f"{self.in_channels}, {self.out_channels}"


def normalised(
    x: torch.Tensor, edge_index: torch.Tensor | Graph, edge_weight: torch.Tensor | None, normalisation: Normalisation,
    flow: Flow,
) -> Adjacency:
    """Return the normalised matrix of a graph, or of edges between as many nodes as x has rows."""
    graph = edge_index if isinstance(edge_index, Graph) else cached_graph(edge_index, x.shape[0], flow)
    return graph.adjacency(normalisation, x.dtype, edge_weight)


def _check_features(x: torch.Tensor, weight: torch.Tensor) -> None:
    if x.device != weight.device or x.device.type not in GCN_DTYPES:
        raise ValueError(f"x is on {x.device} and the weight on {weight.device}: both must be on the same CPU or CUDA "
                         "device")
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {tuple(x.shape)}: expected (nodes, {weight.shape[1]})")
    if x.dtype != weight.dtype or x.dtype not in GCN_DTYPES[x.device.type]:
        raise TypeError(f"x is {x.dtype} and the weight {weight.dtype}: both must be float32, or both float64"
                        f"{'' if x.device.type == 'cpu' else ', on the CPU'}")


def _check_bias(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    if bias is not None and (bias.dtype != x.dtype or bias.device != x.device):
        raise TypeError(f"the bias is {bias.dtype} on {bias.device} and x {x.dtype} on {x.device}: dtypes and devices "
                        f"must match: use layer.to({x.dtype})")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"the bias has shape {tuple(bias.shape)}: expected ({weight.shape[0]},)")


class TransformerConv(AttentionLayer):
    """W1 x_i + attention from node i to its senders, a drop-in replacement for torch_geometric.nn.TransformerConv.

    Arguments, initialisation, names and shapes of parameters are those of PyTorch Geometric; results and gradients
    agree up to rounding. No messages and no scores are stored, see `sparloom.nn.graph_attention`. On a GPU only for one
    kind of node, without edge features, dropout, repeated edges and weights as a result, see
    `sparloom.nn.csr_attention`.

    Args:
        in_channels, dropout, options: as of `GATConv`.
        beta: weight both summands by a gate that is computed from them.
        edge_dim: columns of the features of edges, e_ij; W6 e_ij is added to the keys and values of j. Both are linear
            in it, so W6 is applied to the queries and to the sums of features instead of every edge.

    Source: Shi et al., Masked Label Prediction: Unified Message Passing Model for Semi-Supervised Classification.
    """

    fixed_attributes = AttentionLayer.fixed_attributes | {"beta"}

    def __init__(
        self, in_channels: Channels, out_channels: int, heads: int = 1, concat: bool = True, beta: bool = False,
        dropout: float = 0.0, edge_dim: int | None = None, bias: bool = True, root_weight: bool = True, **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, heads=heads, concat=concat, edge_dim=edge_dim, dropout=dropout,
                         **options)
        check_bool("beta", beta)
        senders, receivers = channel_pair(in_channels, out_channels)
        self.root_weight, self.beta = root_weight, beta and root_weight
        width = heads * out_channels
        total = width if concat else out_channels
        self.lin_key = linear(senders, width, bias=bias)
        self.lin_query = linear(receivers, width, bias=bias)
        self.lin_value = linear(senders, width, bias=bias)
        self.lin_edge = None if edge_dim is None else linear(edge_dim, width, bias=False)
        self.lin_skip = linear(receivers, total, bias=bias)
        self.lin_beta = linear(3 * total, 1, bias=False) if self.beta else None
        self.reset_parameters()

    def forward(
        self, x: Features, edge_index: Any, edge_attr: torch.Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Attend from each node to its senders.

        Args:
            x: (nodes, in_channels), or a pair for a bipartite graph; dtypes as of `GATConv.forward`.
            edge_index, edge_attr: as of `GATConv.forward`.
            return_attention_weights: True or False: also return the edges and their weights, before dropout.

        Returns:
            As `GATConv.forward`; under torch.autocast of its dtype, as in PyTorch Geometric.
        """
        whole = isinstance(return_attention_weights, bool)
        if isinstance(x, torch.Tensor) and x.device.type in SUPPORTED_DEVICES and not fuses_on(x.device):
            return self._on_gpu(x, edge_index, edge_attr is not None or whole)
        x_src, x_dst = pair_of(x)
        check_nodes_of(x_src, self.lin_value)
        check_nodes_of(x_dst, self.lin_query)
        edges = self.edges_of(edge_index, x_src, x_dst, loops=False)
        features = self.edge_features(edge_attr, edge_index, edges)
        if self.edge_dim is not None and features is None:
            raise ValueError(f"edge_attr is missing: this layer has edge_dim={self.edge_dim}: pass it to the call")
        query, key, value = self.lin_query(x_dst), self.lin_key(x_src), self.lin_value(x_src)
        queries, keys, values = (each.unflatten(1, (self.heads, self.out_channels))
                                 for each in autocast_operands(query, key, value))
        queries = queries * self.out_channels ** -0.5
        weight, operands = None, {}
        if features is not None:
            features, weight = factors_of(self.lin_edge, features, self.linear_class)
            weight = weight.unflatten(0, (self.heads, self.out_channels))
            operands = {"edge_features": features, "edge_queries": exact_product(queries, weight, "nhc,hcf->nfh")}
        attended = self.attend("dot", edges, "whole" if whole else "none", values=values, targets=queries, sources=keys,
                               **operands)
        result = attended.values
        if weight is not None:
            result = result + exact_product(attended.edges, weight, "nfh,hcf->nhc")
        result = self._with_root(self.joined(result).to(value.dtype), x_dst)
        return (result, weighted_edges(edge_index, edges, attended.weights)) if whole else result

    def _with_root(self, result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add W1 x, or mix it in by the gate."""
        if not self.root_weight:
            return result
        root = self.lin_skip(x)
        if self.lin_beta is None:
            return result + root
        gate = self.lin_beta(torch.cat([result, root, result - root], dim=-1)).sigmoid()
        return gate * root + (1 - gate) * result

    def _on_gpu(self, x: torch.Tensor, edge_index: Any, unsupported: bool) -> torch.Tensor:
        if unsupported or self.edge_dim is not None or (self.training and self.dropout > 0):
            raise ValueError(f"x is on {x.device}: edge features, dropout and attention weights as a result are "
                             "computed on the CPU: pass x.cpu(), or use PyTorch Geometric's layer")
        matrices = aggregation_inputs(x, edge_index, x.shape[1], self.lin_value)
        if matrices.duplicate_edge is not None:
            sender, receiver = matrices.duplicate_edge
            raise ValueError(f"the edge from {sender} to {receiver} occurs more than once, but attention on a GPU "
                             "would count it once: pass torch.unique(edge_index, dim=1)")
        query, key, value = (layer(x).unflatten(1, (self.heads, self.out_channels))
                             for layer in (self.lin_query, self.lin_key, self.lin_value))
        return self._with_root(self.joined(csr_attention(matrices.sum, query, key, value).to(value.dtype)), x)
