"""Sparse and ragged layers for PyTorch: operations with gradients, and drop-in replacements of layers.

Files, from what users call to what runs:

    sparse             `spmm`, `sddmm`, `csr_attention`: checks of operands
    operators          the same as operators of torch.ops.sparloom, with their gradients
    custom_ops         how operators are registered, and which derivatives are supported
    pattern_cache      prepared patterns, found again by their index tensors
    tensor_backend     how tensors of a device reach kernels
    baselines          torch's own sparse products, which a kernel must beat
    content_hash       detects that tensors have changed

    accelerate         makes a model of PyTorch Geometric compute by these layers, in place
    accelerated_layers layers of PyTorch Geometric that do so
    guard              times both in alternating calls, and keeps the faster one
    graph_layers       `GCNConv`, `TransformerConv`
    attention_layers   `GATConv`, `GATv2Conv`
    attention_edges    edges as attention reads them, self-loops, features of edges
    graph_attention    the kernels of attention over edges, as operators
    aggregating_layers `SAGEConv`, `GraphConv`, `GINConv`
    relational_layers  `RGCNConv`
    aggregation        how these aggregate: checks, and the fastest way
    message_passing    what graph layers share: options, lazy sizes
    graph              `Graph`: what layers share
    convolution        the matrices of graphs, and layers computed with them
    sorted_edges       edges sorted by receiver, without other preparation
    edges              edges, normalisation, sorted matrices
    core_calls         calls of the native core

    ragged_layers      `TransformerEncoderLayer`, `MultiheadAttention`, `LayerNorm`, `ragged_softmax`
    batches            packed tokens, also of nested tensors, and padded batches
    packing            makes the encoders in a model compute real tokens only, in place
    packed_transformers, packed_torch   encoders that do so, of transformers and of torch
    packed_layers      where the parameters of their layers are, and how these run as programs
    encoder_checks     whether programs compute what an encoder computes, and what has changed since
    ragged_programs    schedules, packed weights and gradients of compiled programs, names of activations

    torch_integration  base class of layers; autocast, torch.compile, TorchScript, hooks
"""

from sparloom.nn.accelerate import Acceleration, accelerate, restore
from sparloom.nn.aggregating_layers import GINConv, GraphConv, SAGEConv
from sparloom.nn.attention_layers import GATConv, GATv2Conv
from sparloom.nn.baselines import CUDA_SPARSE_LIBRARIES, SPARSE_LIBRARIES, device_csr, torch_csr
from sparloom.nn.graph import Graph
from sparloom.nn.graph_layers import GCNConv, TransformerConv
from sparloom.nn.packing import Packing, describe_packing, pack, unpack
from sparloom.nn.ragged_layers import LayerNorm, MultiheadAttention, TransformerEncoderLayer, ragged_softmax
from sparloom.nn.relational_layers import RGCNConv
from sparloom.nn.sparse import csr_attention, sddmm, spmm

__all__ = [
    "CUDA_SPARSE_LIBRARIES", "SPARSE_LIBRARIES", "Acceleration", "GATConv", "GATv2Conv", "GCNConv", "GINConv", "Graph",
    "GraphConv", "LayerNorm", "MultiheadAttention", "Packing", "RGCNConv", "SAGEConv", "TransformerConv",
    "TransformerEncoderLayer", "accelerate", "csr_attention", "describe_packing", "device_csr", "pack",
    "ragged_softmax", "restore", "sddmm", "spmm", "torch_csr", "unpack",
]
