"""The GraphSAGE operator as a layer, in place of PyTorch Geometric's."""

from typing import Any

import torch

from sparloom.nn.connections import Connections
from sparloom.nn.graph import Graph
from sparloom.nn.hooks import is_plain
from sparloom.nn.neighbours import MESSAGES, check_channels, neighbours_of
from sparloom.nn.sparse import spmm
from sparloom.nn.transforms import Layer, check_flag

__all__ = ["SAGEConv"]

AGGREGATIONS = ("mean", "sum", "add", "max")


class SAGEConv(Layer):
    """W1 x_i + W2 mean of x_j over the senders j of i, takes the place of torch_geometric.nn.SAGEConv.

    Arguments, initial weights, names and shapes of parameters are those of PyTorch Geometric; results and gradients
    agree up to rounding. Which sparse kernel aggregates is measured, see `sparloom.nn.spmm`.

    Args:
        in_channels: columns of X. Departure: neither -1 nor a tuple, senders and receivers are the same nodes.
        out_channels: columns of the result.
        aggr: "mean", "sum", also called "add", or "max", of each column; nodes that nobody sends to get 0.
        normalize: rows of the result are divided by their Euclidean norm.
        root_weight: whether there is W1.
        project: senders send relu(W3 x_j + b) in place of x_j.
        bias: whether there is one.

    Raises:
        TypeError, ValueError: an argument that this layer cannot follow; the message says which.

    Source: Hamilton, Ying and Leskovec, Inductive Representation Learning on Large Graphs. Where the result has fewer
    columns than X, W2 is applied before the mean or sum, which so has less to do. Departure: of senders with the same
    largest number one gets all of the gradient, the first; PyTorch Geometric divides it among those of an edge_index.
    """

    sizes = frozenset({"in_channels", "out_channels"})
    only = MESSAGES

    def __init__(
        self, in_channels: int, out_channels: int, aggr: str = "mean", normalize: bool = False,
        root_weight: bool = True, project: bool = False, bias: bool = True,
    ) -> None:
        super().__init__()
        check_channels(in_channels, out_channels)
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        if project:
            self.lin = torch.nn.Linear(in_channels, in_channels)
        self.lin_l = torch.nn.Linear(in_channels, out_channels, bias=bias)
        if root_weight:
            self.lin_r = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.reset_parameters()

    def accepted(self, name: str, value: Any) -> Any:
        """Refuse other aggregations, and parts that have no parameters here."""
        if name == "aggr" and value not in AGGREGATIONS:
            raise ValueError(f"aggr={value!r}: this layer has {', '.join(AGGREGATIONS)}")
        part = {"root_weight": "lin_r", "project": "lin"}.get(name)
        if part and name in self.__dict__:
            check_flag(name, value, parameters=part in self._modules)
        return value

    def reset_parameters(self) -> None:
        """Draw the parameters anew, uniformly within 1 / sqrt(in_channels)."""
        for layer in self.children():
            layer.reset_parameters()

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor | Graph) -> torch.Tensor:
        """Aggregate features over a graph.

        Args:
            x: (nodes, in_channels), float32; under torch.autocast also of half precision.
            edge_index: a Graph, which layers share, or what one is made of, where x is; values of a sparse matrix are
                weights.

        Returns:
            (nodes, out_channels); under torch.autocast of its type, as by PyTorch Geometric.

        Raises:
            TypeError, ValueError: x, graph and layer do not fit together; the message says how.
        """
        connections = neighbours_of(x, edge_index, self.in_channels, self.lin_l)
        sent = self.lin(x).relu() if self.project else x
        result = self._largest(connections, sent) if self.aggr == "max" else self._linear(connections, sent)
        if self.root_weight:
            result = result + self.lin_r(x)
        return torch.nn.functional.normalize(result, dim=-1) if self.normalize else result

    def _largest(self, connections: Connections, sent: torch.Tensor) -> torch.Tensor:
        if connections.maxima is None:
            sender, receiver = connections.repeated
            raise ValueError(f"the edge from {sender} to {receiver} is there more than once, with weights: the largest "
                             "product is not that of their sum, pass a matrix with each once")
        return self.lin_l(spmm(connections.maxima, sent, reduce="max"))

    def _linear(self, connections: Connections, sent: torch.Tensor) -> torch.Tensor:
        if self.aggr not in ("mean", "sum", "add"):
            raise ValueError(f"aggr={self.aggr!r}: this layer has {', '.join(AGGREGATIONS)}")
        matrix = connections.means if self.aggr == "mean" else connections.sums
        if self.in_channels <= self.out_channels or not is_plain(self.lin_l, torch.nn.Linear):
            return self.lin_l(spmm(matrix, sent))
        transformed, bias = sent @ self.lin_l.weight.T, self.lin_l.bias
        result = spmm(matrix, transformed)
        return (result if bias is None else result + bias).to(transformed.dtype)

    def extra_repr(self) -> str:
        """Show the channels."""
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"
