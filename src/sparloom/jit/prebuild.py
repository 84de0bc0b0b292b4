"""Build the libraries of hand-written kernels ahead, for wheels and by `sparloom.warmup()`.

    python -m sparloom.jit.prebuild FOLDER [--levels avx512 avx2 generic]

fills a folder `_prebuilt` of a wheel: one library for each source and level of processors, index.json, and the runtime
of OpenMP. Libraries need no libstdc++, and no newer glibc than that of this machine.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sparloom.errors import Unsupported
from sparloom.jit.cache import digest
from sparloom.jit.toolchain import (
    LEVELS,
    OPENMP,
    compile_cpp,
    default_flags,
    find_toolchain,
    kernel_folder,
    library_texts,
    macros_of,
)

__all__ = ["libraries", "prebuild", "warmup"]

STATIC = ("-static-libstdc++", "-static-libgcc", "-s", "-mtune=generic")
SPADE = ("tiling", "trace", "timing", "execute", "event")  # one library of all
TYPED = ("spmm", "spmm_max", "sddmm", "attention", "argmax_products")
ELEMENTS = ("double", "Half", "Bfloat")
"""Types of numbers, besides float, for which the sources in `TYPED` are compiled as libraries of their own."""
COMMON = ("spmm", "spmm_max", "sddmm", "attention", "check_indices", "choose", "traversal", "watch", "repeat", "pin",
          "argmax_products", "fingerprint", "team", "multiply", "launches", "graph_attention_f32", "attention_edges",
          "fresh_graph")
"""Sources that products, attention and layers of graph networks need."""


def libraries() -> list[tuple[str, ...]]:
    """List the sources and macros of every library that the package compiles, relative to the folder of kernels."""
    alone = sorted((kernel_folder() / "cpu").glob("*.cpp"))
    typed = [(f"cpu/{name}.cpp", f"-DELEMENT={element}") for name in TYPED for element in ELEMENTS]
    return [*((f"cpu/{path.name}",) for path in alone), *typed, tuple(f"spade/{name}.cpp" for name in SPADE)]


def warmup(*, everything: bool = False, jobs: int | None = None) -> dict[str, float]:
    """Compile hand-written kernels for this processor ahead of their first use.

    Kernels of ragged programs and of `fuse` are generated from programs, and are compiled with these.

    Args:
        everything: also the kernels of fused products, dense products, the simulator, and sparse products of numbers
            other than float32.
        jobs: sources that are compiled at once (default: the processors that this process may use).

    Returns:
        source and its macros -> seconds that it took; about 0 for what was compiled before.

    Raises:
        NoCompiler: there is no compiler.
    """
    wanted = libraries() if everything else [(f"cpu/{name}.cpp",) for name in COMMON]

    def build(sources: tuple[str, ...]) -> float:
        began = time.perf_counter()
        compile_cpp(sources, native=True)
        return time.perf_counter() - began

    find_toolchain("c++")
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        return dict(zip(map(_name, wanted), pool.map(build, wanted), strict=True))


def _name(sources: Sequence[str]) -> str:
    return " ".join((sources[0], *macros_of(sources)))


def prebuild(
    folder: Path, levels: Sequence[str] = tuple(LEVELS), wanted: Sequence[tuple[str, ...]] | None = None,
) -> None:
    """Build libraries for a wheel.

    Args:
        folder: gets LEVEL/NAME.so, index.json and the runtime of OpenMP.
        levels: of x86-64 processors.
        wanted: sources of each library (default: all).

    Raises:
        Unsupported: the compiler is not gcc for x86-64.
        CompileError: compilation failed.
    """
    toolchain = find_toolchain("c++")
    native = default_flags(toolchain)
    if toolchain.is_clang or "-march=native" not in native or os.uname().machine != "x86_64":
        raise Unsupported(f"ready-built kernels are made by gcc for x86-64, and {toolchain.command[0]} is another "
                          "compiler: set CXX=g++, or build a wheel without SPARLOOM_PREBUILD")
    index: dict[str, dict[str, str]] = {level: {} for level in levels}

    def build(level: str, relative: tuple[str, ...]) -> None:
        sources, texts = library_texts(relative)
        macros = macros_of(relative)
        name = "_".join((sources[0].parent.name, sources[0].stem, *(macro.rpartition("=")[2] for macro in macros)))
        name += ".so"
        flags = [LEVELS[level].flag if flag == "-march=native" else flag for flag in native]
        toolchain.compile(sources[0], folder / level / name, (*flags, *macros, *STATIC, f"-I{kernel_folder()}"),
                          *sources[1:])
        index[level][digest(*texts)] = name

    for level in levels:
        (folder / level).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        tasks = [pool.submit(build, level, relative) for level in levels for relative in wanted or libraries()]
        for task in tasks:
            task.result()
    command = [*toolchain.command, f"-print-file-name={OPENMP}"]
    runtime = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    shutil.copy(Path(runtime).resolve(), folder / OPENMP)
    (folder / "index.json").write_text(json.dumps(index, indent=1, sort_keys=True), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the libraries of hand-written kernels for a wheel.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--levels", nargs="+", choices=list(LEVELS), default=list(LEVELS))
    options = parser.parse_args()
    prebuild(options.folder, options.levels)
    sys.exit()
