"""Which programs exist: configuration spaces of all platforms as data, and their maps onto shared loops."""

from sparloom.space.coding import Code, flag, letters, logarithm, one_hot
from sparloom.space.config import Config, Shape, Value
from sparloom.space.cpu import CpuSpace, legal_orders
from sparloom.space.cuda import CudaSpace
from sparloom.space.cuda_kernels import ATTENTION_COLUMNS, CUDA_KERNELS, HUBS, CudaKernelSpace
from sparloom.space.gemm import GemmSpace, register_tile
from sparloom.space.grid import ConfigSpace, GridSpace, Parameter, uniform
from sparloom.space.ragged import EncoderSpace, NormSpace, RaggedProductSpace, SoftmaxSpace
from sparloom.space.readings import Readings
from sparloom.space.shared import (
    ENCODED_WIDTH,
    I1,
    I2,
    J1,
    J2,
    K1,
    K2,
    K3,
    LOOPS,
    SharedSchedule,
    encode,
    insert_after,
)
from sparloom.space.spade import SpadeSpace
from sparloom.space.sparse_kernels import AttentionSpace, SddmmSpace, SpmmMaxSpace, SpmmSpace
from sparloom.space.tile_fusion import TileFusionSpace
from sparloom.space.triton_gemm import TritonGemmSpace, accumulators, pipeline_bytes
from sparloom.space.walk import Walk

__all__ = [
    "ATTENTION_COLUMNS", "CUDA_KERNELS", "ENCODED_WIDTH", "HUBS", "I1", "I2", "J1", "J2", "K1", "K2", "K3", "LOOPS",
    "AttentionSpace", "Code", "Config", "ConfigSpace", "CpuSpace", "CudaKernelSpace", "CudaSpace", "EncoderSpace",
    "GemmSpace", "GridSpace", "NormSpace", "Parameter", "RaggedProductSpace", "Readings", "SddmmSpace", "Shape",
    "SharedSchedule", "SoftmaxSpace", "SpadeSpace", "SpmmMaxSpace", "SpmmSpace", "TileFusionSpace", "TritonGemmSpace",
    "Value", "Walk", "accumulators", "encode", "flag", "insert_after", "legal_orders", "letters", "logarithm",
    "one_hot", "pipeline_bytes", "register_tile", "uniform",
]
