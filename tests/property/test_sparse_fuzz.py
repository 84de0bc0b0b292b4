"""Calls of operations, layers, solvers and programs, with right and wrong operands: right numbers, or an error.

They run in a process of their own: one that dies of a call is a failure that names the seed.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from kernel_cache import beside_kernels
from sparse_inputs import ARRAYS, MATRICES, MATRIX_FAULT, PATTERNS, WRONG_ARRAYS, WRONG_MATRICES

from sparloom.tuning.sparse import dense_of, matrix_of

pytestmark = pytest.mark.cc

FUZZ = Path(__file__).with_name("sparse_fuzz.py")
CALLS = Path(__file__).with_name("call_fuzz.py")
LARGE = range(5, len(PATTERNS))


@pytest.fixture
def environment(tmp_path):
    """Set a separate decision cache with shared kernels; waiting threads yield the processor to other tests."""
    return {**os.environ, "SPARLOOM_CACHE": str(beside_kernels(tmp_path)), "OMP_WAIT_POLICY": "passive"}


def told(arguments, environment, progress):
    """Run a program that writes seeds to a file; return its output, with the seed after a crash; nothing on success."""
    done = subprocess.run([sys.executable, "-X", "faulthandler", *map(str, arguments), str(progress)], env=environment,
                          capture_output=True, text=True, check=False, timeout=900)
    if done.returncode == 0:
        return ""
    return f"seed {progress.read_text().strip()} was the last, exit {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize(("first", "count"), [(0, 4000), pytest.param(4000, 6000, marks=pytest.mark.exhaustive)])
def test_thousands_of_calls_are_right_or_refused(environment, tmp_path, first, count):
    assert not told([FUZZ, first, count], environment, tmp_path / "progress")


@pytest.mark.slow
@pytest.mark.parametrize(("first", "count"), [(0, 114), pytest.param(114, 114, marks=pytest.mark.exhaustive)])
def test_layers_solvers_and_programs_are_right_or_refuse(environment, tmp_path, first, count):
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    assert not told([CALLS, first, count], environment, tmp_path / "progress")


def test_a_crash_is_reported_with_its_seed(environment, tmp_path):
    code = ("import ctypes, sys; sys.path.insert(0, sys.argv[1]); import sparse_fuzz as fuzz; "
            "fuzz.Fuzz.__init__ = lambda self: None; fuzz.Fuzz.draw = lambda self, seed: ctypes.string_at(0); "
            "fuzz.main(17, 2, sys.argv[2])")
    text = told(["-c", code, FUZZ.parent], environment, tmp_path / "progress")
    assert text.startswith("seed 17 was the last, exit -11")
    assert "Segmentation fault" in text


def base(number):
    shape, indptr, indices = PATTERNS[number]
    values = np.random.default_rng(number).uniform(-1, 1, indices.size).astype(np.float32)
    return scipy.sparse.csr_array((values, indices.copy(), indptr.copy()), shape=shape)


@pytest.mark.parametrize("form", MATRICES)
def test_forms_of_a_matrix_have_one_meaning(form):
    for number in range(len(PATTERNS)):
        a = base(number)
        found = matrix_of(MATRICES[form](np.random.default_rng(0), a), columns=a.shape[1])
        assert found.pattern.shape == a.shape
        np.testing.assert_array_equal(found.pattern.indptr, a.indptr)
        np.testing.assert_array_equal(found.pattern.indices, a.indices)
        np.testing.assert_array_equal(found.values, a.data)


@pytest.mark.parametrize("form", WRONG_MATRICES)
def test_invalid_matrices_are_refused_by_name(form):
    for number in LARGE:
        for seed in range(4):
            with pytest.raises((TypeError, ValueError), match=MATRIX_FAULT):
                matrix_of(WRONG_MATRICES[form](np.random.default_rng(seed), base(number)))


@pytest.mark.parametrize("form", ARRAYS)
@pytest.mark.parametrize("shape", [(6, 3), (1, 1), (0, 4), (6, 2, 3)])
def test_forms_of_an_array_have_one_meaning(form, shape):
    array = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    found = dense_of(ARRAYS[form](np.random.default_rng(0), array), "X", rows=shape[0], axes=len(shape))
    np.testing.assert_array_equal(found, array)
    assert found.flags.c_contiguous
    assert found.flags.aligned


@pytest.mark.parametrize("form", WRONG_ARRAYS)
@pytest.mark.parametrize("shape", [(6, 3), (6, 2, 3)])
def test_invalid_dense_operands_are_refused_by_name(form, shape):
    array = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    with pytest.raises((TypeError, ValueError), match=r"\bX\b"):
        dense_of(WRONG_ARRAYS[form](np.random.default_rng(0), array), "X", rows=6, axes=len(shape))
