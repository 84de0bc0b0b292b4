"""The search space: valid files and command lines, and one-line errors about invalid ones."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from hydra_plugins.sparloom_sweeps._study import Choice, Integers, Interval, read_space
from sparloom.cli import UsageError


def read(params=None, *arguments):
    return read_space(params or {}, arguments, OverridesParser.create().parse_overrides)


@pytest.mark.parametrize(("given", "meant"), [
    ({"interval": [0, 1]}, Interval(0.0, 1.0)),
    ({"log_interval": [1.0e-5, 1.0e-3]}, Interval(1e-5, 1e-3, log=True)),
    ({"int": [1, 9]}, Integers(1, 9)),
    ({"int": [20, 200, 50]}, Integers(20, 170, 50)),
    ({"choice": ["a", 1, 0.5, True, None, [0, 1], "1", "a b", "it's", "true"]},
     Choice(("a", "1", "0.5", "true", "null", "[0,1]", "'1'", "'a b'", "'it\\'s'", "'true'"))),
    ("interval(0,1)", Interval(0.0, 1.0)),
    ("tag(log,interval(1e-5,1e-3))", Interval(1e-5, 1e-3, log=True)),
    ("int(interval(1,9))", Integers(1, 9)),
    ("tag(log,int(interval(1,64)))", Integers(1, 64, log=True)),
    ("range(1,9)", Integers(1, 8)),
    ("range(9,1,-4)", Integers(5, 9, 4)),
    ("range(0,1,0.25)", Interval(0.0, 0.75, step=0.25)),
    ("3.0e-5,1.0e-4", Choice(("3e-05", "0.0001"))),
    ("choice([0],'a,b','1',1)", Choice(("[0]", "'a,b'", "'1'", "1"))),
    ("shuffle(b,a,c)", Choice(("b", "a", "c"))),
])
def test_space_is_read_from_files(given, meant):
    assert read({"key": given}) == ({"key": meant}, [])


@pytest.mark.parametrize("argument", ["key=interval(0,1)", "+key=interval(0,1)", "group/inner@place=interval(0,1)"])
def test_space_is_read_from_the_command_line(argument):
    assert read({}, argument) == ({argument.partition("=")[0]: Interval(0.0, 1.0)}, [])


def test_command_line_wins_over_the_file():
    params = {"a": {"int": [1, 9]}, "b": {"int": [1, 9]}}
    assert read(params, "a=int(interval(2,3))", "b=7") == ({"a": Integers(2, 3)}, ["b=7"])
    assert read({"a": 7, "b": "x,y"}, "a=1,2")[0]["a"] == Choice(("1", "2"))


def test_fixed_overrides_stay_as_they_are_written():
    fixed = ["model=cognate", "matrix='/a b/c.mtx'", "~task.jobs", "task.seeds=[0,1]"]
    assert read({"a": {"int": [1, 9]}}, *fixed)[1] == fixed


@pytest.mark.parametrize("value", ["a b", "it's", "ends\\", "both\\'", "1", "null", "x,y", "größe", "", "$x"])
def test_any_text_of_a_choice_arrives_as_it_is(value):
    (text, _), = [read({"key": {"choice": [value, "other"]}})[0]["key"].values]
    assert OverridesParser.create().parse_override(f"key={text}").value() == value


@pytest.mark.parametrize(("given", "message"), [
    ({"logint": [1, 2]}, "parameter key: no kind 'logint': did you mean log_interval or int"),
    ({"log": [1, 2]}, "parameter key: no kind 'log': known are choice, int, interval, log_interval"),
    ({}, "parameter key: 0 kinds given (none): exactly one of interval, log_interval, int, choice"),
    ({"int": [1, 2], "choice": [1]}, "parameter key: 2 kinds given (int, choice): exactly one of"),
    ({"interval": 3}, "parameter key: interval needs a list, not 3: interval: [low, high] with two numbers"),
    ({"interval": [1]}, "parameter key: interval: [1] does not fit: interval: [low, high] with two numbers"),
    ({"log_interval": ["1e-5", 1]}, "(1e-4 is text in YAML, 1.0e-4 a number)"),
    ({"interval": [True, 2]}, "does not fit"),
    ({"int": [1, 2.5]}, "int: [low, high] or [low, high, step] with integers"),
    ({"int": [1, 9, 0]}, "parameter key: step 0 is not positive"),
    ({"interval": [2, 1]}, "parameter key: low 2.0 is not below high 1.0: give [low, high]"),
    ({"interval": [1, 1]}, "is not below"),
    ({"log_interval": [0, 1]}, "parameter key: low 0.0 has no logarithm: give a positive one, or interval"),
    ({"choice": []}, "parameter key: choice needs values that differ, not []"),
    ({"choice": ["a", "a"]}, "choice needs values that differ, not [a, a]"),
    ([1, 2], "parameter key: a list is no search space: write {choice: [...]}"),
    ("range(3,3)", "parameter key: the range is empty"),
    ("tag(step,interval(0,1))", "tag step on IntervalSweep: only tag(log,interval(low,high)) has a meaning"),
    ("tag(log,choice(1,2))", "tag log on ChoiceSweep"),
    ("interval(2,1)", "low 2.0 is not below high 1.0"),
])
def test_an_invalid_space_is_refused_in_one_line(given, message):
    with pytest.raises(UsageError) as refusal:
        read({"key": given})
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_nothing_to_search_names_both_ways():
    with pytest.raises(UsageError, match=r"nothing to search: choose hparams=<file with hydra.sweeper.params>, or"):
        read({"a": 1}, "b=2")
