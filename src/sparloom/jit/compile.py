"""Many kernels, few compiler runs: C text to functions."""

import ctypes
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

from sparloom.errors import CompileError
from sparloom.files import write_text
from sparloom.ir import Kernel, render_c
from sparloom.jit.cache import FORMAT, Cache, build_folder, cache_folder, digest
from sparloom.jit.cpp import compile_cpp
from sparloom.jit.function import Function
from sparloom.jit.products import set_products
from sparloom.jit.source import Source
from sparloom.jit.toolchain import Toolchain, default_flags, find_toolchain, processor_signature
from sparloom.measure import checked_threads

__all__ = ["Library", "compile_c"]

UNIT_SIZE = 64  # kernels per translation unit

log = logging.getLogger(__name__)


class Library:
    """Functions compiled together, by the names of their kernels."""

    def __init__(self, functions: dict[str, Function], handles: Sequence[ctypes.CDLL]) -> None:
        self._functions = functions
        self._handles = tuple(handles)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._functions)

    def function(self, name: str) -> Function:
        """Look up the function of a kernel.

        Raises:
            KeyError: no kernel has that name; the message lists those there are.
        """
        if name not in self._functions:
            raise KeyError(f"no kernel {name!r} in the library; there are: {', '.join(self._functions)}")
        return self._functions[name]

    @property
    def threads(self) -> int:
        """Threads of parallel loops that the calling thread starts, unless `set_threads` says otherwise."""
        counts = (handle.omp_get_max_threads() for handle in self._handles if hasattr(handle, "omp_get_max_threads"))
        return max(counts, default=1)

    def set_threads(self, count: int) -> None:
        """Let parallel loops that the calling thread starts from now on use `count` threads (all libraries).

        They are fewer where the system does not let this process have so many.

        Raises:
            TypeError, ValueError: too many, or no number; see `checked_threads`.
        """
        count = checked_threads(count)
        for handle in self._handles:
            if hasattr(handle, "omp_set_num_threads"):  # absent where nothing in the library is parallel
                handle.omp_set_num_threads(ctypes.c_int(_team()(count)))


@dataclass(frozen=True)
class _Item:
    kernel: Kernel | Source
    key: str
    without_compiler: str

    @property
    def symbol(self) -> str:
        """Unique name, so kernels of one name but different content may share a unit; a Source keeps its own."""
        return self.kernel.name if isinstance(self.kernel, Source) else f"{self.kernel.name}_{self.key[:16]}"


def compile_c(kernels: Sequence[Kernel | Source], flags: Sequence[str] | None = None, *, jobs: int = 1) -> Library:
    """Compile kernels, or take them from the cache, and load them.

    Kernels not yet in the cache are compiled in units of at most 64, a Source in a unit of its own. The key of a
    kernel is its C text, the compiler's version, the flags and the processor. Without a compiler, what any compiler
    made of the same text for this processor is taken.

    Args:
        flags: in place of the default flags.
        jobs: compiler processes at once.

    Raises:
        CompileError: the compiler refused, or there is none.
        ValueError: two different kernels have the same name.
        IllegalSchedule: a kernel does not verify.
        MemoryError: there is no memory for a library.
    """
    cache = Cache(cache_folder() / "jit")
    try:
        toolchain = find_toolchain("c")
    except CompileError:
        items = _items(kernels, None, None if flags is None else tuple(flags))
        found = {item.key: cache.loaded(item.without_compiler, kind="any") for item in items}
        if None in found.values():
            raise
        return _library(items, found)
    chosen = default_flags(toolchain) if flags is None else tuple(flags)
    items = _items(kernels, toolchain, None if flags is None else chosen)
    found = {item.key: cache.loaded(item.key) for item in items}
    units = _units([item for item in items if found[item.key] is None])
    if units:
        started = time.perf_counter()
        if min(jobs, len(units)) == 1:
            built = [_build(unit, toolchain, chosen, cache) for unit in units]
        else:
            with ThreadPoolExecutor(jobs) as pool:
                built = list(pool.map(lambda unit: _build(unit, toolchain, chosen, cache), units))
        for libraries in built:
            found |= libraries
        log.debug("compiled %d kernels in %.2f s", sum(map(len, units)), time.perf_counter() - started)
    return _library(items, found)


@cache
def _team() -> Callable[[int], int]:
    """Give the function of kernels/cpu/team.hpp; without a compiler it may be missing, and is not needed to compute."""
    try:
        return compile_cpp(["cpu/team.cpp"]).sparloom_team
    except CompileError:
        return lambda wanted: wanted


def _library(items: Sequence[_Item], found: Mapping[str, ctypes.CDLL]) -> Library:
    handles = list({id(handle): handle for handle in found.values()}.values())
    for handle in handles:
        set_products(handle)
    return Library({item.kernel.name: _function(item, found[item.key]) for item in items}, handles)


def _function(item: _Item, handle: ctypes.CDLL) -> Function:
    if not hasattr(handle, item.symbol):
        remedy = "the name of a Source is that of its function"
        text = item.kernel.text if isinstance(item.kernel, Source) else ""
        raise CompileError(f"the text defines no function {item.symbol}: {remedy}", source=text, log="")
    return Function(item.kernel.name, item.kernel.params, getattr(handle, item.symbol))


def _items(
    kernels: Sequence[Kernel | Source], toolchain: Toolchain | None, flags: tuple[str, ...] | None,
) -> list[_Item]:
    """Name kernels by what they are made from; without a compiler by the rest.

    Args:
        flags: None: the default flags of the compiler.
    """
    items: dict[str, _Item] = {}
    for kernel in kernels:
        text = kernel.text if isinstance(kernel, Source) else render_c(kernel)
        rest = digest("c", FORMAT, processor_signature(), "default" if flags is None else " ".join(flags), text)
        key = rest if toolchain is None else digest(
            "c", FORMAT, toolchain.version, toolchain.processor,
            " ".join(default_flags(toolchain) if flags is None else flags), text)
        item = _Item(kernel, key, rest)
        if items.setdefault(kernel.name, item).key != item.key:
            raise ValueError(f"two different kernels are named {kernel.name}: give each its own name")
    return list(items.values())


def _units(missing: Sequence[_Item]) -> list[list[_Item]]:
    rendered = [item for item in missing if isinstance(item.kernel, Kernel)]
    units = [rendered[start : start + UNIT_SIZE] for start in range(0, len(rendered), UNIT_SIZE)]
    return units + [[item] for item in missing if isinstance(item.kernel, Source)]


def _build(
    unit: Sequence[_Item], toolchain: Toolchain, flags: tuple[str, ...], cache: Cache,
) -> dict[str, ctypes.CDLL]:
    """Compile a unit; returns the library of each key."""
    names = unit[0].kernel.name + (f" and {len(unit) - 1} more kernels" if len(unit) > 1 else "")
    with cache.turn(digest(*(item.key for item in unit)), f"compile {names}"):
        found = {item.key: cache.loaded(item.key) for item in unit}
        if None not in found.values():  # another process was faster
            return found
        with build_folder(cache.folder) as folder:
            source, built = folder / "kernels.c", folder / "kernels.so"
            write_text(source, _text(unit))
            toolchain.compile(source, built, flags)
            library = cache.keep(built, {item.key: item.without_compiler for item in unit})
            return {item.key: library for item in unit}


def _text(unit: Sequence[_Item]) -> str:
    if isinstance(unit[0].kernel, Source):
        return unit[0].kernel.text
    return render_c(*(replace(item.kernel, name=item.symbol) for item in unit))
