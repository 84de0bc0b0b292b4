"""Scheduled programs, compiled and interpreted, compute what NumPy computes for each sequence."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ragged_cases import CASES, expected, operands, structure
from ragged_schedules import STEPS, scheduled

from sparloom.jit import compile_c
from sparloom.ops import assert_close
from sparloom.ragged import Executable, RaggedTensor, interpreted

quick = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
batches_of_lengths = st.lists(st.integers(0, 6), max_size=4)


def check(case, program, of, inputs, found):
    for output, oracle in expected(case, of, inputs).items():
        packed = RaggedTensor(program.tensors()[output], of, found[output]).to_packed()[0].reshape(-1)
        assert_close(packed, oracle, terms=16, scale=8.0)


@pytest.mark.parametrize("name", CASES)
@settings(quick, max_examples=25)
@given(data=st.data())
def test_interpreted(name, data):
    case = CASES[name]
    program, _ = data.draw(scheduled(case.program))
    given_lengths = data.draw(batches_of_lengths)
    of = structure(given_lengths, seed=data.draw(st.integers(0, 9)))
    inputs = operands(program, of, seed=1)
    found = interpreted(program, of, **{each: value.data for each, value in inputs.items()})
    check(case, program, of, inputs, found)


@pytest.mark.slow
@pytest.mark.cc
@pytest.mark.parametrize("name", CASES)
@settings(quick, max_examples=6)
@given(data=st.data())
def test_compiled(name, data, tmp_path_factory):
    case = CASES[name]
    program, _ = data.draw(scheduled(case.program))
    batches = data.draw(st.lists(batches_of_lengths, min_size=1, max_size=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARLOOM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        run = Executable(program)
        for given_lengths in batches:
            of = structure(given_lengths, compiler=compile_c)
            inputs = operands(program, of, seed=2)
            call, found = run.bind(of, **{each: value.data for each, value in inputs.items()})
            call()
            check(case, program, of, inputs, found)


def test_the_random_schedules_have_steps_of_every_kind():
    seen: Counter[str] = Counter()

    @settings(quick, max_examples=250)
    @given(data=st.data())
    def draw(data):
        seen.update(data.draw(scheduled(CASES[data.draw(st.sampled_from(sorted(CASES)))].program))[1])

    draw()
    assert set(seen) == set(STEPS)
