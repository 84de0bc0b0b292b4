"""Source text to callables: compilers, their cache on disk, and the sources under kernels/."""

from sparloom.jit.cache import cache_folder
from sparloom.jit.compile import Library, compile_c
from sparloom.jit.cpp import compile_cpp
from sparloom.jit.cuda import check_cuda
from sparloom.jit.cuda_text import cuda_text
from sparloom.jit.function import Function
from sparloom.jit.native import NativeCall, address, aligned, check_memory
from sparloom.jit.result_pool import RESULTS, ResultPool
from sparloom.jit.source import Source, kernel_folder, kernel_source, sources_digest
from sparloom.jit.toolchain import compiler_version
from sparloom.jit.watch import Watch

__all__ = [
    "RESULTS", "Function", "Library", "NativeCall", "ResultPool", "Source", "Watch", "address", "aligned",
    "cache_folder", "check_cuda", "check_memory", "compile_c", "compile_cpp", "compiler_version", "cuda_text",
    "kernel_folder", "kernel_source", "sources_digest",
]
