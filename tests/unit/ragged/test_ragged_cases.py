"""Unscheduled programs compute what NumPy computes for each sequence."""

import numpy as np
import pytest
from ragged_cases import CASES, expected, operands, structure

from sparloom.jit import compile_c
from sparloom.ops import assert_close
from sparloom.ragged import Executable, RaggedTensor, interpreted

BATCHES = [(), (0,), (1,), (3, 0, 5), (4, 4), (7, 1, 0, 0, 2)]


@pytest.mark.parametrize("entries", BATCHES)
@pytest.mark.parametrize("name", CASES)
def test_interpreted_programs(name, entries):
    case, of = CASES[name], structure(entries)
    inputs = operands(case.program, of, seed=1)
    found = interpreted(case.program, of, **{each: value.data for each, value in inputs.items()})
    for output, oracle in expected(case, of, inputs).items():
        packed = RaggedTensor(case.program.tensors()[output], of, found[output]).to_packed()[0]
        assert_close(packed.reshape(-1), oracle, terms=16, scale=8.0)


@pytest.mark.cc
@pytest.mark.parametrize("name", CASES)
def test_compiled_programs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    case = CASES[name]
    run = Executable(case.program)
    for entries in BATCHES:
        of = structure(entries, compiler=compile_c)
        inputs = operands(case.program, of, seed=1)
        made = run(of, **{each: value.data for each, value in inputs.items()})
        found = dict(zip(case.program.outputs, made if isinstance(made, tuple) else (made,), strict=True))
        for output, oracle in expected(case, of, inputs).items():
            np.testing.assert_equal(found[output].size, oracle.size)
            assert_close(found[output], oracle, terms=16, scale=8.0)
