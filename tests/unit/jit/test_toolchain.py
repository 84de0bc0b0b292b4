"""Choice of the compiler."""

import shutil
from dataclasses import replace

import pytest

from sparloom.errors import CompileError
from sparloom.jit.toolchain import Toolchain, default_flags, find_toolchain


@pytest.mark.cc
def test_version_and_processor_are_known():
    toolchain = find_toolchain("c")
    assert any(character.isdigit() for character in toolchain.version)
    assert toolchain.processor


@pytest.mark.parametrize(("variable", "language"), [("CC", "c"), ("CXX", "c++")])
def test_a_command_with_an_open_quotation_is_refused(monkeypatch, variable, language):
    monkeypatch.setenv(variable, "'gcc")
    with pytest.raises(CompileError, match=rf"{variable}=\"'gcc\" is not a valid command .*: set {variable} to a"):
        find_toolchain(language)


@pytest.mark.cc
def test_environment_names_the_compiler(monkeypatch):
    compiler = shutil.which("gcc") or shutil.which("clang")
    monkeypatch.setenv("CC", f"{compiler} -g0")
    assert find_toolchain("c").command == (compiler, "-g0")


def test_named_compiler_that_is_not_there(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -x")
    with pytest.raises(CompileError, match="CC='no-such-compiler -x' is not a program on PATH: set CC to a compiler"):
        find_toolchain("c")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match="CXX='no-such-compiler' is not a program"):
        find_toolchain("c++")


def test_named_program_that_is_no_compiler(monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(CompileError, match="compiler false does not answer --version"):
        find_toolchain("c")


def test_without_a_compiler_the_error_names_the_package(monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompileError, match=r"no C compiler found among gcc, clang, cc: install gcc .* or set CC"):
        find_toolchain("c")


def test_flags_fit_the_compiler(monkeypatch):
    gcc = Toolchain(("gcc",), "c", "gcc (Debian 12.2.0) 12.2.0", "x")
    clang = Toolchain(("clang",), "c", "Apple clang version 15.0.0", "x")
    assert "-fno-loop-interchange" in default_flags(gcc)
    assert "-fno-loop-interchange" not in default_flags(clang)
    assert "-fno-thread-jumps" in default_flags(gcc)
    assert "-fno-thread-jumps" not in (*default_flags(clang), *default_flags(replace(gcc, language="c++")))
    monkeypatch.setattr("sys.platform", "darwin")
    assert "-fopenmp" not in default_flags(clang)
    assert "-fopenmp" in default_flags(gcc)
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert "-mcpu=native" in default_flags(clang)
