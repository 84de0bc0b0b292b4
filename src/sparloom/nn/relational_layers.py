"""Graph layers with a weight for each relation between nodes, as drop-in replacements of PyTorch Geometric's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sparloom.nn.aggregation import Matrices, aggregate, prepare_aggregation
from sparloom.nn.content_hash import sampled_hash
from sparloom.nn.custom_ops import without_functorch
from sparloom.nn.edges import MAX_NODES, Flow, parse_edges, plain_edges
from sparloom.nn.graph import cached_for_edges
from sparloom.nn.message_passing import Aggregation, Features, GraphLayer, channel_pair
from sparloom.nn.torch_integration import check_positive_ints, eager


@dataclass(frozen=True, eq=False)
class Relations:
    """Edges grouped by relation and receiver: a group is a relation and a node that receives by it.

    Groups are ordered by relation, so that the features of one relation are consecutive rows.

    Args:
        gather: (2, edges), from senders to groups.
        gather_embeddings: the same, from nodes of each relation, numbered relation by relation.
        scatter: (2, groups), from groups to receivers.
        lengths: groups of each relation.
        senders, receivers: numbers of nodes.
    """

    gather: torch.Tensor
    gather_embeddings: torch.Tensor
    scatter: torch.Tensor
    lengths: tuple[int, ...]
    senders: int
    receivers: int

    def aggregate(self, features: torch.Tensor, aggr: Aggregation) -> torch.Tensor:
        """Aggregate features (senders, width) over the edges of each group, (groups, width)."""
        return aggregate(self._matrices(features, self.gather, len(features)), features, aggr)

    def aggregate_embeddings(self, embeddings: torch.Tensor, aggr: Aggregation) -> torch.Tensor:
        """Aggregate embeddings (relations, senders, width) over the edges of each group, (groups, width)."""
        features = embeddings.flatten(0, 1)
        return aggregate(self._matrices(features, self.gather_embeddings, len(features)), features, aggr)

    def sum(self, features: torch.Tensor) -> torch.Tensor:
        """Sum features of groups, (groups, width), for each receiver, (receivers, width)."""
        size = len(features), self.receivers
        _, _, matrices = prepare_aggregation((features, None), self.scatter, size, flow="source_to_target")
        return aggregate(matrices, features, "sum")

    def _matrices(self, features: torch.Tensor, edges: torch.Tensor, senders: int) -> Matrices:
        size = senders, sum(self.lengths)
        return prepare_aggregation((features, None), edges, size, flow="source_to_target")[2]


class RGCNConv(GraphLayer):
    """W x_i + sum over relations r of W_r times the mean of x_j over the senders j of i by r.

    A drop-in replacement for torch_geometric.nn.RGCNConv: arguments, initialisation, names and shapes of parameters are
    those of PyTorch Geometric; results and gradients agree up to rounding. All relations are aggregated by one sparse
    product, to a row for each relation and node that receives by it; no messages of edges are stored.

    Args:
        in_channels: columns of X; a tuple: those of senders and of receivers.
        num_bases: make the weights of relations from so many matrices.
        num_blocks: make them block-diagonal, of so many blocks.
        aggr: "mean", "sum" or its alias "add", "max" or "min", for each relation.
        is_sorted: ignored; edges are grouped once for each edge_index.
        options: `flow`, as of `SAGEConv`.

    Source: Schlichtkrull et al., Modeling Relational Data with Graph Convolutional Networks. Departure: as in
    `SAGEConv` for maxima.
    """

    fixed_attributes = frozenset({"in_channels", "out_channels", "num_relations", "num_bases", "num_blocks"})
    required_attributes: ClassVar[Mapping[str, Any]] = {**GraphLayer.required_attributes, "node_dim": 0}

    def __init__(
        self, in_channels: int | tuple[int, int], out_channels: int, num_relations: int, num_bases: int | None = None,
        num_blocks: int | None = None, aggr: Aggregation = "mean", root_weight: bool = True, is_sorted: bool = False,
        bias: bool = True, **options: Any,
    ) -> None:
        super().__init__(**options)
        senders, receivers = channel_pair(in_channels, out_channels)
        check_positive_ints(in_channels=min(senders, receivers), num_relations=num_relations,
                            num_bases=num_bases or 1, num_blocks=num_blocks or 1)
        if num_bases is not None and num_blocks is not None:
            raise ValueError("num_bases and num_blocks cannot be given both: pass one of them")
        if num_blocks is not None and (senders % num_blocks or out_channels % num_blocks):
            raise ValueError(f"num_blocks={num_blocks} does not divide in_channels={senders} and "
                             f"out_channels={out_channels}")
        self.in_channels, self.out_channels, self.num_relations = in_channels, out_channels, num_relations
        self.num_bases, self.num_blocks, self.is_sorted = num_bases, num_blocks, is_sorted
        self.in_channels_l, self.aggr = senders, aggr
        shape: tuple[int, ...] = (num_relations, senders, out_channels)
        if num_bases is not None:
            shape = (num_bases, senders, out_channels)
        elif num_blocks is not None:
            shape = (num_relations, num_blocks, senders // num_blocks, out_channels // num_blocks)
        self.weight = torch.nn.Parameter(torch.empty(shape))
        self._parameter("comp", num_bases is not None, num_relations, num_bases or 0)
        self._parameter("root", root_weight, receivers, out_channels)
        self._parameter("bias", bias, out_channels)
        self.reset_parameters()

    def _parameter(self, name: str, exists: bool, *shape: int) -> None:
        self.register_parameter(name, torch.nn.Parameter(torch.empty(shape)) if exists else None)

    def reset_parameters(self) -> None:
        """Reset the weights (Glorot) and the bias (0)."""
        for weight in (self.weight, self.comp, self.root):
            if weight is not None:
                limit = (6 / (weight.shape[-2] + weight.shape[-1])) ** 0.5
                torch.nn.init.uniform_(weight, -limit, limit)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self, x: Features | tuple[torch.Tensor | None, torch.Tensor] | None, edge_index: Any,
        edge_type: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Aggregate features over the edges of each relation.

        Args:
            x: (nodes, in_channels) float32, or those of senders and receivers; integers (nodes,): numbers of nodes,
                whose weights are embeddings; None: all nodes, in_channels of them, in their order.
            edge_index: (2, edges), also as an EdgeIndex, or a sparse matrix whose values are relations.
            edge_type: (edges,) integers, the relation of each edge, with edge_index.

        Returns:
            (receivers, out_channels).
        """
        return self.convolve(*self.prepare(x, edge_index, edge_type))

    def prepare(
        self, x: Any, edge_index: Any, edge_type: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, Relations]:
        """Check the arguments of `forward`; return what `convolve` takes."""
        source, target = x if isinstance(x, tuple) else (x, x)
        if isinstance(x, tuple) and self.flow == "target_to_source":
            raise ValueError("flow='target_to_source' needs one kind of node: pass edge_index.flip(0) to a layer with "
                             "the default flow")
        if source is None:
            source = torch.arange(self.in_channels_l, device=next(self.parameters()).device)
        target = source if target is None else target
        for each, name in ((source, "senders"), (target, "receivers")):
            if not isinstance(each, torch.Tensor) or each.dtype not in (torch.float32, torch.int64, torch.int32) or (
                    each.dim() != (2 if each.is_floating_point() else 1)):
                kind = f"{each.dtype} of shape {tuple(each.shape)}" if isinstance(each, torch.Tensor) else type(each)
                raise TypeError(f"x of {name} is {kind}: expected (nodes, in_channels) float32 or (nodes,) integers")
        if source.is_floating_point() and source.shape[1] != self.in_channels_l:
            raise ValueError(f"x has shape {tuple(source.shape)}: expected (nodes, {self.in_channels_l})")
        if source.is_floating_point() != target.is_floating_point():
            raise TypeError(f"x of senders is {source.dtype} and of receivers {target.dtype}: pass features or numbers "
                            "of nodes for both")
        if not source.is_floating_point() and self.num_blocks is not None:
            raise ValueError("num_blocks needs features: pass x of float32")
        weight = self._parameters.get("weight")  # None: a parametrization computes it
        if weight is not None and weight.dtype != torch.float32:
            raise TypeError(f"the weight is {weight.dtype}, but this layer computes in torch.float32: use "
                            "layer.float()")
        return source, target, relations(edge_index, edge_type, len(source), len(target), count=self.num_relations,
                                         flow=self.flow)

    def convolve(self, source: torch.Tensor, target: torch.Tensor, relations: Relations) -> torch.Tensor:
        """Compute the result from checked arguments."""
        weight = self.weight
        if self.num_bases is not None:
            weight = (self.comp @ weight.flatten(1)).view(-1, *weight.shape[1:])
        if source.is_floating_point():
            groups = relations.aggregate(source, self.aggr)
            transform = self._transform_blocks if self.num_blocks is not None else torch.mm
            parts = [transform(part, weight[number])
                     for number, part in enumerate(groups.split(relations.lengths)) if len(part)]
            result = torch.cat(parts) if parts else groups.new_zeros(0, self.out_channels)
        else:
            result = relations.aggregate_embeddings(weight[:, source], self.aggr)
        result = relations.sum(result)
        if self.root is not None:
            result = result + (target @ self.root if target.is_floating_point() else self.root[target])
        return result if self.bias is None else result + self.bias

    def _transform_blocks(self, features: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """Multiply by a block-diagonal matrix, given by its blocks (blocks, rows, columns)."""
        return torch.einsum("abc,bcd->abd", features.unflatten(1, blocks.shape[:2]), blocks).flatten(1)

    def extra_repr(self) -> str:
        """Return the channels and the number of relations."""
        return f"{self.in_channels}, {self.out_channels}, num_relations={self.num_relations}"


@eager
def relations(
    edges: Any, types: torch.Tensor | None, senders: int, receivers: int, *, count: int, flow: Flow,
) -> Relations:
    """Group edges by relation and receiver; cached while the tensor of edges lives and nothing has changed.

    Args:
        edges: edge_index or a sparse matrix.
        types: (edges,), with edge_index.
        count: number of relations.

    Raises:
        TypeError, ValueError: types are missing, or have another shape, dtype or range.
    """
    plain = plain_edges(edges, (senders, receivers), flow)
    if types is None and isinstance(plain, torch.Tensor) and plain.layout != torch.strided:
        return _grouped(plain, None, senders, receivers, count=count, flow=flow)
    if not isinstance(types, torch.Tensor) or types.is_floating_point() or types.is_complex() or types.dim() != 1:
        kind = f"{types.dtype} of shape {tuple(types.shape)}" if isinstance(types, torch.Tensor) else type(types)
        raise TypeError(f"edge_type is {kind}: expected (edges,) integers")
    if not isinstance(plain, torch.Tensor) or plain.layout != torch.strided:
        raise TypeError("edge_type was passed with a sparse matrix: put the relations into its values")
    with without_functorch():
        key = "relations", senders, receivers, count, flow
        content, cached = sampled_hash(types), cached_for_edges(edges, plain, key, dict)
        made = cached.get(content)
        if made is None:
            made = _grouped(plain, types, senders, receivers, count=count, flow=flow)
            cached.clear()
            cached[content] = made
    return made


def _grouped(
    edges: torch.Tensor, types: torch.Tensor | None, senders: int, receivers: int, *, count: int, flow: Flow,
) -> Relations:
    parsed = parse_edges(edges, (senders, receivers), flow)
    types = (parsed.weights if types is None else types).to("cpu", torch.int64)
    if types.shape != parsed.rows.shape:
        raise ValueError(f"edge_type has shape {tuple(types.shape)} for {parsed.rows.numel()} edges: expected one "
                         "relation per edge")
    if types.numel() and not 0 <= int(types.min()) <= int(types.max()) < count:
        raise ValueError(f"relations range from {int(types.min())} to {int(types.max())}: expected 0 to {count - 1}")
    if count * max(senders, 1) > MAX_NODES:
        raise ValueError(f"{count} relations of {senders} nodes are more than {MAX_NODES}: split the relations among "
                         "layers")
    groups, group_of_edge = torch.unique(types * receivers + parsed.rows, return_inverse=True)
    lengths = torch.bincount(groups // max(receivers, 1), minlength=count)
    made = (torch.stack([parsed.cols, group_of_edge]), torch.stack([types * senders + parsed.cols, group_of_edge]),
            torch.stack([torch.arange(len(groups)), groups % max(receivers, 1)]))
    return Relations(*(each.to(edges.device) for each in made), tuple(lengths.tolist()), senders, receivers)
