"""Run rendered CUDA text on the host by the emulator."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparloom.ir import DTYPES, Kernel, render_cuda
from sparloom.jit.toolchain import find_toolchain

__all__ = ["run_on_host"]

_HEADER = Path(__file__).with_name("cuda_emulator.hpp")
_FLAGS = ("-O1", "-ffp-contract=off", "-Wno-unknown-pragmas", "-Wno-attributes")


def run_on_host(kernels: Sequence[Kernel], folder: Path) -> Callable[[Kernel, Mapping[str, Any]], None]:
    """Compile rendered kernels; gives a function of a kernel and its arguments by name, on 3 blocks of 2 threads.

    The processor runs every CUDA thread of a block as a fibre.
    """
    source, library = folder / "host.cpp", folder / "host.so"
    texts = (f"namespace in_{kernel.name} {{\n{render_cuda(kernel)}\n}}\nusing namespace in_{kernel.name};\n"
             for kernel in kernels)
    launchers = "".join(
        f'extern "C" const char* launch_{kernel.name}(void** arguments)\n'
        f"{{\n    return emulator::launch(&{kernel.name}, 3, 2, 0, arguments);\n}}\n" for kernel in kernels)
    source.write_text(f'#include "{_HEADER}"\n{"".join(texts)}{launchers}')
    find_toolchain("c++").compile(source, library, _FLAGS)
    loaded = ctypes.CDLL(str(library))

    def run(kernel: Kernel, arguments: Mapping[str, Any]) -> None:
        kept = [np.array(arguments[param.name].ctypes.data if param.buffer else arguments[param.name],
                         np.uint64 if param.buffer else DTYPES[param.type.scalar]) for param in kernel.params]
        places = (ctypes.c_void_p * len(kept))(*(each.ctypes.data for each in kept))
        function = getattr(loaded, f"launch_{kernel.name}")
        function.restype = ctypes.c_char_p
        fault = function(places)
        assert fault is None, fault.decode()

    return run
