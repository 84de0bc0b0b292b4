"""Scheduled programs, compiled and interpreted, compute what NumPy computes for each sequence.

Elements are found by offsets, or by pointers as in sparse storage, which access the same elements.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ragged_cases import CASES, expected, operands, structure
from ragged_schedules import STEPS, scheduled

from sparloom.errors import IllegalSchedule
from sparloom.jit import compile_c
from sparloom.ops import assert_close
from sparloom.ragged import Executable, RaggedTensor, interpreted, lower, offset_steps, pointer_steps

quick = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
batches_of_lengths = st.lists(st.integers(0, 6), max_size=4)
of_every_case = pytest.mark.parametrize("name", CASES)
by_every_access = pytest.mark.parametrize("access", [offset_steps, pointer_steps], ids=["offsets", "pointers"])


def drawn(data, case, access):
    """Draw a schedule; rows found by pointers are no tiles of products."""
    program, _ = data.draw(scheduled(case.program))
    try:
        lower(program, access=access)
    except IllegalSchedule as refused:
        if access is offset_steps or "not evenly spaced" not in str(refused):
            raise
        return case.program
    return program


def check(case, program, of, inputs, found):
    for output, oracle in expected(case, of, inputs).items():
        packed = RaggedTensor(program.tensors()[output], of, found[output]).to_packed()[0].reshape(-1)
        assert_close(packed, oracle, terms=16, scale=8.0)


@of_every_case
@by_every_access
@settings(quick, max_examples=25)
@given(data=st.data())
def test_interpreted(name, access, data):
    case = CASES[name]
    program = drawn(data, case, access)
    of = structure(data.draw(batches_of_lengths), seed=data.draw(st.integers(0, 9)))
    inputs = operands(program, of, seed=1)
    arrays = {each: value.data for each, value in inputs.items()}
    found = interpreted(program, of, access, **arrays)
    check(case, program, of, inputs, found)
    if access is pointer_steps:
        for each, values in interpreted(program, of, **arrays).items():
            np.testing.assert_array_equal(found[each], values)


@pytest.mark.slow
@pytest.mark.cc
@of_every_case
@by_every_access
@settings(quick, max_examples=6)
@given(data=st.data())
def test_compiled(name, access, data, tmp_path_factory):
    case = CASES[name]
    program = drawn(data, case, access)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARLOOM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        run = Executable(program, access=access)
        for given_lengths in data.draw(st.lists(batches_of_lengths, min_size=1, max_size=3)):
            of = structure(given_lengths, compiler=compile_c)
            inputs = operands(program, of, seed=2)
            call, found = run.bind(of, **{each: value.data for each, value in inputs.items()})
            call()
            check(case, program, of, inputs, found)


def test_the_random_schedules_have_steps_of_every_kind():
    seen: Counter[str] = Counter()

    @settings(quick, max_examples=1000)
    @given(data=st.data())
    def draw(data):
        seen.update(data.draw(scheduled(CASES[data.draw(st.sampled_from(sorted(CASES)))].program))[1])

    draw()
    assert set(seen) == set(STEPS)
