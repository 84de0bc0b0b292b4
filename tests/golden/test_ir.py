"""Printed kernels, each of which is also run and compared with its expected result."""

import pytest
from ir_cases import CASES
from nvrtc import check_cuda

from sparloom.ir import interpret, pretty, render_c, render_cuda
from sparloom.jit import compile_c


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))


@pytest.mark.parametrize("name", CASES)
def test_pretty(name, golden):
    case = CASES[name]()
    golden(f"ir/{name}.txt", pretty(case.kernel))
    case.check(lambda arguments: interpret(case.kernel, **arguments))


@pytest.mark.cc
@pytest.mark.parametrize("name", CASES)
def test_c(name, golden):
    case = CASES[name]()
    golden(f"ir/{name}.c", render_c(case.kernel))
    function = compile_c([case.kernel]).function(name)
    case.check(lambda arguments: function(*(arguments[param.name] for param in function.params)))


@pytest.mark.parametrize("name", CASES)
def test_cuda(name, golden):
    text = render_cuda(CASES[name]().kernel)
    golden(f"ir/{name}.cu", text)
    check_cuda(text)
