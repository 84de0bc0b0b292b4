"""Operations on one sparse matrix, each by the kernel that won a measurement.

Files in the order in which a call passes through them:

    api        functions `spmm`, `sddmm`, `csr_attention`, `prepare`, `tune`; most calls go on in C++ (kernels/native)
    inputs     matrices and arrays as users pass them
    settings   environment variables and policy
    prepared   `Prepared`: a matrix and the decisions about it, and what runs its calls outside the core
    choice     which kernel of a processor runs, and how candidates rank, by a small learned model
    tuner      what a device offers, and how a decision is measured
    cpu, cuda  both devices; cuda_estimate: which kernels of a GPU are worth a measurement
"""

from sparloom.tuning.sparse.api import csr_attention, prepare, sddmm, spmm, tune, tuning
from sparloom.tuning.sparse.cpu import CpuBackend
from sparloom.tuning.sparse.cuda import CUDA_LIBRARIES, CudaBackend, gather_dot, kernel_kind, safe_kernel
from sparloom.tuning.sparse.cuda_estimate import CudaEstimate, CudaRates, measure_cuda_rates
from sparloom.tuning.sparse.inputs import array_of, dense_of, matrix_of
from sparloom.tuning.sparse.prepared import NativeReplay, Prepared, kernels_available
from sparloom.tuning.sparse.settings import CsrPolicy, Settings
from sparloom.tuning.sparse.tuner import (
    LIBRARIES,
    Arrays,
    Backend,
    CandidateSet,
    CsrChoice,
    CsrCostModel,
    CsrDecider,
    CsrPlan,
    Library,
    Product,
    gathered_pieces,
    sample_rows,
    shortlist,
)

__all__ = [
    "CUDA_LIBRARIES", "LIBRARIES", "Arrays", "Backend", "CandidateSet", "CpuBackend", "CsrChoice", "CsrCostModel",
    "CsrDecider", "CsrPlan", "CsrPolicy", "CudaBackend", "CudaEstimate", "CudaRates", "Library", "NativeReplay",
    "Prepared", "Product", "Settings", "array_of", "csr_attention", "dense_of", "gather_dot", "gathered_pieces",
    "kernel_kind", "kernels_available", "matrix_of", "measure_cuda_rates", "prepare", "safe_kernel", "sample_rows",
    "sddmm", "shortlist", "spmm", "tune", "tuning",
]
