"""Compile-checking CUDA, and running the rendered text on the host in place of a GPU."""

import numpy as np
import pytest
from cuda_devices import run_on_host
from ir_cases import CASES
from nvrtc import check_cuda

from sparloom.errors import CompileError, Unsupported
from sparloom.ir import F32, I64, Accumulate, Const, For, Kernel, Param, Ref, Store, render_cuda

GOOD = 'extern "C" __global__ void k(float *y) { y[threadIdx.x] = 1.0f; }\n'


def test_bad_text_is_refused_with_its_log():
    check_cuda(GOOD)
    with pytest.raises(CompileError, match=r"refused the kernel for sm_80: .*threadIndex"):
        check_cuda(GOOD.replace("threadIdx.x", "threadIndex.x"))


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
