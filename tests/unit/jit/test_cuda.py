"""Compile-checking CUDA, and running the rendered text on the host in place of a GPU."""

import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from cuda_devices import run_on_host
from ir_cases import CASES

from sparloom.errors import CompileError, Unsupported
from sparloom.ir import F32, I64, Accumulate, Const, For, Kernel, Param, Ref, Store, render_cuda
from sparloom.jit import check_cuda
from sparloom.jit import cuda as module

GOOD = 'extern "C" __global__ void k(float *y) { y[threadIdx.x] = 1.0f; }\n'


def check(source: str) -> str:
    try:
        return check_cuda(source, architectures=("sm_90",))
    except Unsupported as error:
        pytest.skip(str(error))


def test_good_text_passes():
    assert check(GOOD)


def test_bad_text_is_refused_with_text_and_log():
    bad = GOOD.replace("threadIdx.x", "threadIndex.x")
    with pytest.raises(CompileError, match=r"refused the kernel for sm_90: .*threadIndex") as caught:
        check(bad)
    assert caught.value.source == bad
    assert "threadIndex" in caught.value.log


def test_without_compilers_the_error_says_so(monkeypatch):
    monkeypatch.setattr(module, "_find_nvrtc", lambda: None)
    with pytest.raises(Unsupported, match="no CUDA compiler: pip install nvidia-cuda-nvrtc"):
        check_cuda(GOOD)


def test_the_nvrtc_of_the_extra_dev_is_found():
    try:
        metadata.distribution("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        pytest.skip('nvidia-cuda-nvrtc is not installed: pip install -e ".[dev]"')
    assert Path(check_cuda(GOOD)).name.startswith("libnvrtc.so.")


@pytest.mark.parametrize("folder", ["cu13", "cuda_nvrtc"])
def test_libraries_of_wheels_are_found(tmp_path, monkeypatch, folder):
    library = tmp_path / "nvidia" / folder / "lib" / "libnvrtc.so.13"
    library.parent.mkdir(parents=True)
    for name in ("libnvrtc-builtins.so.13.0", "libnvrtc.alt.so.13", library.name):
        (library.parent / name).touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    assert module._find_nvrtc() == library
    with pytest.raises(Unsupported, match=f"{library} does not load .*: reinstall nvidia-cuda-nvrtc"):
        check_cuda(GOOD)


@pytest.mark.cc
@pytest.mark.parametrize("name", CASES)
def test_rendered_text_computes_the_same_on_the_host(name, tmp_path):
    case = CASES[name]()
    run = run_on_host([case.kernel], tmp_path)
    case.check(lambda arguments: run(case.kernel, arguments))


@pytest.mark.cc
def test_grid_runs_every_iteration_once(tmp_path):
    count = For("i", 1, Ref("n"), [Accumulate("y", Ref("i"), Const(1.0, F32))], "parallel", step=3)
    kernel = Kernel("k", (Param("y", F32, True, False), Param("n", I64)), [count])
    y = np.zeros(60, np.float32)
    run_on_host([kernel], tmp_path)(kernel, {"y": y, "n": 50})
    np.testing.assert_array_equal(np.flatnonzero(y), np.arange(1, 50, 3))
    assert y.max() == 1


@pytest.mark.parametrize("body", [[], [Store("y", 0, Const(1.0, F32))], [For("i", 0, 4, [])],
                                  [For("i", 0, 4, [], "parallel"), For("j", 0, 4, [], "parallel")]])
def test_other_forms_are_unsupported(body):
    with pytest.raises(Unsupported, match="kernel k has no CUDA form: give it one parallel loop at the top"):
        render_cuda(Kernel("k", (Param("y", F32, True, False),), body))
