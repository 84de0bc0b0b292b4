"""Random kernels: compiled = interpreted, and rewriting keeps the meaning."""

import numpy as np
import pytest
from cuda_devices import run_on_host
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_kernels import arguments, kernels

from sparloom.ir import Kernel, interpret, pretty, simplify
from sparloom.jit import compile_c

BATCH = 12

quick = settings(
    derandomize=True, deadline=None, database=None, max_examples=40, suppress_health_check=list(HealthCheck)
)


def outputs(kernel: Kernel, seed: int) -> dict[str, np.ndarray]:
    given = arguments(seed)
    interpret(kernel, **given)
    return {name: array for name, array in given.items() if name.startswith("o")}


def assert_same_meaning(actual: Kernel, kernel: Kernel) -> None:
    expected = outputs(kernel, seed=1)
    for name, array in outputs(actual, seed=1).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=f"{name}\n{pretty(kernel)}\n{pretty(actual)}")


@pytest.mark.slow
@pytest.mark.cc
@settings(quick, max_examples=8)
@given(st.tuples(*(kernels(name=f"random{number}") for number in range(BATCH))), st.integers(0, 99))
def test_compiled_equals_interpreted(tmp_path_factory, batch, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARLOOM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setattr("sparloom.jit.compile.default_flags",
                      lambda _: ("-O2", "-march=native", "-fopenmp", "-Wno-psabi"))
        library = compile_c(batch)
    for kernel in batch:
        given = arguments(seed)
        library.function(kernel.name)(*(given[param.name] for param in kernel.params))
        expected = outputs(kernel, seed)
        for name, array in expected.items():
            np.testing.assert_array_equal(given[name], array, err_msg=f"{name}\n{pretty(kernel)}")


@quick
@given(kernels())
def test_simplify_keeps_the_meaning_and_is_idempotent(kernel):
    simple = simplify(kernel)
    assert_same_meaning(simple, kernel)
    assert simplify(simple) == simple


@quick
@given(kernels())
def test_only_equal_kernels_print_equally(kernel):
    simple = simplify(kernel)
    assert (pretty(simple) == pretty(kernel)) == (simple == kernel)


@pytest.mark.cc
@settings(quick, max_examples=4)
@given(st.tuples(*(kernels(name=f"random{number}", parallel=True) for number in range(BATCH))), st.integers(0, 99))
def test_cuda_text_on_the_host_equals_interpreted(tmp_path_factory, batch, seed):
    run = run_on_host(batch, tmp_path_factory.mktemp("host"))
    for kernel in batch:
        given = arguments(seed)
        run(kernel, given)
        for name, array in outputs(kernel, seed).items():
            np.testing.assert_array_equal(given[name], array, err_msg=f"{name}\n{pretty(kernel)}")
