"""Printed kernels; each is also run against what it must compute."""

import numpy as np
import pytest
from ir_cases import CASES

from sparloom.errors import Unsupported
from sparloom.ir import interpret, pretty, render_c, render_cuda, simplify, split, unroll
from sparloom.jit import check_cuda, compile_c

REWRITTEN = {
    "spmm_split": lambda: (CASES["spmm"](), lambda kernel: split(split(kernel, "i", 8), "p", 4)),
    "sddmm_unrolled": lambda: (CASES["sddmm"](), lambda kernel: simplify(unroll(kernel))),
}


def run(kernel, case) -> dict[str, np.ndarray]:
    arguments = case.arguments()
    interpret(kernel, **arguments)
    return {name: arguments[name] for name in case.expected}


def compiled(kernel, case) -> dict[str, np.ndarray]:
    arguments = case.arguments()
    compile_c([kernel]).function(kernel.name)(*(arguments[param.name] for param in kernel.params))
    return {name: arguments[name] for name in case.expected}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))


@pytest.mark.parametrize("name", CASES)
def test_pretty(name, golden):
    case = CASES[name]()
    golden(f"ir/{name}.txt", pretty(case.kernel))
    for buffer, array in run(case.kernel, case).items():
        np.testing.assert_array_equal(array, case.expected[buffer])


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name, golden):
    case, rewrite = REWRITTEN[name]()
    kernel = rewrite(case.kernel)
    golden(f"ir/{name}.txt", pretty(kernel))
    for buffer, array in run(kernel, case).items():
        np.testing.assert_array_equal(array, case.expected[buffer])


@pytest.mark.cc
@pytest.mark.parametrize("name", CASES)
def test_c(name, golden):
    case = CASES[name]()
    golden(f"ir/{name}.c", render_c(case.kernel))
    for buffer, array in compiled(case.kernel, case).items():
        np.testing.assert_array_equal(array, case.expected[buffer])


@pytest.mark.parametrize("name", CASES)
def test_cuda(name, golden):
    text = render_cuda(CASES[name]().kernel)
    golden(f"ir/{name}.cu", text)
    try:
        check_cuda(text, architectures=("sm_90",))
    except Unsupported as error:
        pytest.skip(str(error))
