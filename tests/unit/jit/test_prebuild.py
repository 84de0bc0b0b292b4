"""Libraries that are built ahead: used without a compiler, by level of processor, until they are compiled natively."""

import ctypes
import shutil
import sysconfig

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
    module.build_libraries(folder / "_prebuilt", tuple(tools.LEVELS), [SOURCES])
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
@pytest.mark.parametrize("level", tools.LEVELS)
def test_the_level_is_the_best_that_the_processor_has(package, monkeypatch, level):
    features = " ".join(tools.LEVELS[level].features)
    monkeypatch.setattr(tools, "processor_signature", lambda: f"x86_64\nflags\t\t: fpu lm {features}")
    assert {path.parent.name for path in tools._ready_built().values()} == {level}


@pytest.mark.cc
@pytest.mark.parametrize("level", ["avx512", "generic"])
def test_libraries_of_a_better_processor_or_another_machine_are_compiled(package, monkeypatch, tmp_path, level):
    folder = tmp_path / "package" / "_prebuilt" / level
    shutil.copytree(package / "_prebuilt" / level, folder)
    (library,) = folder.iterdir()
    library.write_bytes(b"of another machine")
    monkeypatch.setattr(tools, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(tools, "processor_signature", lambda: "x86_64\nflags : fpu lm")
    assert len(tools._ready_built()) == (level == "generic")
    assert compile_cpp(SOURCES)._name.startswith(str(tmp_path / "cache"))


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
def test_what_is_there_stays_and_what_is_stale_goes(built, tmp_path):
    folder = tmp_path / "_prebuilt"
    shutil.copytree(built / "_prebuilt", folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.so")}
    stale = folder / "avx2" / "cpu_pin-0.so"
    stale.touch()
    module.build_libraries(folder, tuple(tools.LEVELS), [SOURCES, ("cpu/watch.cpp",)], seconds=0)  # too late for one
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.so")} == before
    assert ctypes.CDLL(str(folder / tools.OPENMP)).omp_get_max_threads() >= 1


def test_another_compiler_is_refused_for_wheels_and_left_out_of_installations(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(module, "find_toolchain", lambda language: tools.Toolchain(("clang++",), "c++", "clang 19", ""))
    monkeypatch.setattr(module, "build_core", lambda package, *flags: None)
    with pytest.raises(Unsupported, match=r"clang\+\+ is another compiler: set CXX=g\+\+"):
        module.install(tmp_path, "all")
    module.install(tmp_path)
    assert "clang++ is another compiler" in caplog.text


@pytest.mark.cc
def test_a_core_is_compiled_once_for_its_sources(tmp_path):
    module.build_core(tmp_path)
    core = tmp_path / "_native.abi3.so"
    before = core.stat().st_mtime_ns
    module.build_core(tmp_path)
    assert core.stat().st_mtime_ns == before
    core.write_bytes(core.read_bytes().replace(tools.core_digest().encode(), b"0" * 16))  # as if sources had changed
    module.build_core(tmp_path)
    assert tools.core_digest().encode() in core.read_bytes()


def test_a_core_needs_the_headers_of_python(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(Unsupported, match="apt-get install python3-dev"):
        module.build_core(tmp_path)


def test_every_source_belongs_to_a_library():
    named = {path for sources in module.libraries() for path in sources if not path.startswith("-D")}
    folder = kernel_folder()
    assert named | {tools.CORE} == {str(path.relative_to(folder)) for path in folder.rglob("*.cpp")}


@pytest.mark.cc
def test_warmup_compiles_common_kernels(monkeypatch):
    compiled = []
    monkeypatch.setattr(module, "compile_cpp", lambda sources, native: compiled.append((sources, native)))
    monkeypatch.setattr(module, "build_core", lambda package: compiled.append(((tools.CORE,), True)))
    seconds = sparloom.warmup()
    assert sorted(compiled) == sorted((sources, True) for sources in [*module.COMMON, (tools.CORE,)])
    assert list(seconds) == [sources[0] for sources in [*module.COMMON, (tools.CORE,)]]
    compiled.clear()
    assert len(sparloom.warmup(everything=True, jobs=1)) == len(compiled) == len(module.libraries()) + 1


def test_warmup_needs_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(NoCompiler, match="dnf install gcc-c"):
        sparloom.warmup()
