"""Compile C text, rendered from the IR or hand-written, to checked functions."""

import ctypes
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from sparloom.errors import CompileError
from sparloom.files import write_text
from sparloom.ir import DTYPES, PRODUCTS, Kernel, Param, render_c
from sparloom.jit.cache import FORMAT, Cache, build_folder, cache_folder, digest
from sparloom.jit.toolchain import Toolchain, compile_cpp, default_flags, find_toolchain, processor_signature
from sparloom.measure import checked_threads

_C_TYPES = {
    "i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float, "f64": ctypes.c_double, "bool": ctypes.c_bool,
}
_RANGES = {"i32": range(-(2**31), 2**31), "i64": range(-(2**63), 2**63)}
_WHOLE, _REAL = (int, np.integer), (int, float, np.integer, np.floating)
_SCALARS = {  # type -> what converts to it, what is taken, and a word for that
    "bool": (bool, (bool, np.bool_), "a bool"), **dict.fromkeys(("i32", "i64"), (int, _WHOLE, "an int")),
    **dict.fromkeys(("f32", "f64"), (float, _REAL, "a float"))}
UNIT_SIZE = 64  # kernels per translation unit

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """C text that defines `void name(params)`: pointers for buffers, values for scalars, in order."""

    name: str
    params: tuple[Param, ...]
    text: str


def link_tile_multiply(handle: ctypes.CDLL) -> None:
    """Pass the function of kernels/cpu/multiply.cpp to a library whose rendered C multiplies tiles."""
    for scalar, _ in PRODUCTS:
        setter = f"sparloom_set_multiply_{scalar}"
        if hasattr(handle, setter):
            multiply = getattr(_multiply_library(), f"sparloom_multiply_{scalar}")
            getattr(handle, setter)(ctypes.cast(multiply, ctypes.c_void_p))


@cache
def _multiply_library() -> ctypes.CDLL:
    return compile_cpp(["cpu/multiply.cpp"])


class Function:
    """A compiled kernel; calling it releases the GIL.

    Buffers are C-contiguous arrays of any number of dimensions with exactly the dtype of their parameter. Written
    buffers must not overlap other buffers.
    """

    def __init__(self, name: str, params: Sequence[Param], entry: Any) -> None:
        self.name = name
        self.params = tuple(params)
        self._entry = entry
        self._entry.restype = None
        self._entry.argtypes = [ctypes.c_void_p if p.buffer else _C_TYPES[p.type.scalar] for p in self.params]

    def __call__(self, *arguments: Any) -> None:
        """Check `arguments` and run.

        Raises:
            TypeError: wrong number of arguments, or one of the wrong type.
            ValueError: a buffer is not contiguous, read-only although it is written, or overlaps another.
        """
        self.bind(*arguments)()

    def bind(self, *arguments: Any) -> Callable[[], None]:
        """Check `arguments` once and return a call without arguments, for timing loops."""
        if len(arguments) != len(self.params):
            names = ", ".join(param.name for param in self.params)
            raise TypeError(f"kernel {self.name} takes {len(self.params)} arguments ({names}), got {len(arguments)}")
        pairs = list(zip(self.params, arguments, strict=True))
        values = [self._buffer(p, a) if p.buffer else self._scalar(p, a) for p, a in pairs]
        self._check_overlap([(p, a) for p, a in pairs if p.buffer])
        entry = self._entry

        def run(kept: tuple[Any, ...] = arguments) -> None:
            entry(*values)

        return run

    @cached_property
    def address(self) -> int:
        """Address of the kernel, for callers that check its arguments."""
        return ctypes.cast(self._entry, ctypes.c_void_p).value

    def _buffer(self, param: Param, array: Any) -> int:
        where = f"argument {param.name} of kernel {self.name}"
        dtype = np.dtype(DTYPES[param.type.scalar])
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{where} is a {type(array).__name__}: pass a NumPy array of {dtype}")
        if array.dtype != dtype:
            raise TypeError(f"{where} has dtype {array.dtype}, not {dtype}: convert it with .astype(np.{dtype})")
        if not array.flags.c_contiguous or not array.flags.aligned:
            raise ValueError(f"{where} is not C-contiguous and aligned: pass np.ascontiguousarray of it")
        if not param.const and not array.flags.writeable:
            raise ValueError(f"{where} is written but read-only: pass a copy")
        return array.ctypes.data

    def _scalar(self, param: Param, value: Any) -> Any:
        where, kind = f"argument {param.name} of kernel {self.name}", param.type.scalar
        convert, taken, word = _SCALARS[kind]
        if isinstance(value, (bool, np.bool_)) != (kind == "bool") or not isinstance(value, taken):
            raise TypeError(f"{where} is a {type(value).__name__}: pass {word}")
        if kind in _RANGES and int(value) not in _RANGES[kind]:
            raise ValueError(f"{where} is {value}, outside the range of {kind}")
        return convert(value)

    def _check_overlap(self, buffers: list[tuple[Param, np.ndarray]]) -> None:
        for written, array in buffers:
            if written.const:
                continue
            for other, against in buffers:
                if other is not written and np.may_share_memory(array, against):
                    names = f"{written.name} and {other.name}"
                    raise ValueError(f"arguments {names} of kernel {self.name} overlap: pass a copy of one")


