"""CUDA text of the hand-written sources under kernels/, and a check that it compiles."""

import ctypes
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparloom.errors import CompileError, Unsupported
from sparloom.jit.toolchain import kernel_source

__all__ = ["check_cuda", "cuda_text"]

_CUDA_INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


def cuda_text(relative: str, macros: Mapping[str, int | str]) -> str:
    """Return the text of a source under kernels/ with macros defined and headers inlined, so that NVRTC can compile it.

    Args:
        relative: such as "cuda/spmm.cu"; headers are found beside it.

    Raises:
        FileNotFoundError: there is no such source, or one of its headers is missing.
    """
    defined = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    return defined + _inlined(relative)


def _inlined(relative: str) -> str:
    folder, text = relative.rpartition("/")[0], kernel_source(relative).read_text(encoding="utf-8")
    return _CUDA_INCLUDE.sub(lambda found: _inlined(f"{folder}/{found[1]}"), text)


def check_cuda(
    source: str, architectures: Sequence[str] = ("sm_80", "sm_90"), options: Sequence[str] = (),
) -> str:
    """Compile `source` to device code for each architecture and discard the code; no GPU is needed.

    Returns:
        The path of the compiler, the NVRTC library of a Python wheel.

    Raises:
        CompileError: compilation failed.
        Unsupported: NVRTC is not installed.
    """
    nvrtc = _find_nvrtc()
    if nvrtc is None:
        raise Unsupported("no CUDA compiler: pip install nvidia-cuda-nvrtc")
    for architecture in architectures:
        _check_nvrtc(nvrtc, source, architecture, options)
    return str(nvrtc)


def _find_nvrtc() -> Path | None:
    """Return the library of a wheel nvidia-cuda-nvrtc (any version); they share the namespace package `nvidia`."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    found = [library for folder in folders for library in sorted(folder.glob("*/lib/libnvrtc.so.*"))]
    return next((library for library in found if "builtins" not in library.name and "alt" not in library.name), None)


def _check_nvrtc(library: Path, source: str, architecture: str, options: Sequence[str]) -> None:
    try:
        nvrtc, program = ctypes.CDLL(str(library)), ctypes.c_void_p()
    except OSError as error:
        raise Unsupported(f"{library} does not load ({error}): reinstall nvidia-cuda-nvrtc") from error
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    if created != 0:
        raise Unsupported(f"{library} does not work (status {created}): reinstall nvidia-cuda-nvrtc")
    try:
        options = [option.encode() for option in (f"--gpu-architecture={architecture}", "--std=c++17", *options)]
        if nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)) != 0:
            size = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            text = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, text)
            log = text.value.decode(errors="replace")
            first = next((line for line in log.splitlines() if "error" in line), "no message")
            raise CompileError(f"NVRTC refused the kernel for {architecture}: {first.strip()}", source=source, log=log)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
