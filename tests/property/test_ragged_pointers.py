"""Accesses by pointers, as in sparse storage: programs compute the same and access the same elements."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ragged_cases import CASES, expected, operands, structure
from ragged_schedules import scheduled

from sparloom.errors import IllegalSchedule
from sparloom.jit import compile_c
from sparloom.ops import assert_close
from sparloom.ragged import Executable, RaggedTensor, interpreted, lower, pointer_steps

quick = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
batches_of_lengths = st.lists(st.integers(0, 6), max_size=4)


def check(case, program, of, inputs, found):
    for output, oracle in expected(case, of, inputs).items():
        packed = RaggedTensor(program.tensors()[output], of, found[output]).to_packed()[0].reshape(-1)
        assert_close(packed, oracle, terms=16, scale=8.0)


def possible(program):
    """Keep schedules without tile products, since rows found by pointers cannot be tiles."""
    try:
        lower(program, access=pointer_steps)
    except IllegalSchedule as refused:
        if "not evenly spaced" not in str(refused):
            raise
        return False
    return True


@pytest.mark.parametrize("name", CASES)
@settings(quick, max_examples=25)
@given(data=st.data())
def test_interpreted(name, data):
    case = CASES[name]
    program, _ = data.draw(scheduled(case.program))
    if not possible(program):
        program = case.program
    of = structure(data.draw(batches_of_lengths), seed=data.draw(st.integers(0, 9)))
    inputs = operands(program, of, seed=1)
    arrays = {each: value.data for each, value in inputs.items()}
    found, plain = interpreted(program, of, pointer_steps, **arrays), interpreted(program, of, **arrays)
    check(case, program, of, inputs, found)
    for each, values in plain.items():
        np.testing.assert_array_equal(found[each], values)


@pytest.mark.slow
@pytest.mark.cc
@pytest.mark.parametrize("name", CASES)
@settings(quick, max_examples=4)
@given(data=st.data())
def test_compiled(name, data, tmp_path_factory):
    case = CASES[name]
    program, _ = data.draw(scheduled(case.program))
    if not possible(program):
        program = case.program
    batches = data.draw(st.lists(batches_of_lengths, min_size=1, max_size=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARLOOM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        runs = [Executable(program, access=pointer_steps), Executable(program)]
        for given_lengths in batches:
            of = structure(given_lengths, compiler=compile_c)
            inputs = operands(program, of, seed=2)
            results = []
            for run in runs:
                call, found = run.bind(of, **{each: value.data for each, value in inputs.items()})
                call()
                check(case, program, of, inputs, found)
                results.append(found)
            for output in program.outputs:
                packed = [RaggedTensor(program.tensors()[output], of, each[output]).to_packed()[0] for each in results]
                assert_close(packed[0], packed[1], terms=16, scale=8.0)
