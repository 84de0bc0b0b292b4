"""Libraries that are built ahead: used without a compiler, by level of processor, until they are compiled natively."""

import ctypes
import json
import shutil

import pytest

import sparloom
from sparloom.errors import NoCompiler, Unsupported
from sparloom.jit import compile_cpp, kernel_folder
from sparloom.jit import prebuild as module
from sparloom.jit import toolchain as tools

SOURCES = ("cpu/pin.cpp",)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A package folder with one library for every level."""
    folder = tmp_path_factory.mktemp("package")
    module.prebuild(folder / "_prebuilt", wanted=[SOURCES])
    return folder


@pytest.fixture
def package(built, monkeypatch, tmp_path):
    monkeypatch.setattr(tools, "PACKAGE", built)
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path / "cache"))
    tools._ready_built.cache_clear()
    yield built
    tools._ready_built.cache_clear()


def level_of(library):
    return library._name.split("/")[-2]


@pytest.mark.cc
def test_a_library_is_used_without_a_compiler(package, monkeypatch):
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.delenv("CXX", raising=False)
    library = compile_cpp(SOURCES)
    assert library._name.startswith(str(package))
    assert library.sparloom_pin is not None
    with pytest.raises(NoCompiler, match="apt-get install g"):
        compile_cpp(["cpu/repeat.cpp"])  # was not built


@pytest.mark.cc
def test_the_level_is_the_best_that_the_processor_has(package, monkeypatch, tmp_path):
    for name, level in tools.LEVELS.items():
        info = tmp_path / name
        info.write_text(f"processor : 0\nflags\t\t: fpu {' '.join(level.features)}\n")
        monkeypatch.setattr(tools, "Path", lambda path, info=info: info if path == "/proc/cpuinfo" else path)
        tools._ready_built.cache_clear()
        assert {path.parent.name for path in tools._ready_built().values()} == {name}


@pytest.mark.cc
def test_a_native_library_takes_its_place(package):
    ready = compile_cpp(SOURCES)
    native = compile_cpp(SOURCES, native=True)
    assert ready._name != native._name
    assert compile_cpp(SOURCES)._name == native._name
    assert compile_cpp(SOURCES, flags=["-O1"])._name not in (ready._name, native._name)


@pytest.mark.cc
def test_other_sources_are_compiled(package, monkeypatch, tmp_path):
    folder = tmp_path / "kernels"
    shutil.copytree(kernel_folder(), folder)
    (folder / "cpu" / "pin.cpp").write_text('extern "C" int sparloom_pin() { return 7; }')
    monkeypatch.setattr(tools, "kernel_folder", lambda: folder)
    assert compile_cpp(SOURCES).sparloom_pin() == 7


@pytest.mark.cc
def test_the_runtime_of_openmp_lies_beside_the_libraries(built):
    assert ctypes.CDLL(str(built / "_prebuilt" / tools.OPENMP)).omp_get_max_threads() >= 1
    assert set(json.loads((built / "_prebuilt" / "index.json").read_text())) == {*tools.LEVELS}


def test_another_compiler_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "find_toolchain", lambda language: tools.Toolchain(("clang++",), "c++", "clang 19", ""))
    with pytest.raises(Unsupported, match=r"clang\+\+ is another compiler: set CXX=g\+\+"):
        module.prebuild(tmp_path)


def test_every_source_belongs_to_a_library():
    named = {path for sources in module.libraries() for path in sources if not path.startswith("-D")}
    folder = kernel_folder()
    assert named == {str(path.relative_to(folder)) for path in folder.rglob("*.cpp")}


@pytest.mark.cc
def test_warmup_compiles_common_kernels(monkeypatch):
    compiled = []
    monkeypatch.setattr(module, "compile_cpp", lambda sources, native: compiled.append((sources, native)))
    seconds = sparloom.warmup()
    assert sorted(compiled) == sorted(((f"cpu/{name}.cpp",), True) for name in module.COMMON)
    assert list(seconds) == [f"cpu/{name}.cpp" for name in module.COMMON]
    compiled.clear()
    assert len(sparloom.warmup(everything=True, jobs=1)) == len(compiled) == len(module.libraries())


def test_warmup_needs_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(NoCompiler, match="dnf install gcc-c"):
        sparloom.warmup()
