"""Build the native core and libraries of hand-written kernels ahead of their first use.

`install` does so in the folder of a package when setup.py builds it: `_native.abi3.so` is the core, `_prebuilt` has
libraries of kernels. They are the common ones for this kind of processor, or, for a wheel that other machines install,
all of them for every level: those need no libstdc++, and no newer glibc than that of this machine. What is there for
the same sources is not built again.
"""

import logging
import math
import os
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

from sparloom.errors import SparloomError, Unsupported
from sparloom.files import atomic_path
from sparloom.jit.cache import build_folder
from sparloom.jit.toolchain import (
    CORE,
    LEVELS,
    OPENMP,
    PREBUILT,
    compile_cpp,
    core_digest,
    default_flags,
    find_toolchain,
    kernel_folder,
    library_texts,
    macros_of,
    processor_levels,
    ready_key,
)
from sparloom.resources import CHECKOUT, PACKAGE

LOCAL = ("-mtune=native",)
PORTABLE = ("-static-libstdc++", "-static-libgcc", "-s", "-mtune=generic")
SECONDS = 40.0  # of building common libraries when a package is installed; none begins later
CORE_FILE = "_native.abi3.so"
SPADE = ("tiling", "trace", "timing", "execute", "event")  # one library of all
TYPED = ("spmm", "spmm_max", "sddmm", "attention", "argmax_products")
ELEMENTS = ("double", "Half", "Bfloat")
"""Types of numbers, besides float, for which the sources in `TYPED` are compiled as libraries of their own."""
COMMON = [(f"cpu/{name}.cpp",) for name in (
    "spmm", "check_indices", "watch", "choose", "attention", "sddmm", "row_pass", "graph_attention_f32", "spmm_max",
    "fresh_graph", "argmax_products", "fingerprint", "attention_edges", "traversal", "team", "launches", "repeat",
    "pin", "transposed")]
"""Libraries that products, attention and layers of graph networks need: those of the first product first, then those
that take long.
"""

log = logging.getLogger(__name__)


def libraries() -> list[tuple[str, ...]]:
    """List the sources and macros of every library that the package compiles, relative to the folder of kernels."""
    alone = sorted((kernel_folder() / "cpu").glob("*.cpp"))
    typed = [(f"cpu/{name}.cpp", f"-DELEMENT={element}") for name in TYPED for element in ELEMENTS]
    return [*((f"cpu/{path.name}",) for path in alone), *typed, tuple(f"spade/{name}.cpp" for name in SPADE)]


def warmup(*, everything: bool = False, jobs: int | None = None) -> dict[str, float]:
    """Compile hand-written kernels for this processor ahead of their first use, and the native core of a checkout.

    Kernels of ragged programs and of `fuse` are generated from programs, and compiled when these first run.

    Args:
        everything: also the kernels of ragged programs, fused products, dense products, the simulator, and sparse
            products of numbers other than float32.
        jobs: sources that are compiled at once (default: the processors that this process may use).

    Returns:
        source and its macros -> seconds that it took; about 0 for what was compiled before.

    Raises:
        NoCompiler: there is no compiler.
    """
    wanted = libraries() if everything else COMMON
    tasks = {_name(sources): partial(compile_cpp, sources, native=True) for sources in wanted}
    if CHECKOUT is not None:
        tasks[CORE] = partial(_attempt, build_core, PACKAGE)

    def seconds(task: Callable[[], Any]) -> float:
        began = time.perf_counter()
        task()
        return time.perf_counter() - began

    find_toolchain("c++")
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        return dict(zip(tasks, pool.map(seconds, tasks.values()), strict=True))


def install(package: Path, kernels: Literal["none", "common", "all"] = "common") -> None:
    """Build the core and kernels into the folder of a package; without "all", what cannot be built is left out.

    Args:
        kernels: "common" are those that most programs need, for this kind of processor; "all" are for every level.

    Raises:
        Unsupported, NoCompiler, CompileError: "all" are wanted, and something cannot be built.
    """
    folder = package / PREBUILT
    if kernels == "all":
        build_core(package, *PORTABLE)
        build_libraries(folder, tuple(LEVELS), libraries(), *PORTABLE)
    else:
        _attempt(build_core, package)
    if kernels == "common":
        _attempt(build_libraries, folder, processor_levels()[:1], COMMON, *LOCAL, seconds=SECONDS)


