"""Hand-written sources under kernels/, the compiler with its flags and processor, and the libraries that it builds."""

import ctypes
import errno
import functools
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparloom.errors import CompileError, NoCompiler
from sparloom.jit.cache import FORMAT, Cache, build_folder, cache_folder, digest, load
from sparloom.resources import FOLDERS, PACKAGE

Language = Literal["c", "c++"]

_VARIABLE: dict[Language, str] = {"c": "CC", "c++": "CXX"}
_CANDIDATES: dict[Language, tuple[str, ...]] = {"c": ("gcc", "clang", "cc"), "c++": ("g++", "clang++", "c++")}
_STANDARD: dict[Language, str] = {"c": "gnu11", "c++": "gnu++17"}
_REPORT_AFTER_SECONDS = 1.0  # of compiling, before it is reported
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_SIGNATURE_FIELDS = ("model name", "flags", "Features", "CPU implementer", "CPU part")

CORE = "native/module.cpp"  # source of sparloom._native
OPENMP = "libgomp.so.1"
PREBUILT = "_prebuilt"
"""Folder of the package with ready-built libraries, LEVEL/NAME-KEY.so, and the runtime of OpenMP; see prebuild.py."""

log = logging.getLogger(__name__)
_AVX2 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")


@dataclass(frozen=True)
class Level:
    """A set of x86-64 processors: the compiler's name of it, and the features that /proc/cpuinfo lists for it."""

    flag: str
    features: tuple[str, ...]


