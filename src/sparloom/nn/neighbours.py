"""What layers that aggregate over a graph are given: features, and a graph in any of its forms."""

from numbers import Integral

import torch

from sparloom.nn.autocast import DEVICES, autocast_operands, remedy
from sparloom.nn.connections import Connections
from sparloom.nn.eager import eager
from sparloom.nn.graph import Graph
from sparloom.nn.known import graph_of

__all__ = ["MESSAGES", "check_channels", "check_features", "neighbours_of"]

MESSAGES = {
    "flow": "source_to_target", "node_dim": -2, "aggr_module": None, "message": None, "aggregate": None, "update": None,
    "propagate": None, "message_and_aggregate": None, "edge_update": None,
}
"""Attributes by which layers of PyTorch Geometric pass messages, and the one value that ours know."""


def check_channels(in_channels: int, out_channels: int) -> None:
    """Refuse what is not one number of columns for all nodes.

    Raises:
        TypeError: a tuple, for two kinds of nodes.
        ValueError: below 1.
    """
    if isinstance(in_channels, bool) or not isinstance(in_channels, Integral):
        raise TypeError(f"in_channels={in_channels!r}: this layer has one kind of nodes: give an int")
    if isinstance(out_channels, bool) or not isinstance(out_channels, Integral):
        raise TypeError(f"out_channels={out_channels!r}: give an int")
    if min(in_channels, out_channels) < 1:
        raise ValueError(f"{in_channels} input and {out_channels} output channels: give at least 1 of each")


def check_features(x: torch.Tensor, channels: int) -> None:
    """Refuse features of several kinds of nodes, and what is no dense tensor.

    Raises:
        TypeError: x is one of them.
    """
    if isinstance(x, tuple):
        raise TypeError(f"x is a tuple of {len(x)}: this layer has one kind of nodes: give one dense "
                        f"tensor, (nodes, {channels})")
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        what = f"layout {x.layout}" if isinstance(x, torch.Tensor) else f"type {type(x).__name__}"
        raise TypeError(f"x of {what}: give a dense tensor, (nodes, {channels})")


@eager
def neighbours_of(
    x: torch.Tensor, edge_index: torch.Tensor | Graph, channels: int, linear: torch.nn.Linear,
) -> Connections:
    """Find the connections between the nodes that features belong to.

    Args:
        x: (nodes, channels) float32.
        edge_index: a Graph, or what one is made of, where x is.
        linear: a layer whose weights multiply x.

    Raises:
        TypeError, ValueError: they do not fit together; the message says how.
    """
    check_features(x, channels)
    x, = autocast_operands(x)
    if x.device.type not in DEVICES:
        raise ValueError(f"x on {x.device}: this layer computes on the CPU and on NVIDIA GPUs: use .cpu() or .cuda()")
    if x.dtype != torch.float32:
        raise TypeError(f"x of {x.dtype}: this layer computes in torch.float32: {remedy(x, 'use .float()')}")
    weight = linear._parameters.get("weight")  # not the attribute, which a parametrization would compute once more
    if weight is not None and autocast_operands(weight)[0].dtype != torch.float32:
        raise TypeError(f"weights of {weight.dtype}: this layer computes in torch.float32: use layer.float()")
    if x.dim() != 2 or x.shape[1] != channels:
        raise ValueError(f"x has shape {tuple(x.shape)}: it must be (nodes, {channels})")
    graph = edge_index if isinstance(edge_index, Graph) else graph_of(edge_index, x.shape[0])
    if x.shape[0] != graph.nodes:
        raise ValueError(f"x has {x.shape[0]} rows for a graph of {graph.nodes} nodes: give one row per node")
    if x.device != graph.device:
        raise ValueError(f"x on {x.device} and the graph on {graph.device}: make the graph of edge_index.to(x.device)")
    return graph.connections()
