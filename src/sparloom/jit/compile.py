"""Many kernels, few compiler runs: C text to functions."""

import ctypes
import logging
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from sparloom.errors import CompileError
from sparloom.files import locked, write_text
from sparloom.ir import Kernel, render_c
from sparloom.jit.cache import Cache, cache_folder, digest
from sparloom.jit.function import Function
from sparloom.jit.products import set_products
from sparloom.jit.source import Source
from sparloom.jit.toolchain import Toolchain, default_flags, find_toolchain
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

        Raises:
            TypeError, ValueError: too many, or no number; see `checked_threads`.
        """
        count = checked_threads(count)
        for handle in self._handles:
            if hasattr(handle, "omp_set_num_threads"):  # absent where nothing in the library is parallel
                handle.omp_set_num_threads(ctypes.c_int(count))


@dataclass(frozen=True)
class _Item:
    kernel: Kernel | Source
    key: str

    @property
    def symbol(self) -> str:
        """Unique name, so kernels of one name but different content may share a unit; a Source keeps its own."""
        return self.kernel.name if isinstance(self.kernel, Source) else f"{self.kernel.name}_{self.key[:16]}"


def compile_c(kernels: Sequence[Kernel | Source], flags: Sequence[str] | None = None, *, jobs: int = 1) -> Library:
    """Compile kernels, or take them from the cache, and load them.

    Kernels not yet in the cache are compiled in units of at most 64, a Source in a unit of its own. The key of a
    kernel is its C text, the compiler's version, the flags and the processor.

    Args:
        flags: in place of the default flags.
        jobs: compiler processes at once.

    Raises:
        CompileError: the compiler refused, or there is none.
        ValueError: two different kernels have the same name.
        IllegalSchedule: a kernel does not verify.
    """
    toolchain = find_toolchain("c")
    chosen = default_flags(toolchain) if flags is None else tuple(flags)
    items = _items(kernels, toolchain, chosen)
    cache = Cache(cache_folder() / "jit")
    found = {item.key: cache.find(item.key) for item in items}
    units = _units([item for item in items if found[item.key] is None])
    if units:
        started = time.perf_counter()
        with ThreadPoolExecutor(jobs) as pool:
            built = list(pool.map(lambda unit: _build(unit, toolchain, chosen, cache), units))
        for unit, library in zip(units, built, strict=True):
            found.update((item.key, library) for item in unit)
        log.debug("compiled %d kernels in %.2f s", sum(map(len, units)), time.perf_counter() - started)
    handles = {library: ctypes.CDLL(str(library)) for library in found.values() if library is not None}
    for handle in handles.values():
        set_products(handle)
    functions = {item.kernel.name: _function(item, handles[found[item.key]]) for item in items}
    return Library(functions, list(handles.values()))


def _function(item: _Item, handle: ctypes.CDLL) -> Function:
    if not hasattr(handle, item.symbol):
        remedy = "the name of a Source is that of its function"
        text = item.kernel.text if isinstance(item.kernel, Source) else ""
        raise CompileError(f"the text defines no function {item.symbol}: {remedy}", source=text, log="")
    return Function(item.kernel.name, item.kernel.params, getattr(handle, item.symbol))


def _items(kernels: Sequence[Kernel | Source], toolchain: Toolchain, flags: tuple[str, ...]) -> list[_Item]:
    items: dict[str, _Item] = {}
    for kernel in kernels:
        text = kernel.text if isinstance(kernel, Source) else render_c(kernel)
        item = _Item(kernel, digest("c", toolchain.version, toolchain.processor, " ".join(flags), text))
        if items.setdefault(kernel.name, item).key != item.key:
            raise ValueError(f"two different kernels are named {kernel.name}: give each its own name")
    return list(items.values())


def _units(missing: Sequence[_Item]) -> list[list[_Item]]:
    rendered = [item for item in missing if isinstance(item.kernel, Kernel)]
    units = [rendered[start : start + UNIT_SIZE] for start in range(0, len(rendered), UNIT_SIZE)]
    return units + [[item] for item in missing if isinstance(item.kernel, Source)]


def _build(unit: Sequence[_Item], toolchain: Toolchain, flags: tuple[str, ...], cache: Cache) -> Path:
    key = digest(*(item.key for item in unit))
    with locked(cache.lock(key)):
        libraries = {cache.find(item.key) for item in unit}
        if len(libraries) == 1 and None not in libraries:  # another process was faster
            return libraries.pop()
        with tempfile.TemporaryDirectory(prefix="sparloom-") as folder:
            source, built = Path(folder) / "kernels.c", Path(folder) / "kernels.so"
            write_text(source, _text(unit))
            toolchain.compile(source, built, flags)
            return cache.put(built, [item.key for item in unit])


def _text(unit: Sequence[_Item]) -> str:
    if isinstance(unit[0].kernel, Source):
        return unit[0].kernel.text
    return render_c(*(replace(item.kernel, name=item.symbol) for item in unit))
