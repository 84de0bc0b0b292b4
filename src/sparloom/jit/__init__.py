"""Source text to callables: compilers, their cache on disk, and the sources under kernels/."""

from sparloom.jit.cache import cache_folder
from sparloom.jit.compile import Library, compile_c
from sparloom.jit.cpp import compile_cpp
from sparloom.jit.cuda import check_cuda
from sparloom.jit.cuda_text import cuda_text
from sparloom.jit.function import Function
from sparloom.jit.native import NativeCall, address, aligned
from sparloom.jit.result_pool import RESULTS, ResultPool
from sparloom.jit.source import Source, kernel_source
from sparloom.jit.watch import Watch

__all__ = [
    "RESULTS", "Function", "Library", "NativeCall", "ResultPool", "Source", "Watch", "address", "aligned",
    "cache_folder", "check_cuda", "compile_c", "compile_cpp", "cuda_text", "kernel_source",
]
