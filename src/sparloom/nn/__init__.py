"""The face to PyTorch: sparse operations, layers that take the place of others, and ragged tensors, by own kernels."""

from sparloom.nn.attention import MultiheadAttention
from sparloom.nn.cuda_rivals import CUDA_SPARSE_LIBRARIES
from sparloom.nn.gcn_conv import GCNConv
from sparloom.nn.graph import Graph
from sparloom.nn.layer_norm import LayerNorm
from sparloom.nn.nested import from_nested, to_nested
from sparloom.nn.rivals import SPARSE_LIBRARIES
from sparloom.nn.sage_conv import SAGEConv
from sparloom.nn.softmax import ragged_softmax
from sparloom.nn.sparse import csr_attention, sddmm, spmm
from sparloom.nn.torch_matrix import device_csr, torch_csr
from sparloom.nn.transformer import TransformerEncoderLayer
from sparloom.nn.transformer_conv import TransformerConv

__all__ = ["CUDA_SPARSE_LIBRARIES", "SPARSE_LIBRARIES", "GCNConv", "Graph", "LayerNorm", "MultiheadAttention",
           "SAGEConv", "TransformerConv", "TransformerEncoderLayer", "csr_attention", "device_csr", "from_nested",
           "ragged_softmax", "sddmm", "spmm", "to_nested", "torch_csr"]
