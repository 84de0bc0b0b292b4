"""Hand-written C++ under kernels/ as a shared library."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

from sparloom.files import locked, scratch_folder
from sparloom.jit.cache import Cache, cache_folder, digest
from sparloom.jit.source import kernel_folder, kernel_source
from sparloom.jit.toolchain import default_flags, find_toolchain

__all__ = ["compile_cpp"]


def compile_cpp(relative_paths: Sequence[str], flags: Sequence[str] | None = None) -> ctypes.CDLL:
    """Compile sources under kernels/ to one library, or take it from the cache.

    Any header under kernels/ that changes makes it compile anew.

    Args:
        relative_paths: such as ["cpu/pack.cpp"]; headers are found relative to the source and to kernels/.
        flags: in place of the default flags.

    Raises:
        CompileError: the compiler refused, or there is none.
        FileNotFoundError: there is no such source.
    """
    toolchain = find_toolchain("c++")
    sources = [kernel_source(relative) for relative in relative_paths]
    chosen = (*(default_flags(toolchain) if flags is None else flags), f"-I{kernel_folder()}")
    headers = sorted(path for path in kernel_folder().rglob("*.h*") if path.suffix in (".h", ".hpp"))
    texts = [f"{path.name}\n{path.read_text(encoding='utf-8')}" for path in (*sources, *headers)]
    key = digest("c++", toolchain.version, toolchain.processor, *chosen[:-1], *texts)
    cache = Cache(cache_folder() / "jit")
    with locked(cache.lock(key)):
        library = cache.find(key)
        if library is None:
            with scratch_folder("compile") as folder:
                built = Path(folder) / "library.so"
                toolchain.compile(sources[0], built, chosen, *sources[1:])
                library = cache.put(built, [key])
    return ctypes.CDLL(str(library))
