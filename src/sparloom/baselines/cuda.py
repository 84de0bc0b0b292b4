"""Bind the libraries of NVIDIA to arrays on a device, and vendor GEMMs of both platforms: cuBLAS, cuSPARSE, MKL.

torch is imported on use, since tuning, which works without torch, takes cuSPARSE from here. docs/gpu_status.md says
what has run on a GPU.
"""

import ctypes
from collections.abc import Callable, Mapping
from ctypes.util import find_library
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.ops import DenseOperands, Op, Operands
from sparloom.platforms import CudaPlatform, CupyGpu, DeviceMatrix, DevicePattern
from sparloom.platforms.cuda import ELEMENTS
from sparloom.space import Config

if TYPE_CHECKING:
    from sparloom.platforms import CpuKernels, Platform

VERSIONS = ("libcublas.so.13", "libcublas.so.12", "libcublas.so.11")
RIGHT, UPPER, PLAIN, NON_UNIT = 1, 1, 0, 0  # cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t
CUSPARSE_ORDER_ROW = 2
CUSPARSE_FLOAT = 0  # CUDA_R_32F, of sums
CUSPARSE_TYPES = {"float": CUSPARSE_FLOAT, "Half": 2, "Bfloat": 14}  # CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF
CUSPARSE_ALGORITHMS = {"default": 0, "alg2": 6}  # CUSPARSE_SPMM_ALG_DEFAULT, _CSR_ALG2: which is faster varies
VENDOR = "vendor"
"""Preset of the rows of vendor libraries in sample tables."""


def cublas_strmm(size: int, lower: int, dense: int, result: int) -> Callable[[], None]:
    """Bind result = lower dense for row-major (size, size) float32 matrices of the current device.

    cuBLAS is column-major, so it computes the transpose: resultT = denseT lowerT, where lowerT is upper triangular.

    Args:
        lower, dense, result: addresses on the device; `lower` is not read above the diagonal.

    Raises:
        Unsupported: cuBLAS is not installed, or returns an error.
    """
    library, handle = _library(), _handle()
    one = ctypes.c_float(1.0)

    def call() -> None:
        _checked(library.cublasStrmm_v2(
            handle, RIGHT, UPPER, PLAIN, NON_UNIT, size, size, ctypes.byref(one), ctypes.c_void_p(lower), size,
            ctypes.c_void_p(dense), size, ctypes.c_void_p(result), size), "cublasStrmm_v2")

    return call


@cache
def _library() -> ctypes.CDLL:
    """Load cuBLAS; a library that PyTorch or CuPy has loaded is shared."""
    for name in (*VERSIONS, find_library("cublas")):
        try:
            return ctypes.CDLL(name) if name else _missing()
        except OSError:
            continue
    return _missing()


def _missing() -> ctypes.CDLL:
    raise Unsupported(f"cuBLAS is not installed ({', '.join(VERSIONS)}): install the CUDA toolkit, or put the "
                      "folder of its wheel into LD_LIBRARY_PATH")


@cache
def _handle() -> ctypes.c_void_p:
    """Create a handle on the default stream, which kernels without a stream use."""
    handle = ctypes.c_void_p()
    _checked(_library().cublasCreate_v2(ctypes.byref(handle)), "cublasCreate_v2")
    return handle


def _checked(status: int, name: str) -> None:
    if status:
        raise Unsupported(f"{name} returned status {status}")


def cusparse_spmm(matrix: DeviceMatrix, algorithm: str) -> Callable[..., Any]:
    """Prepare cuSPARSE's SpMM for a pattern: the library that our kernels must beat.

    The function that is returned takes operands with A's values and "B" (cols, width) of one type, and an array
    (rows, width) to overwrite or None. Sums are float32. It uses CuPy's low-level interface, because CuPy's own product
    needs column-major operands, copies others in every call, and supports no 16-bit numbers.

    Args:
        algorithm: "default" or "alg2".
    """
    import cupy
    import cupyx.cusparse
    from cupy_backends.cuda.libs import cusparse

    pattern, algorithm_number = matrix.pattern, CUSPARSE_ALGORITHMS[algorithm]
    index_type, index = (np.int32, cusparse.CUSPARSE_INDEX_32I) if pattern.nnz < 2**31 else (
        np.int64, cusparse.CUSPARSE_INDEX_64I)
    arrays = [  # descriptors hold their addresses
        matrix.placed.indptr.astype(index_type), matrix.placed.indices.astype(index_type), matrix.values]
    descriptors: dict[np.dtype, Any] = {}
    alpha, beta = (np.array(number, np.float32).ctypes for number in (1, 0))
    workspaces: dict[tuple[int, np.dtype], Any] = {}

    def sparse(values: Any) -> Any:
        if values.dtype not in descriptors:
            descriptors[values.dtype] = cupyx.cusparse.SpMatDescriptor(cusparse.createCsr(
                pattern.rows, pattern.cols, pattern.nnz, *(array.data.ptr for array in (*arrays[:2], values)), index,
                index, cusparse.CUSPARSE_INDEX_BASE_ZERO, CUSPARSE_TYPES[ELEMENTS[values.dtype]]), None,
                cusparse.destroySpMat)
        descriptor = descriptors[values.dtype].desc
        cusparse.spMatSetValues(descriptor, values.data.ptr)
        return descriptor

    def product(operands: Operands, out: Any | None = None) -> Any:
        arrays[2], x = operands.matrix.values, operands.dense["B"]
        result = cupy.empty((pattern.rows, x.shape[1]), x.dtype) if out is None else out
        right, written = _descriptor(cusparse, x), _descriptor(cusparse, result)
        arguments = (
            cupy.cuda.device.get_cusparse_handle(), cusparse.CUSPARSE_OPERATION_NON_TRANSPOSE,
            cusparse.CUSPARSE_OPERATION_NON_TRANSPOSE, alpha.data, sparse(arrays[2]), right, beta.data, written,
            CUSPARSE_FLOAT, algorithm_number)
        try:
            case = x.shape[1], x.dtype
            if case not in workspaces:
                workspaces[case] = cupy.empty(max(1, cusparse.spMM_bufferSize(*arguments)), np.int8)
            cusparse.spMM(*arguments, workspaces[case].data.ptr)
        finally:
            cusparse.destroyDnMat(right)
            cusparse.destroyDnMat(written)
        return result

    return product


