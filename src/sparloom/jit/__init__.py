"""Source text to callables: compilers, their cache on disk, and the sources under kernels/."""

from sparloom.jit.cache import cache_folder
from sparloom.jit.compile import Function, Library, compile_c, compile_cpp
from sparloom.jit.native import RESULTS, NativeCall, ResultPool, Watch, address, aligned, check_memory
from sparloom.jit.sources import Source, check_cuda, cuda_text, kernel_folder, kernel_source, sources_digest
from sparloom.jit.toolchain import compiler_version

__all__ = [
    "RESULTS", "Function", "Library", "NativeCall", "ResultPool", "Source", "Watch", "address", "aligned",
    "cache_folder", "check_cuda", "check_memory", "compile_c", "compile_cpp", "compiler_version", "cuda_text",
    "kernel_folder", "kernel_source", "sources_digest",
]
