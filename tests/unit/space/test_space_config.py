"""Configurations: keys, parsing, changes."""

import pickle

import pytest

from sparloom.space import Config

POINT = Config("spade", (("row_panel", 4), ("column_panel", "all"), ("barrier", 0)))


def test_key_lists_values_in_order() -> None:
    assert POINT.key == "row_panel=4,column_panel=all,barrier=0"


def test_parse_reads_a_key_back_with_its_types() -> None:
    assert Config.parse("spade", POINT.key) == POINT
    assert Config.parse("spade", POINT.key)["row_panel"] == 4


def test_replace_changes_one_value_and_leaves_the_original() -> None:
    assert POINT.replace(barrier=1).key == "row_panel=4,column_panel=all,barrier=1"
    assert POINT["barrier"] == 0


def test_pickle_keeps_a_configuration_whose_key_was_read() -> None:
    assert POINT.key
    assert pickle.loads(pickle.dumps(POINT)) == POINT


@pytest.mark.parametrize("key", ["", "row_panel", "row_panel=", "row_panel=4,,barrier=1"])
def test_damaged_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is not of the form name=value"):
        Config.parse("spade", key)


@pytest.mark.parametrize("value", ["a,b", "a=b", "a b", "12", "-3", ""])
def test_text_that_would_not_survive_a_key_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="does not fit a key"):
        Config("toy", (("knob", value),))
