"""Compile source text to callables.

Files in the order in which a kernel passes through them:

    sources    hand-written sources under kernels/, C text as a kernel, CUDA text and its check
    toolchain  the C or C++ compiler, its flags and version
    cache      compiled libraries on disk, safe among processes
    compile    C and C++ text to libraries and checked functions
    native     calls with a struct of arguments, pooled results, caches by identity, detection of changed arrays
"""

from typing import Any

from sparloom.jit.cache import cache_folder
from sparloom.jit.compile import Function, Library, compile_c, compile_cpp
from sparloom.jit.native import (
    RESULT_POOL,
    ChangeDetector,
    IdentityCache,
    NativeCall,
    ResultPool,
    address,
    aligned,
    check_memory,
)
from sparloom.jit.sources import (
    Source,
    check_cuda,
    cuda_text,
    kernel_folder,
    kernel_source,
    kernels_digest,
    sources_digest,
)
from sparloom.jit.toolchain import compiler_version
from sparloom.lazy import resolve

__all__ = [
    "RESULT_POOL", "ChangeDetector", "Function", "IdentityCache", "Library", "NativeCall", "ResultPool", "Source",
    "address", "aligned", "cache_folder", "check_cuda", "check_memory", "compile_c", "compile_cpp", "compiler_version",
    "cuda_text", "kernel_folder", "kernel_source", "kernels_digest", "sources_digest",
]


def __getattr__(name: str) -> Any:
    return resolve(__name__, name)
