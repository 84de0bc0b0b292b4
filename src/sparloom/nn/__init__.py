"""The face to PyTorch: layers that take the place of others, and ragged tensors, computed by this package's kernels."""

from sparloom.nn.attention import MultiheadAttention
from sparloom.nn.gcn_conv import GCNConv
from sparloom.nn.graph import Graph
from sparloom.nn.nested import from_nested, to_nested
from sparloom.nn.torch_matrix import torch_csr
from sparloom.nn.transformer import TransformerEncoderLayer

__all__ = ["GCNConv", "Graph", "MultiheadAttention", "TransformerEncoderLayer", "from_nested", "to_nested",
           "torch_csr"]