class Library:
    """Functions compiled together, by the names of their kernels."""

    def __init__(self, functions: dict[str, Function], handles: Sequence[ctypes.CDLL]) -> None:
        self._functions = functions
        self._handles = tuple(handles)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._functions)

    def function(self, name: str) -> Function:
        """Return the function of a kernel.

        Raises:
            KeyError: no kernel has that name; the message lists the existing ones.
        """
        if name not in self._functions:
            raise KeyError(f"no kernel {name!r} in the library; there are: {', '.join(self._functions)}")
        return self._functions[name]

    @property
    def threads(self) -> int:
        """Number of threads of parallel loops that the calling thread starts, unless `set_threads` changes it."""
        counts = (handle.omp_get_max_threads() for handle in self._handles if hasattr(handle, "omp_get_max_threads"))
        return max(counts, default=1)

    def set_threads(self, count: int) -> None:
        """Set the number of threads of parallel loops that the calling thread starts from now on (all libraries).

        It is lower if the system does not allow this process so many threads.

        Raises:
            TypeError, ValueError: too many, or not an int; see `checked_threads`.
        """
        count = checked_threads(count)
        for handle in self._handles:
            if hasattr(handle, "omp_set_num_threads"):  # absent if nothing in the library is parallel
                handle.omp_set_num_threads(ctypes.c_int(_thread_limit()(count)))


@dataclass(frozen=True)
class _Item:
    kernel: Kernel | Source
    key: str
    without_compiler: str

    @property
    def symbol(self) -> str:
        """Unique name, so that kernels of one name but different content can share a unit; a Source keeps its own."""
        return self.kernel.name if isinstance(self.kernel, Source) else f"{self.kernel.name}_{self.key[:16]}"


def compile_c(kernels: Sequence[Kernel | Source], *, jobs: int = 1) -> Library:
    """Compile kernels, or take them from the cache, and load them.

    Kernels that are not in the cache are compiled in units of at most 64, a Source in a unit of its own. The key of a
    kernel is its C text, the compiler's version, the flags and the processor. If no compiler is installed, a library
    that any compiler made of the same text for this processor is used.

    Args:
        jobs: compiler processes at once.

    Raises:
        CompileError: compilation failed, or there is no compiler.
        ValueError: two different kernels have the same name.
        IllegalSchedule: a kernel does not verify.
        MemoryError: there is no memory for a library.
    """
    cache = Cache(cache_folder() / "jit")
    try:
        toolchain = find_toolchain("c")
    except CompileError:
        items = _items(kernels, None)
        found = {item.key: cache.get(item.without_compiler, kind="any") for item in items}
        if None in found.values():
            raise
        return _library(items, found)
    items = _items(kernels, toolchain)
    found = {item.key: cache.get(item.key) for item in items}
    units = _units([item for item in items if found[item.key] is None])
    if units:
        started = time.perf_counter()
        if min(jobs, len(units)) == 1:
            built = [_build(unit, toolchain, cache) for unit in units]
        else:
            with ThreadPoolExecutor(jobs) as pool:
                built = list(pool.map(lambda unit: _build(unit, toolchain, cache), units))
        for libraries in built:
            found |= libraries
        log.debug("compiled %d kernels in %.2f s", sum(map(len, units)), time.perf_counter() - started)
    return _library(items, found)


