"""The face to PyTorch: layers that take the place of others, computed by the kernels of this package."""

from sparloom.nn.gcn_conv import GCNConv
from sparloom.nn.graph import Graph

__all__ = ["GCNConv", "Graph"]
