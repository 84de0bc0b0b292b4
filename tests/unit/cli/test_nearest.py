"""Near names."""

from sparloom import cli

KEYS = ["seed", "model", "model.optimizer", "model.optimizer.lr", "selection.matrices", "trainer.epochs"]


def test_misspelt_key_finds_its_neighbour():
    assert cli.close_names("selektion.matrices", KEYS)[0] == "selection.matrices"


def test_last_part_is_enough():
    assert "model.optimizer.lr" in cli.close_names("lr", KEYS)
    assert "trainer.epochs" in cli.close_names("epoch", KEYS)


def test_without_a_close_name_all_are_listed():
    assert cli.suggestion("zzzzzz", ["b", "a"]) == "known are a, b"


def test_dotted_keys_include_inner_nodes():
    assert list(cli.dotted_keys({"a": {"b": 1, "c": {"d": 2}}})) == ["a", "a.b", "a.c", "a.c.d"]
