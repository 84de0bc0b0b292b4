"""The face to PyTorch: sparse operations, layers that take the place of others, and ragged tensors, by own kernels."""

from sparloom.nn.baselines import CUDA_SPARSE_LIBRARIES, SPARSE_LIBRARIES, device_csr, torch_csr
from sparloom.nn.batches import from_nested, to_nested
from sparloom.nn.graph import Graph
from sparloom.nn.graph_layers import GCNConv, SAGEConv, TransformerConv
from sparloom.nn.ragged_layers import LayerNorm, MultiheadAttention, TransformerEncoderLayer, ragged_softmax
from sparloom.nn.sparse import csr_attention, sddmm, spmm

__all__ = [
    "CUDA_SPARSE_LIBRARIES", "SPARSE_LIBRARIES", "GCNConv", "Graph", "LayerNorm", "MultiheadAttention", "SAGEConv",
    "TransformerConv", "TransformerEncoderLayer", "csr_attention", "device_csr", "from_nested", "ragged_softmax",
    "sddmm", "spmm", "to_nested", "torch_csr",
]
