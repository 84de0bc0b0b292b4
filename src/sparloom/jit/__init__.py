"""Compile source text to callables.

Files in the order in which a kernel passes through them:

    toolchain  hand-written sources under kernels/, the compiler with its flags, and the libraries that it builds
    cache      compiled libraries on disk, safe among processes
    prebuild   what is compiled ahead: when the package is installed, and by `sparloom.warmup`
    native     calls with a struct of arguments, caches by identity, detection of changed arrays
    compile    C text to checked functions
    cuda       CUDA text of hand-written sources
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "cache": ("Cache", "cache_folder", "warn_unwritable"),
    "prebuild": ("warmup",),
    "compile": ("Function", "Library", "Source", "compile_c"),
    "cuda": ("cuda_text",),
    "native": (
        "ChangeDetector", "IdentityCache", "NativeCall", "address", "address_of",
        "aligned", "check_memory",
    ),
    "toolchain": (
        "compile_cpp", "compiler_version", "core_digest", "kernel_folder", "kernel_library", "kernel_source",
        "kernels_digest", "sources_digest",
    ),
})
