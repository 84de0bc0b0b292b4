"""Configuration spaces of all platforms as data, and their maps onto loops that the platforms share.

grid: configurations and the spaces that list them; shared: what a cost model sees of a configuration; search_space:
spaces of any size that an optimizer searches, of search_parameter, with constraints, which are expressions, and points,
the valid ones; described: spaces that a file describes. The other files have the spaces of one platform each, and
cpu_kernels those of layers on ragged tensors, too.
"""

from sparloom.space.cpu import CpuSpace, legal_orders
from sparloom.space.cpu_kernels import (
    GEMM_BLOCK_COLUMNS,
    AttentionSpace,
    GemmSpace,
    NormSpace,
    RaggedProductSpace,
    SddmmSpace,
    SoftmaxSpace,
    SpmmMaxSpace,
    SpmmSpace,
    gemm_program,
    register_tile,
)
from sparloom.space.cuda import (
    ATTENTION_COLUMNS,
    CUDA_KERNELS,
    HUBS,
    CudaKernelSpace,
    CudaSpace,
    TritonGemmSpace,
    accumulators,
    pipeline_bytes,
)
from sparloom.space.described import TIME_COLUMNS, Description, read_description, read_space
from sparloom.space.expressions import Columns, Expression, integer_of, number_of, value_list
from sparloom.space.grid import MAX_LISTED, Config, ConfigSpace, GridSpace, Parameter, uniform
from sparloom.space.search_parameter import SearchParameter
from sparloom.space.search_space import SearchSpace
from sparloom.space.shared import (
    ENCODED_WIDTH,
    EXTENT_SCALE,
    I1,
    I2,
    J1,
    J2,
    K1,
    K2,
    K3,
    LOOPS,
    ORDER_WIDTH,
    Code,
    Readings,
    Shape,
    SharedSchedule,
    Value,
    Walk,
    encode,
    flag,
    insert_after,
    letters,
    logarithm,
    one_hot,
)
from sparloom.space.spade import SpadeSpace

__all__ = [
    "ATTENTION_COLUMNS", "CUDA_KERNELS", "ENCODED_WIDTH", "EXTENT_SCALE", "GEMM_BLOCK_COLUMNS", "HUBS", "I1", "I2",
    "J1", "J2", "K1", "K2", "K3", "LOOPS", "MAX_LISTED", "ORDER_WIDTH", "TIME_COLUMNS", "AttentionSpace", "Code",
    "Columns", "Config", "ConfigSpace", "CpuSpace", "CudaKernelSpace", "CudaSpace", "Description", "Expression",
    "GemmSpace", "GridSpace", "NormSpace", "Parameter", "RaggedProductSpace", "Readings", "SddmmSpace",
    "SearchParameter", "SearchSpace", "Shape", "SharedSchedule", "SoftmaxSpace", "SpadeSpace", "SpmmMaxSpace",
    "SpmmSpace", "TritonGemmSpace", "Value", "Walk", "accumulators", "encode", "flag", "gemm_program", "insert_after",
    "integer_of", "legal_orders", "letters", "logarithm", "number_of", "one_hot", "pipeline_bytes", "read_description",
    "read_space", "register_tile", "uniform", "value_list",
]
