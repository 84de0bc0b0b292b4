"""Choice and caching of schedules of ragged operators."""

from dataclasses import replace

import numpy as np
import pytest
from kept_files import kept_files, rewrite, text_of

from sparloom.ragged import (
    LENGTHS,
    Executable,
    NormSchedule,
    SoftmaxSchedule,
    Structure,
    trmm_structure,
    vgemm_structure,
)
from sparloom.tuning import (
    MeasurementBudget,
    PlanCache,
    RaggedBudget,
    choose_schedule,
    product_operators,
    token_operators,
)

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]
QUICK = RaggedBudget(sample=3, proposed=1, race=MeasurementBudget(repetitions=1, seconds=0.2, pairs=(2, 2)))


def test_a_choice_is_of_the_space_and_comes_back(tmp_path):
    operator, plans = token_operators(20)["softmax"], PlanCache(tmp_path)
    structure = Structure({LENGTHS: [5, 3, 9]})
    first = choose_schedule(operator, structure, threads=1, effort=QUICK, plans=plans)
    operator.space.validate(first.config)
    assert 4 <= first.measured <= 5
    assert not first.from_cache
    alike = choose_schedule(operator, Structure({LENGTHS: [9, 3, 5]}), threads=1, effort=QUICK, plans=plans)
    assert alike == replace(first, from_cache=True)
    for other in (Structure({LENGTHS: [60, 60, 70]}), Structure({LENGTHS: [5] * 40})):
        assert not choose_schedule(operator, other, threads=1, plans=plans, search=False).from_cache


def test_without_search_it_is_the_default(tmp_path):
    operator = token_operators(20)["softmax"]
    choice = choose_schedule(operator, Structure({LENGTHS: [4]}), threads=1, plans=PlanCache(tmp_path), search=False)
    assert (choice.config, choice.measured) == (operator.space.default(), 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", [
    lambda text: "{", lambda text: text.replace('"ratio"', '"share"'), lambda text: text.replace("=", "≠"),
    lambda text: text.replace('"config": "', '"config": "sideways=1,')])
def test_a_damaged_choice_is_made_again(damage, tmp_path, caplog):
    operator, structure = token_operators(20)["softmax"], Structure({LENGTHS: [3]})
    choose_schedule(operator, structure, threads=1, effort=QUICK, plans=PlanCache(tmp_path))
    (path,) = kept_files(tmp_path)
    rewrite(path, damage(text_of(path)))
    assert not choose_schedule(operator, structure, threads=1, effort=QUICK, plans=PlanCache(tmp_path)).from_cache
    assert "it is decided anew" in caplog.text


@pytest.mark.parametrize(("name", "structure"), [
    ("vgemm", vgemm_structure([3, 20], [5, 17], [2, 9])), ("trmm", trmm_structure(40))])
def test_every_point_of_the_space_of_products_is_a_program(name, structure):
    operator = product_operators()[name]
    for config in operator.space.sample(2, np.random.default_rng(0)):
        Executable(operator.program(config))
    assert operator.alike(structure)


def test_defaults_of_spaces_are_those_of_schedules():
    for name, schedule in (("softmax", SoftmaxSchedule()), ("norm", NormSchedule())):
        assert dict(token_operators(20)[name].space.default().values) == vars(schedule)


def test_a_large_batch_is_measured_in_part():
    operator = token_operators(20)["softmax"]
    lengths = np.arange(1, 257)
    part = operator.part(Structure({LENGTHS: lengths})).table(LENGTHS)
    assert part.sum() == pytest.approx(4096, rel=0.1)
    assert part.max() > 240
    assert part.min() < 20


@pytest.mark.parametrize("lengths", [[8192], [8192] * 4, [10**6, 1]])
def test_a_few_long_sequences_are_measured_on_one_of_them(lengths):
    operator = token_operators(20)["softmax"]
    assert operator.part(Structure({LENGTHS: lengths})).table(LENGTHS).size == 1