@cache
def _thread_limit() -> Callable[[int], int]:
    """Return the function of kernels/cpu/team.hpp, or the identity if it cannot be compiled; results do not need it."""
    try:
        return compile_cpp(["cpu/team.cpp"]).sparloom_team
    except CompileError:
        return lambda count: count


def _library(items: Sequence[_Item], found: Mapping[str, ctypes.CDLL]) -> Library:
    handles = list({id(handle): handle for handle in found.values()}.values())
    for handle in handles:
        link_tile_multiply(handle)
    return Library({item.kernel.name: _function(item, found[item.key]) for item in items}, handles)


def _function(item: _Item, handle: ctypes.CDLL) -> Function:
    if not hasattr(handle, item.symbol):
        remedy = "the name of a Source is that of its function"
        text = item.kernel.text if isinstance(item.kernel, Source) else ""
        raise CompileError(f"the text defines no function {item.symbol}: {remedy}", source=text, log="")
    return Function(item.kernel.name, item.kernel.params, getattr(handle, item.symbol))


def _items(kernels: Sequence[Kernel | Source], toolchain: Toolchain | None) -> list[_Item]:
    """Compute the keys of kernels, with and without the compiler."""
    items: dict[str, _Item] = {}
    for kernel in kernels:
        text = kernel.text if isinstance(kernel, Source) else render_c(kernel)
        rest = digest("c", FORMAT, processor_signature(), "default", text)
        key = rest if toolchain is None else digest(
            "c", FORMAT, toolchain.version, toolchain.processor, " ".join(default_flags(toolchain)), text)
        item = _Item(kernel, key, rest)
        if items.setdefault(kernel.name, item).key != item.key:
            raise ValueError(f"two different kernels are named {kernel.name}: give each its own name")
    return list(items.values())


def _units(missing: Sequence[_Item]) -> list[list[_Item]]:
    rendered = [item for item in missing if isinstance(item.kernel, Kernel)]
    units = [rendered[start : start + UNIT_SIZE] for start in range(0, len(rendered), UNIT_SIZE)]
    return units + [[item] for item in missing if isinstance(item.kernel, Source)]


def _build(unit: Sequence[_Item], toolchain: Toolchain, cache: Cache) -> dict[str, ctypes.CDLL]:
    """Compile a unit; return the library of each key."""
    names = unit[0].kernel.name + (f" and {len(unit) - 1} more kernels" if len(unit) > 1 else "")
    with cache.turn(digest(*(item.key for item in unit)), f"compile {names}"):
        found = {item.key: cache.get(item.key) for item in unit}
        if None not in found.values():  # another process compiled it first
            return found
        with build_folder(cache.folder) as folder:
            source, built = folder / "kernels.c", folder / "kernels.so"
            write_text(source, _text(unit))
            toolchain.compile(source, built, default_flags(toolchain))
            library = cache.put(built, {item.key: item.without_compiler for item in unit})
            return {item.key: library for item in unit}


def _text(unit: Sequence[_Item]) -> str:
    if isinstance(unit[0].kernel, Source):
        return unit[0].kernel.text
    return render_c(*(replace(item.kernel, name=item.symbol) for item in unit))
