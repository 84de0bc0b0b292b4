"""Rendered CUDA on the host: a grid of 3 blocks of 2 threads, one thread after the other."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

from sparloom.ir import Kernel, render_cuda
from sparloom.jit import Function
from sparloom.jit.toolchain import find_toolchain

_HEAD = """
#include <cmath>
#include <cstdint>
#define __global__
#define __device__
struct Dim { unsigned x; };
static Dim gridDim{3}, blockDim{2}, blockIdx, threadIdx;
"""
_FLAGS = ("-O1", "-Wno-unknown-pragmas", "-ffp-contract=off")


def run_on_host(kernels: Sequence[Kernel], folder: Path):
    """Compile `kernels`; returns a function (kernel, arguments by name) that runs one of them in place."""
    source, library = folder / "host.cpp", folder / "host.so"
    source.write_text(_HEAD + "".join(_launched(kernel) for kernel in kernels))
    find_toolchain("c++").compile(source, library, _FLAGS)
    loaded = ctypes.CDLL(str(library))

    def run(kernel: Kernel, arguments: dict) -> None:
        launch = Function(kernel.name, kernel.params, getattr(loaded, f"launch_{kernel.name}"))
        launch(*(arguments[param.name] for param in kernel.params))

    return run


def _launched(kernel: Kernel) -> str:
    text = render_cuda(kernel)
    start = text.index(f"void {kernel.name}(") + len(f"void {kernel.name}(")
    signature, names = text[start : text.index(")", start)], ", ".join(param.name for param in kernel.params)
    return f"""
namespace in_{kernel.name} {{
{text}
extern "C" void launch_{kernel.name}({signature})
{{
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) {kernel.name}({names});
}}
}}
"""
