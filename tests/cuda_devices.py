"""Run CUDA text on a GPU through CuPy, or on the host by the emulator."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from sparloom.ir import DTYPES, Kernel, render_cuda
from sparloom.jit.toolchain import find_toolchain

__all__ = ["Device", "Host", "gpu", "run_on_host"]

_HEADER = Path(__file__).with_name("cuda_emulator.hpp")
_FLAGS = ("-O1", "-ffp-contract=off", "-Wno-unknown-pragmas", "-Wno-attributes")


class Device(Protocol):
    """Runs the kernels of one text.

    Arguments are arrays of the device, NumPy scalars, and structs: structured NumPy arrays of one element.
    """

    def array(self, host: np.ndarray) -> Any: ...

    def address(self, array: Any) -> int: ...

    def to_host(self, array: Any) -> np.ndarray: ...

    def launch(self, name: str, grid: int, block: int, arguments: Sequence[Any], shared: int = 0) -> None: ...


class Host:
    """The processor, which runs every CUDA thread of a block as a fibre."""

    def __init__(self, text: str, names: Sequence[str], folder: Path) -> None:
        source, library = folder / "host.cpp", folder / "host.so"
        launchers = "".join(
            f'extern "C" const char* launch_{name}(unsigned grid, unsigned block, unsigned shared, void** arguments)\n'
            f"{{\n    return emulator::launch(&{name}, grid, block, shared, arguments);\n}}\n" for name in names)
        source.write_text(f'#include "{_HEADER}"\n{text}{launchers}')
        find_toolchain("c++").compile(source, library, _FLAGS)
        self._library = ctypes.CDLL(str(library))

    def array(self, host: np.ndarray) -> np.ndarray:
        """Copy an array."""
        return np.array(host, order="C")

    def address(self, array: np.ndarray) -> int:
        """Return the address."""
        return array.ctypes.data

    def to_host(self, array: np.ndarray) -> np.ndarray:
        """Return the array unchanged."""
        return array

    def launch(self, name: str, grid: int, block: int, arguments: Sequence[Any], shared: int = 0) -> None:
        """Run a grid."""
        plain = (np.array(each.ctypes.data, np.uint64) if _is_array(each) else np.array(each) for each in arguments)
        kept = [np.ascontiguousarray(each) for each in plain]
        places = (ctypes.c_void_p * len(kept))(*(each.ctypes.data for each in kept))
        function = getattr(self._library, f"launch_{name}")
        function.restype = ctypes.c_char_p
        fault = function(grid, block, shared, places)
        assert fault is None, fault.decode()


def run_on_host(kernels: Sequence[Kernel], folder: Path) -> Callable[[Kernel, Mapping[str, Any]], None]:
    """Compile rendered kernels; gives a function of a kernel and its arguments by name, on 3 blocks of 2 threads."""
    texts = (f"namespace in_{kernel.name} {{\n{render_cuda(kernel)}\n}}\nusing namespace in_{kernel.name};\n"
             for kernel in kernels)
    host = Host("".join(texts), [kernel.name for kernel in kernels], folder)

    def run(kernel: Kernel, arguments: Mapping[str, Any]) -> None:
        given = (arguments[param.name] if param.buffer else DTYPES[param.type.scalar](arguments[param.name])
                 for param in kernel.params)
        host.launch(kernel.name, 3, 2, list(given))

    return run


class _Gpu:
    def __init__(self, cupy: Any, text: str) -> None:
        self._cupy = cupy
        self._module = cupy.RawModule(code=text, options=("--std=c++17",))
        self.array, self.to_host = cupy.asarray, cupy.asnumpy

    def address(self, array: Any) -> int:
        return array.data.ptr

    def launch(self, name: str, grid: int, block: int, arguments: Sequence[Any], shared: int = 0) -> None:
        self._module.get_function(name)((grid,), (block,), tuple(arguments), shared_mem=shared)
        self._cupy.cuda.get_current_stream().synchronize()


def gpu(text: str) -> Device:
    """Compile for the GPU, or skip the test and say why."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install sparloom[gpu]")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no GPU: {error}")
    if not count:
        pytest.skip("no GPU")
    return _Gpu(cupy, text)


def _is_array(argument: Any) -> bool:
    """Return whether an argument is passed as a pointer; structs, of one element, are passed by value."""
    return isinstance(argument, np.ndarray) and argument.dtype.names is None
