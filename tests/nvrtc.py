"""Compile CUDA text to device code by the NVRTC library of the wheel nvidia-cuda-nvrtc; no GPU is needed."""

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib import metadata

import pytest

from sparloom.errors import CompileError


@cache
def library() -> ctypes.CDLL:
    """Load the library, or skip the test."""
    wheels = [each for each in metadata.distributions() if each.name.startswith("nvidia-cuda-nvrtc")]
    found = [file.locate() for wheel in wheels for file in wheel.files
             if file.name.startswith("libnvrtc.so.") and "alt" not in file.name]
    if not found:
        pytest.skip('nvidia-cuda-nvrtc is not installed: pip install -e ".[dev]"')
    return ctypes.CDLL(str(found[0]))


def check_cuda(source: str, architectures: Sequence[str] = ("sm_80", "sm_90"), options: Sequence[str] = ()) -> None:
    """Compile a source for each architecture, and discard the code; raises CompileError."""
    nvrtc = library()
    for architecture in architectures:
        program = ctypes.c_void_p()
        assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
        given = [each.encode() for each in (f"--gpu-architecture={architecture}", "--std=c++17", *options)]
        status, size = nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given)), (
            ctypes.c_size_t())
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, text)
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        if status != 0:
            log = text.value.decode(errors="replace")
            raise CompileError(f"NVRTC refused the kernel for {architecture}: {log}", source=source, log=log)