def _descriptor(cusparse: Any, array: Any) -> Any:
    rows, cols = array.shape
    return cusparse.createDnMat(rows, cols, cols, array.data.ptr, CUSPARSE_TYPES[ELEMENTS[array.dtype]],
                                CUSPARSE_ORDER_ROW)


def vendor_gemms(platform: "CpuKernels | CudaPlatform") -> Mapping[Config, Callable[[Any, Any], Callable[[], None]]]:
    """Return the vendor GEMMs of a platform by configuration.

    "vendor=mkl" is torch.mm, which calls MKL ("vendor=torch" if torch was built with another library); seconds include
    about a microsecond in torch. "vendor=cublas" is CuPy's product, in float32 without TF32.
    """
    if platform.kind == "device":
        return {_named("cublas"): _cupy_matmul}
    import torch

    torch.set_num_threads(platform.threads)
    return {_named("mkl" if torch.backends.mkl.is_available() else "torch"): _torch_mm}


def _named(vendor: str) -> Config:
    return Config(VENDOR, (("vendor", vendor),))


def _cupy_matmul(placed: Any, result: Any) -> Callable[[], None]:
    import cupy

    return partial(cupy.matmul, placed.dense["A"], placed.dense["B"], out=result)


def _torch_mm(operands: DenseOperands, result: np.ndarray) -> Callable[[], None]:
    import torch

    left, right, out = (torch.from_numpy(array) for array in (*operands.factors, result))

    def run() -> None:
        torch.mm(left, right, out=out)

    return run


def vendor_sparse(platform: "Platform", op: Op) -> Mapping[Config, Callable[[Any, Any], Callable[[], None]]]:
    """Return the algorithms of cuSPARSE for an operation by configuration; empty without CuPy or a GPU.

    "vendor=cusparse" and, for SpMM, "vendor=cusparse_alg2"; SDDMM is torch's sampled_addmm times the values of A.
    """
    try:
        gpu = platform.gpu if op.name in VENDORS and isinstance(platform, CudaPlatform) else None
    except Unsupported:
        return {}
    return {Config(VENDOR, (("vendor", name),)): partial(bind, gpu)
            for name, bind in VENDORS[op.name].items()} if isinstance(gpu, CupyGpu) else {}


def _spmm(gpu: Any, placed: Any, result: Any, *, algorithm: str) -> Callable[[], None]:
    matrix = _matrix(gpu, placed)
    product, operands = cusparse_spmm(matrix, algorithm), Operands(matrix, placed.dense)
    return lambda: product(operands, result)


def _sddmm(gpu: Any, placed: Any, result: Any) -> Callable[[], None]:
    import torch

    from sparloom.baselines.sparse import csr_tensor

    stored = _matrix(gpu, placed)
    arrays = stored.placed.indptr, stored.placed.indices, stored.values
    matrix = csr_tensor(*map(torch.from_dlpack, arrays), stored.pattern.shape)
    left, right, written = map(torch.from_dlpack, (placed.dense["B"], placed.dense["C"], result))

    def run() -> None:
        torch.mul(torch.sparse.sampled_addmm(matrix, left, right.T, beta=0.0).values(), matrix.values(), out=written)

    return run


def _matrix(gpu: Any, placed: Any) -> DeviceMatrix:
    pattern = placed.pattern or DevicePattern.on(gpu, placed.host.matrix.pattern)
    return DeviceMatrix(gpu, pattern, placed.values)


VENDORS = MappingProxyType({
    "spmm": {"cusparse": partial(_spmm, algorithm="default"), "cusparse_alg2": partial(_spmm, algorithm="alg2")},
    "sddmm": {"cusparse": _sddmm}})
"""Operation -> name -> function that binds it to a device, operands there and a result."""
