"""Where CUDA text runs: on a GPU through CuPy, or on the host with a thread for every CUDA thread."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from sparloom.jit.toolchain import find_toolchain

__all__ = ["Device", "Host", "gpu"]

_HEAD = """
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>
#include <pthread.h>
#define __global__
#define __device__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))
struct Dim { unsigned x; };
static Dim gridDim, blockDim, blockIdx;
static thread_local Dim threadIdx;
static pthread_barrier_t barrier;
static void __syncthreads() { pthread_barrier_wait(&barrier); }
__align__(16) unsigned char shared_bytes[1 << 16];

template <typename... P, size_t... I>
void run(void (*kernel)(P...), void** arguments, std::index_sequence<I...>)
{
    kernel(*static_cast<std::remove_const_t<P>*>(arguments[I])...);
}

template <typename... P>
void launch(void (*kernel)(P...), unsigned grid, unsigned block, void** arguments)
{
    gridDim.x = grid;
    blockDim.x = block;
    pthread_barrier_init(&barrier, nullptr, block);
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < block; ++t) {
            threads.emplace_back([=] {
                threadIdx.x = t;
                run(kernel, arguments, std::index_sequence_for<P...>());
            });
        }
        for (std::thread& each : threads) each.join();
    }
    pthread_barrier_destroy(&barrier);
}
"""
_FLAGS = ("-O1", "-Wno-unknown-pragmas", "-pthread")


class Device(Protocol):
    """Runs the kernels of one text.

    Arguments are arrays of the device, NumPy scalars, and structs: structured NumPy arrays of one element.
    """

    def array(self, host: np.ndarray) -> Any: ...

    def address(self, array: Any) -> int: ...

    def to_host(self, array: Any) -> np.ndarray: ...

    def launch(self, name: str, grid: int, block: int, arguments: Sequence[Any], shared: int = 0) -> None: ...


class Host:
    """The processor: blocks one after the other, the threads of a block at once."""

    def __init__(self, text: str, names: Sequence[str], folder: Path) -> None:
        source, library = folder / "host.cpp", folder / "host.so"
        launchers = "".join(
            f'extern "C" void launch_{name}(unsigned grid, unsigned block, void** arguments)\n'
            f"{{\n    launch(&{name}, grid, block, arguments);\n}}\n" for name in names)
        source.write_text(_HEAD + text + launchers)
        find_toolchain("c++").compile(source, library, _FLAGS)
        self._library = ctypes.CDLL(str(library))

    def array(self, host: np.ndarray) -> np.ndarray:
        """Copy an array."""
        return np.array(host, order="C")

    def address(self, array: np.ndarray) -> int:
        """Where it is."""
        return array.ctypes.data

    def to_host(self, array: np.ndarray) -> np.ndarray:
        """It is there already."""
        return array

    def launch(self, name: str, grid: int, block: int, arguments: Sequence[Any], shared: int = 0) -> None:
        """Run a grid."""
        assert shared <= 1 << 16
        plain = (np.array(each.ctypes.data, np.uint64) if _is_array(each) else np.array(each) for each in arguments)
        kept = [np.ascontiguousarray(each) for each in plain]
        places = (ctypes.c_void_p * len(kept))(*(each.ctypes.data for each in kept))
        getattr(self._library, f"launch_{name}")(grid, block, places)


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
    """Whether it goes as a pointer; structs, of one element, go by value."""
    return isinstance(argument, np.ndarray) and argument.dtype.names is None
