"""Emulated GPU for tests: compiles CUDA sources for the host and runs every thread of a block as a fibre."""

import ctypes
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from sparloom.jit.toolchain import find_toolchain
from sparloom.platforms import Repeat, one_by_one
from sparloom.platforms.cuda import CudaDevice, LaunchShape

_HEADER = Path(__file__).with_suffix(".hpp")
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(THREADS\)\s*)?(\w+)\(([^)]*)\)')
_FLAGS = ("-O0", "-ffp-contract=off", "-Wno-unknown-pragmas", "-Wno-attributes")


class Emulator:
    """Replace a device; its arrays are NumPy's.

    Args:
        texts: sources of all kernels that will be asked for, compiled at once.
    """

    def __init__(self, texts: Iterable[str], folder: Path, device: CudaDevice | None = None) -> None:
        self.device = device or CudaDevice.named("h200")
        self._places = {body: place for place, body in enumerate(dict.fromkeys(map(_body, texts)))}
        source, library = folder / "emulated.cpp", folder / "emulated.so"
        source.write_text(f'#include "{_HEADER}"\n' + "".join(_wrapped(*item) for item in self._places.items()))
        find_toolchain("c++").compile(source, library, _FLAGS)
        self._library = ctypes.CDLL(str(library))

    def upload(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def download(self, array: np.ndarray) -> np.ndarray:
        return array

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else -7).astype(dtype)

    def repeat(self, call: Callable[[], None]) -> Repeat:
        return one_by_one(call, time.process_time)

    def kernel(self, text: str, name: str) -> "_Kernel":
        return _Kernel(getattr(self._library, f"launch_{self._places[_body(text)]}_{name}"))


def skip_kernels(patch: pytest.MonkeyPatch, suffix: str) -> None:
    """Disable kernels of this name, so that elements which only they write stay unwritten."""
    kernel = Emulator.kernel

    class Idle(_Kernel):
        def __init__(self) -> None:
            pass

        def __call__(self, shape: LaunchShape, arguments: Sequence[np.ndarray | np.generic]) -> None:
            pass

    patch.setattr(Emulator, "kernel", lambda self, text, name: (
        Idle() if name.endswith(suffix) else kernel(self, text, name)))


class _Kernel:
    """Launches one kernel; a fault of the emulation is an AssertionError."""

    registers = 32

    def __init__(self, function: ctypes._CFuncPtr) -> None:
        self._function = function
        self._function.restype = ctypes.c_char_p

    def __call__(self, shape: LaunchShape, arguments: Sequence[np.ndarray | np.generic]) -> None:
        assert min(shape.grid) > 0, f"grid {shape.grid} is empty"
        plain = [*shape.grid, shape.threads, shape.shared_bytes]
        fault = self._function(*map(ctypes.c_uint, plain), *map(_argument, arguments))
        assert fault is None, fault.decode()


def _argument(value: np.ndarray | np.generic) -> object:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return np.ctypeslib.as_ctypes_type(value.dtype)(value.item())


def _body(text: str) -> str:
    """Remove macros without effect on the host, so that configurations share code."""
    return re.sub(r"^#define THREADS .*\n", "", text, flags=re.MULTILINE)


def _wrapped(text: str, place: int) -> str:
    """Put a source into a namespace of its own, every kernel behind a function that launches it."""
    macros = re.findall(r"^#define (\w+)", text, re.MULTILINE)
    plain = _KERNEL.sub(r"static void \1(\2)", text).replace("extern __shared__ __align__(16) unsigned char", "// ")
    shape = "unsigned grid_x, unsigned grid_y, unsigned block_x, unsigned bytes"
    launches = "".join(
        f'extern "C" const char* launch_{place}_{name}({shape}, {given}) {{\n'
        f"    return emulator::launch(grid_x, grid_y, block_x, bytes, [=] {{ {name}({_names(given)}); }});\n}}\n"
        for name, given in _KERNEL.findall(text))
    undefined = "".join(f"#undef {macro}\n" for macro in macros)
    return f"namespace kernel_{place} {{\n{plain}\n{launches}}}\n{undefined}"


def _names(signature: str) -> str:
    return ", ".join(part.split()[-1].lstrip("*") for part in signature.split(","))