LEVELS: Mapping[str, Level] = {  # the best first; the last one runs everywhere
    "avx512": Level("-march=x86-64-v4", (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
    "avx2": Level("-march=x86-64-v3", _AVX2),
    "generic": Level("-march=x86-64", ("lm",)),
}


@functools.cache
def kernel_library(name: str, element: str = "float") -> ctypes.CDLL:
    """Load kernels/cpu/<name>.cpp, compiled for a type of numbers, once per process, see `compile_cpp`."""
    return compile_cpp([f"cpu/{name}.cpp", *([] if element == "float" else [f"-DELEMENT={element}"])])


def compile_cpp(
    relative_paths: Sequence[str], flags: Sequence[str] | None = None, *, native: bool = False,
) -> ctypes.CDLL:
    """Compile hand-written C++ under kernels/ to a shared library, or take it from the cache, and load it.

    The key is the text of the sources and all headers, the compiler's version, the flags and the processor. If no
    compiler is installed, a library that any compiler made of the same sources for this processor is used. If the
    library was built when this package was (see prebuild.py), it is used until `native` compiles it for this processor.

    Args:
        relative_paths: such as ["cpu/pack.cpp"]; headers are found relative to the source and to kernels/. Macros
            such as "-DELEMENT=double" may be among them.
        flags: replace the default flags.
        native: compile even if the library is there ready-built.

    Raises:
        NoCompiler: there is no compiler.
        CompileError: compilation failed.
        FileNotFoundError: there is no such source.
        MemoryError: there is no memory for the library.
    """
    sources, texts = library_texts(relative_paths)
    cache = Cache(cache_folder() / "jit")
    without_compiler = digest("c++", FORMAT, processor_signature(), *(("default",) if flags is None else flags), *texts)
    ready = _ready_built().get(ready_key(texts)) if flags is None and not native else None
    if ready is not None:
        try:
            return cache.get(without_compiler, kind="any") or load(ready)
        except OSError as error:
            log.warning("%s does not load (%s): compiling it again", ready, error)
    try:
        toolchain = find_toolchain("c++")
    except NoCompiler:
        library = cache.get(without_compiler, kind="any")
        if library is None:
            raise
        return library
    command_flags = (*(default_flags(toolchain) if flags is None else flags), *macros_of(relative_paths),
                     f"-I{kernel_folder()}")
    key = digest("c++", FORMAT, toolchain.version, toolchain.processor, *command_flags[:-1], *texts)
    library = cache.get(key)
    if library is None:
        with cache.turn(key, f"compile {relative_paths[0]}"):
            library = cache.get(key)
            if library is None:
                with build_folder(cache.folder) as folder:
                    built = folder / "library.so"
                    toolchain.compile(sources[0], built, command_flags, *sources[1:])
                    library = cache.put(built, {key: without_compiler})
    return library


def library_texts(relative_paths: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the paths of sources, and what a library depends on.

    This is the macros among `relative_paths`, and the names and texts of the sources and all that they include.
    """
    macros = macros_of(relative_paths)
    sources = [kernel_source(relative) for relative in relative_paths if relative not in macros]
    return sources, [f"{path.name}\n{path.read_text(encoding='utf-8')}" for path in _with_headers(sources)] + macros


def macros_of(relative_paths: Sequence[str]) -> list[str]:
    """Return the macros, such as "-DELEMENT=double", among the sources of a library."""
    return [relative for relative in relative_paths if relative.startswith("-D")]


def ready_key(texts: Sequence[str]) -> str:
    """Return the key of a ready-built library: the flags of gcc, and what the library depends on."""
    return digest(*default_flags(Toolchain(("g++",), "c++", "", "")), *texts)


def processor_levels() -> list[str]:
    """List the levels whose kernels this processor runs, the best first; none if it is not x86-64."""
    described = re.search(r"^flags\s*:(.*)$", processor_signature(), re.MULTILINE)
    features = set(described[1].split()) if described else set()
    return [name for name, level in LEVELS.items() if features >= {*level.features}]


@functools.cache
def _ready_built() -> Mapping[str, Path]:
    """Map keys to the ready-built libraries of this package for the best level that this processor runs."""
    folder = PACKAGE / PREBUILT
    level = next((name for name in processor_levels() if (folder / name).is_dir()), None)
    if level is None:
        return {}
    try:
        ctypes.CDLL(OPENMP)
    except OSError:  # not installed: libraries then find the one that was loaded from beside them
        ctypes.CDLL(str(folder / OPENMP))
    return {library.stem.rpartition("-")[2]: library for library in (folder / level).glob("*.so")}


def kernel_folder() -> Path:
    """Return the folder of kernel sources, in the checkout or in the installed package.

    Raises:
        FileNotFoundError: the installation lacks it.
    """
    folder = FOLDERS["kernels"]
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}: this copy of sparloom is incomplete; install a wheel, or run "
                                "`pip install -e .` in a checkout")
    return folder


def kernel_source(relative: str) -> Path:
    """Return the path of a source under kernels/, such as "spade/trace.cpp".

    Raises:
        FileNotFoundError: there is no such file; the message lists the existing ones.
    """
    folder = kernel_folder()
    path = folder / relative
    if not path.is_file():
        existing = sorted(str(other.relative_to(folder)) for other in folder.rglob("*") if other.is_file())
        raise FileNotFoundError(f"no kernel source {relative!r} in {folder}; there are: "
                                f"{', '.join(existing) or 'none'}")
    return path


def sources_digest(relative_paths: Sequence[str]) -> str:
    """Hash sources under kernels/ and everything they include, 16 hexadecimal digits; file names are ignored.

    Raises:
        FileNotFoundError: there is no such source.
    """
    files = _with_headers([kernel_source(relative) for relative in relative_paths])
    texts = sorted(hashlib.sha256(path.read_bytes()).digest() for path in files)
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]


def _with_headers(sources: Sequence[Path]) -> list[Path]:
    """Return sources and everything they include, each once, in a fixed order."""
    files = list(dict.fromkeys(sources))
    for path in files:  # which grows
        for name in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            candidates = [folder / name for folder in (path.parent, kernel_folder()) if (folder / name).is_file()]
            files += [candidate for candidate in candidates[:1] if candidate not in files]
    return files


@functools.cache
def kernels_digest(sources: tuple[str, ...]) -> str:
    """Hash kernel sources and all that they include.

    Args:
        sources: relative to kernels/, of the form "cpu/spmm.cpp" or "cpu/*.hpp".
    """
    folder = kernel_folder()
    return sources_digest([str(path.relative_to(folder)) for name in sources for path in sorted(folder.glob(name))])


def core_digest() -> str:
    """Hash the sources of the native core."""
    return kernels_digest((CORE,))


@dataclass(frozen=True)
class Toolchain:
    """A compiler command and what its output depends on.

    Args:
        command: the program and leading arguments, such as ("ccache", "gcc").
        version: the output of `--version`.
        processor: what -march=native stands for on this machine.
    """

    command: tuple[str, ...]
    language: Language
    version: str
    processor: str

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version

    def compile(self, source: Path, library: Path, flags: tuple[str, ...], *more: Path) -> None:
        """Compile and link `source` and `more` to a shared library; intermediate files go beside it.

        Raises:
            CompileError: with the text of `source` and the log; the message is the first error line.
        """
        files = [str(path) for path in (source, *more)]
        language = f"-std={_STANDARD[self.language]}"
        arguments = [*self.command, language, *flags, "-shared", "-fPIC", "-o", str(library), *files, "-lm", "-ldl"]
        status, printed = self._run(arguments, source, library.parent)
        if status != 0:
            text = source.read_text(encoding="utf-8")
            first = next((line for line in printed.splitlines() if "error" in line), f"exit status {status}")
            raise CompileError(f"{self.command[0]} refused {source.name}: {first.strip()}", source=text, log=printed)

    def _run(self, arguments: Sequence[str], source: Path, folder: Path) -> tuple[int, str]:
        """Run the compiler; report it once if it takes long."""
        environment = os.environ | {"TMPDIR": str(folder), "LC_ALL": "C"}
        try:
            process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       errors="replace", env=environment)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise MemoryError(f"no memory to start {self.command[0]}: {source.name} is not compiled") from error
            problem = f"{self.command[0]} cannot be started ({error.strerror})"
            raise CompileError(f"{problem}: {source.name} is not compiled", source="", log=str(error)) from error
        with process:
            try:
                try:
                    printed, _ = process.communicate(timeout=_REPORT_AFTER_SECONDS)
                except subprocess.TimeoutExpired:
                    _report_compiling(source.name)
                    printed, _ = process.communicate()
            except BaseException:
                process.kill()
                raise
        return process.returncode, printed


def find_toolchain(language: Language) -> Toolchain:
    """Return the compiler of the environment variable CC or CXX, else gcc, else clang.

    Raises:
        NoCompiler: there is none, or the variable names none.
        CompileError: the one of the variable does not start.
    """
    variable = _VARIABLE[language]
    try:
        command = shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise CompileError(f"{variable}={os.environ[variable]!r} is not a valid command ({error}): set {variable} to a "
                           "compiler or unset it", source="", log="") from error
    if command:
        path = shutil.which(command[-1] if Path(command[0]).name == "ccache" else command[0])
        if path is None:
            offender = f"{variable}={' '.join(command)!r} is not a program on PATH"
            raise NoCompiler(f"{offender}: set {variable} to a compiler or unset it", source="", log="")
        return Toolchain(tuple(command), language, _version(tuple(command), _stamp(path)), processor_signature())
    for name in _CANDIDATES[language]:
        path = shutil.which(name)
        if path is not None:
            return Toolchain((path,), language, _version((path,), _stamp(path)), processor_signature())
    kind = {"c": "C", "c++": "C++"}[language]
    offender = f"no {kind} compiler found among {', '.join(_CANDIDATES[language])}"
    remedy = ("install gcc (Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; conda: conda install "
              "gxx; macOS: xcode-select --install)")
    raise NoCompiler(f"{offender}: {remedy} or set {variable} to its path", source="", log="")


def default_flags(toolchain: Toolchain) -> tuple[str, ...]:
    """Return flags that optimise for this machine, with OpenMP if the compiler supports it.

    Floating-point exceptions and errno are given up; the order of additions and NaN are kept. Loop interchange is off:
    with it gcc 12 interchanges the loops around an accumulator array (SpMM of width 256: 9 instead of 34 GFLOP/s on one
    core).
    In C, jumps are not threaded, so that loops with minima and maxima in vector lanes compute what follows them once,
    not once for every case.
    """
    arm = platform.machine().lower() in ("arm64", "aarch64")
    native = "-mcpu=native" if arm else "-march=native"
    flags = ["-O3", native, "-fno-math-errno", "-fno-trapping-math"]
    if not toolchain.is_clang:
        flags += ["-fno-loop-interchange", "-fno-loop-unroll-and-jam", "-Wno-psabi"]
        flags += ["-fno-thread-jumps"] if toolchain.language == "c" else []
    if not (toolchain.is_clang and sys.platform == "darwin"):
        flags.append("-fopenmp")
    return tuple(flags)


def compiler_version(language: Language) -> str:
    """Return the first line of the compiler's `--version`; "none" if there is no compiler."""
    try:
        return find_toolchain(language).version.partition("\n")[0]
    except CompileError:
        return "none"


def _stamp(path: str) -> tuple[str, int]:
    """Return path and modification time, so that the cached version of a replaced compiler is not used."""
    resolved = Path(path).resolve()
    return str(resolved), resolved.stat().st_mtime_ns


@functools.lru_cache(maxsize=8)
def _version(command: tuple[str, ...], stamp: tuple[str, int]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        message = f"compiler {' '.join(command)} does not answer --version ({error}): set CC or CXX to a working one"
        raise CompileError(message, source="", log=str(error)) from error
    return done.stdout.strip()


@functools.cache
def _reported() -> list[str]:
    """What this process has said about compiling: one line at most."""
    return []


def _report_compiling(name: str) -> None:
    """Say once that kernels are compiled: to the log of a run, or on stderr of a program without one."""
    if _reported():
        return
    kernels = cache_folder() / "jit"
    folder = Cache(kernels).writable_folder()
    kept = f"later runs load them from {cache_folder() if folder == kernels else folder}" if folder else "none are kept"
    text = f"compiling kernels for this processor ({name}); {kept}"
    _reported().append(text)
    if log.hasHandlers():
        log.info(text)
    else:
        print(f"sparloom: {text}", file=sys.stderr, flush=True)  # noqa: T201


@functools.cache
def processor_signature() -> str:
    """Describe the processor in enough detail that code compiled for one is never run on another."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return f"{platform.machine()} {platform.processor()} {platform.platform()}"
    first = info.read_text(encoding="utf-8").split("\n\n", 1)[0]
    kept = [line for line in first.splitlines() if line.split(":")[0].strip() in _SIGNATURE_FIELDS]
    return "\n".join([platform.machine(), *kept])
