"""The graph transformer operator as a layer, in place of PyTorch Geometric's."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from sparloom.nn.graph import Graph
from sparloom.nn.neighbours import MESSAGES, check_channels, neighbours_of
from sparloom.nn.sparse import csr_attention
from sparloom.nn.transforms import Layer, check_counts, check_flag

__all__ = ["TransformerConv"]


class TransformerConv(Layer):
    """W1 x_i + attention of node i to its senders, takes the place of torch_geometric.nn.TransformerConv.

    Arguments, initial weights, names and shapes of parameters are those of PyTorch Geometric; results and gradients
    agree up to rounding. No score is stored on the way forward, see `sparloom.nn.csr_attention`.

    Args:
        in_channels: columns of X. Departure: neither -1 nor a tuple, senders and receivers are the same nodes.
        out_channels: columns of a head.
        heads: at least 1.
        concat: the result has the columns of all heads; otherwise their mean.
        beta: False: there is no gate between W1 x and attention.
        dropout: 0; there is no other.
        edge_dim: None: edges have no features.
        bias: whether projections have one.
        root_weight: whether W1 x is added.

    Raises:
        TypeError, ValueError: an argument that this layer cannot follow; the message says which.

    Source: Shi et al., Masked Label Prediction: Unified Message Passing Model for Semi-Supervised Classification.
    """

    sizes = frozenset({"in_channels", "out_channels", "heads", "concat"})
    only: ClassVar[Mapping[str, Any]] = {
        **MESSAGES, "aggr": "add", "beta": False, "dropout": 0, "edge_dim": None, "lin_beta": None, "lin_edge": None}

    def __init__(
        self, in_channels: int, out_channels: int, heads: int = 1, concat: bool = True, beta: bool = False,
        dropout: float = 0.0, edge_dim: int | None = None, bias: bool = True, root_weight: bool = True,
    ) -> None:
        super().__init__()
        check_channels(in_channels, out_channels)
        check_counts(heads=heads)
        for name, given, only in (("beta", beta, False), ("dropout", dropout, 0), ("edge_dim", edge_dim, None)):
            if given != only:
                raise ValueError(f"{name}={given}: this layer has neither gate, dropout nor edge features: give {only}")
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.root_weight = concat, root_weight
        width = heads * out_channels
        self.lin_key = torch.nn.Linear(in_channels, width, bias=bias)
        self.lin_query = torch.nn.Linear(in_channels, width, bias=bias)
        self.lin_value = torch.nn.Linear(in_channels, width, bias=bias)
        self.lin_skip = torch.nn.Linear(in_channels, width if concat else out_channels, bias=bias)
        self.reset_parameters()

    def accepted(self, name: str, value: Any) -> Any:
        """Refuse a root weight that is neither added nor left out."""
        if name == "root_weight" and name in self.__dict__:
            check_flag(name, value)
        return value

    def reset_parameters(self) -> None:
        """Draw the parameters anew, uniformly within 1 / sqrt(in_channels)."""
        for layer in self.children():
            layer.reset_parameters()

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor | Graph, edge_attr: None = None) -> torch.Tensor:
        """Let nodes attend to those that send to them.

        Args:
            x: (nodes, in_channels), float32; under torch.autocast also of half precision.
            edge_index: a Graph, which layers share, or what one is made of, where x is; no edge twice. Values of a
                sparse matrix are not read.
            edge_attr: None.

        Returns:
            (nodes, heads * out_channels), or (nodes, out_channels) without `concat`; under torch.autocast of its type,
            as by PyTorch Geometric.

        Raises:
            TypeError, ValueError: x, graph and layer do not fit together; the message says how.
        """
        if edge_attr is not None:
            raise ValueError("edge_attr: this layer has no edge features: leave it out, or use PyTorch Geometric's")
        connections = neighbours_of(x, edge_index, self.in_channels, self.lin_value)
        if connections.repeated is not None:
            sender, receiver = connections.repeated
            raise ValueError(f"the edge from {sender} to {receiver} is there more than once, and attention would weigh "
                             "it once: pass torch.unique(edge_index, dim=1)")
        query, key, value = (layer(x).unflatten(1, (self.heads, self.out_channels))
                             for layer in (self.lin_query, self.lin_key, self.lin_value))
        result = csr_attention(connections.sums, query, key, value).to(value.dtype)
        result = result.flatten(1) if self.concat else result.mean(1)
        return result + self.lin_skip(x) if self.root_weight else result

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"
