"""Compile source text to callables.

Files in the order in which a kernel passes through them:

    toolchain  hand-written sources under kernels/, the compiler with its flags, and the libraries that it builds
    cache      compiled libraries on disk, safe among processes
    native     calls with a struct of arguments, pooled results, caches by identity, detection of changed arrays
    compile    C text to checked functions
    cuda       CUDA text of hand-written sources, and its check
"""

from typing import Any

from sparloom.jit.cache import cache_folder
from sparloom.jit.compile import Function, Library, Source, compile_c
from sparloom.jit.cuda import check_cuda, cuda_text
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
from sparloom.jit.toolchain import (
    compile_cpp,
    compiler_version,
    kernel_folder,
    kernel_source,
    kernels_digest,
    sources_digest,
)
from sparloom.lazy import resolve

__all__ = [
    "RESULT_POOL", "ChangeDetector", "Function", "IdentityCache", "Library", "NativeCall", "ResultPool", "Source",
    "address", "aligned", "cache_folder", "check_cuda", "check_memory", "compile_c", "compile_cpp", "compiler_version",
    "cuda_text", "kernel_folder", "kernel_source", "kernels_digest", "sources_digest",
]


def __getattr__(name: str) -> Any:
    return resolve(__name__, name)
