"""Hand-written C++ under kernels/."""

import pytest

from sparloom.jit import compile_cpp, kernel_source
from sparloom.jit import toolchain as module


@pytest.fixture
def kernels(monkeypatch, tmp_path):
    """Replace kernels/ by a temporary folder."""
    folder = tmp_path / "kernels"
    (folder / "demo").mkdir(parents=True)
    (folder / "demo" / "answer.hpp").write_text("#pragma once\nconstexpr int ANSWER = 42;\n")
    (folder / "demo" / "main.cpp").write_text(
        '#include "demo/answer.hpp"\nint other();\nextern "C" int answer() { return ANSWER + other(); }\n'
    )
    (folder / "demo" / "other.cpp").write_text("int other() { return 1; }\n")
    monkeypatch.setattr(module, "kernel_folder", lambda: folder)
    return folder


PATHS = ["demo/main.cpp", "demo/other.cpp"]


@pytest.mark.cc
def test_sources_become_one_library(kernels, cache):
    assert compile_cpp(PATHS).answer() == 43
    assert compile_cpp(PATHS).answer() == 43
    assert len(list((cache / "jit" / "objects").iterdir())) == 1


@pytest.mark.cc
def test_a_changed_header_is_compiled_again(kernels):
    assert compile_cpp(PATHS).answer() == 43
    (kernels / "demo" / "answer.hpp").write_text("constexpr int ANSWER = 10;\n")
    assert compile_cpp(PATHS).answer() == 11


def test_missing_source_lists_the_others(kernels):
    with pytest.raises(FileNotFoundError, match=r"no kernel source 'demo/mian\.cpp' in .*; there are: .*main\.cpp"):
        kernel_source("demo/mian.cpp")


def test_sources_of_the_checkout_are_found():
    assert kernel_source("spade/timing.cpp").is_file()
