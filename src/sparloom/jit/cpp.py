"""Hand-written C++ under kernels/ as a shared library."""

import ctypes
from collections.abc import Sequence

from sparloom.errors import CompileError
from sparloom.jit.cache import FORMAT, Cache, build_folder, cache_folder, digest
from sparloom.jit.source import kernel_folder, kernel_source
from sparloom.jit.toolchain import default_flags, find_toolchain, processor_signature

__all__ = ["compile_cpp"]


def compile_cpp(relative_paths: Sequence[str], flags: Sequence[str] | None = None) -> ctypes.CDLL:
    """Compile sources under kernels/ to one library, or take it from the cache.

    Any header under kernels/ that changes makes it compile anew. Without a compiler, what any compiler made of the same
    sources for this processor is taken.

    Args:
        relative_paths: such as ["cpu/pack.cpp"]; headers are found relative to the source and to kernels/.
        flags: in place of the default flags.

    Raises:
        CompileError: the compiler refused, or there is none.
        FileNotFoundError: there is no such source.
        MemoryError: there is no memory for the library.
    """
    sources = [kernel_source(relative) for relative in relative_paths]
    headers = sorted(path for path in kernel_folder().rglob("*.h*") if path.suffix in (".h", ".hpp"))
    texts = [f"{path.name}\n{path.read_text(encoding='utf-8')}" for path in (*sources, *headers)]
    cache = Cache(cache_folder() / "jit")
    without_compiler = digest("c++", FORMAT, processor_signature(), *(("default",) if flags is None else flags), *texts)
    try:
        toolchain = find_toolchain("c++")
    except CompileError:
        library = cache.loaded(without_compiler, kind="any")
        if library is None:
            raise
        return library
    chosen = (*(default_flags(toolchain) if flags is None else flags), f"-I{kernel_folder()}")
    key = digest("c++", FORMAT, toolchain.version, toolchain.processor, *chosen[:-1], *texts)
    library = cache.loaded(key)
    if library is None:
        with cache.turn(key, f"compile {relative_paths[0]}"):
            library = cache.loaded(key)
            if library is None:
                with build_folder(cache.folder) as folder:
                    built = folder / "library.so"
                    toolchain.compile(sources[0], built, chosen, *sources[1:])
                    library = cache.keep(built, {key: without_compiler})
    return library
