"""Compile-check CUDA text where a compiler for it is installed; no GPU needed."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sparloom.errors import CompileError, Unsupported
from sparloom.files import scratch_folder

__all__ = ["check_cuda"]


def check_cuda(
    source: str, architectures: Sequence[str] = ("sm_80", "sm_90"), options: Sequence[str] = (),
) -> str:
    """Compile `source` to device code for each architecture and throw the code away.

    NVRTC is what compiles kernels where they run; nvcc stands in for it.

    Args:
        options: for NVRTC alone, such as `--Ofast-compile=max` where the code need not be fast.

    Returns:
        The compiler used: the path of the NVRTC library of a Python wheel, or of nvcc where there is none.

    Raises:
        CompileError: the compiler refused.
        Unsupported: there is neither NVRTC nor nvcc.
    """
    nvrtc = _find_nvrtc()
    nvcc = _find_nvcc() if nvrtc is None else None
    if nvrtc is None and nvcc is None:
        raise Unsupported("no CUDA compiler: put nvcc on PATH, set CUDA_HOME, or pip install nvidia-cuda-nvrtc")
    for architecture in architectures:
        if nvrtc is not None:
            _check_nvrtc(nvrtc, source, architecture, options)
        else:
            _check_nvcc(nvcc, source, architecture)
    return str(nvrtc) if nvrtc is not None else nvcc


def _find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    beside = shutil.which("nvcc", path=str(Path(home) / "bin")) if home else None
    return beside or shutil.which("nvcc")


def _find_nvrtc() -> Path | None:
    """Library of the wheels nvidia-cuda-nvrtc (any version); they share the namespace package `nvidia`."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    found = [library for folder in folders for library in sorted(folder.glob("*/lib/libnvrtc.so.*"))]
    return next((library for library in found if "builtins" not in library.name and "alt" not in library.name), None)


def _check_nvcc(nvcc: str, source: str, architecture: str) -> None:
    with scratch_folder("compile") as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source, encoding="utf-8")
        out = str(path.with_suffix(".cubin"))
        arguments = [nvcc, "-cubin", f"-arch={architecture}", "-o", out, str(path)]
        done = subprocess.run(arguments, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise _refused("nvcc", source, architecture, done.stderr + done.stdout)


def _check_nvrtc(library: Path, source: str, architecture: str, options: Sequence[str]) -> None:
    try:
        nvrtc, program = ctypes.CDLL(str(library)), ctypes.c_void_p()
    except OSError as error:
        raise Unsupported(f"{library} does not load ({error}): reinstall nvidia-cuda-nvrtc") from error
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    if created != 0:
        raise Unsupported(f"{library} does not work (status {created}): reinstall nvidia-cuda-nvrtc")
    try:
        given = [option.encode() for option in (f"--gpu-architecture={architecture}", "--std=c++17", *options)]
        if nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given)) != 0:
            size = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            text = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, text)
            raise _refused("NVRTC", source, architecture, text.value.decode(errors="replace"))
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _refused(compiler: str, source: str, architecture: str, log: str) -> CompileError:
    first = next((line for line in log.splitlines() if "error" in line), "no message")
    return CompileError(f"{compiler} refused the kernel for {architecture}: {first.strip()}", source=source, log=log)