def build_core(package: Path, *flags: str) -> None:
    """Compile the native core into the folder of a package, if it is not there for the same sources.

    Raises:
        Unsupported: the headers of Python are not installed.
        NoCompiler, CompileError: there is no compiler, or it refused the source.
    """
    target, sources = package / CORE_FILE, core_digest()
    if target.is_file() and sources.encode() in target.read_bytes():
        return
    python = Path(sysconfig.get_paths()["include"])
    if not (python / "Python.h").is_file():
        raise Unsupported(f"no {python / 'Python.h'}, which the native core needs: install the headers of Python "
                          "(Debian and Ubuntu: apt-get install python3-dev; Fedora: dnf install python3-devel)")
    import numpy  # is not needed otherwise

    includes = (f"-I{python}", f"-I{numpy.get_include()}")
    _build((CORE,), target, ("-O3", "-fvisibility=hidden", "-DPy_LIMITED_API=0x030B0000",
                             f'-DSPARLOOM_SOURCES="{sources}"', *includes, *flags))


def build_libraries(
    folder: Path, levels: Sequence[str], wanted: Sequence[tuple[str, ...]], *flags: str, seconds: float = math.inf,
) -> None:
    """Build libraries of kernels, those that are not there for the same sources; remove others of these levels.

    Args:
        folder: gets LEVEL/NAME-KEY.so and the runtime of OpenMP.
        levels: of x86-64 processors.
        wanted: sources and macros of each library.
        flags: besides those of the level.
        seconds: no library begins later.

    Raises:
        Unsupported: the compiler is not gcc for x86-64.
        NoCompiler, CompileError: there is no compiler, or it refused a source.
    """
    toolchain, deadline = find_toolchain("c++"), time.monotonic() + seconds
    native = default_flags(toolchain)
    if toolchain.is_clang or "-march=native" not in native or os.uname().machine != "x86_64":
        raise Unsupported(f"ready-built kernels are made by gcc for x86-64, and {toolchain.command[0]} is another "
                          "compiler: set CXX=g++, or let kernels be compiled when they are first used")

    def build(level: str, relative: tuple[str, ...]) -> Path:
        parts = (*Path(relative[0]).with_suffix("").parts, *(each.rpartition("=")[2] for each in macros_of(relative)))
        library = folder / level / f"{'_'.join(parts)}-{ready_key(library_texts(relative)[1])}.so"
        if not library.is_file() and time.monotonic() < deadline:
            _build(relative, library, (*(LEVELS[level].flag if flag == "-march=native" else flag for flag in native),
                                       *flags))
        return library

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        kept = {*pool.map(build, *zip(*product(levels, wanted), strict=True))}
    for stale in {library for level in levels for library in (folder / level).glob("*.so")} - kept:
        stale.unlink()
    command = [*toolchain.command, f"-print-file-name={OPENMP}"]
    runtime = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    _replace(folder / OPENMP, Path(runtime).resolve())


def _build(relative: tuple[str, ...], target: Path, flags: tuple[str, ...]) -> None:
    sources = library_texts(relative)[0]
    with build_folder(target.parent) as folder:
        find_toolchain("c++").compile(sources[0], folder / target.name, (
            *flags, *macros_of(relative), f"-I{kernel_folder()}"), *sources[1:])
        _replace(target, folder / target.name)


def _replace(target: Path, file: Path) -> None:
    """Copy a file over another one, which processes that have loaded it keep."""
    with atomic_path(target) as temporary:
        shutil.copy(file, temporary)


def _attempt(step: Callable[..., None], *arguments: Any, **options: Any) -> None:
    """Build something, or say what that needs: the package works without it."""
    try:
        step(*arguments, **options)
    except (SparloomError, ImportError, OSError) as error:
        log.warning("%s", error)


def _name(sources: Sequence[str]) -> str:
    return " ".join((sources[0], *macros_of(sources)))
