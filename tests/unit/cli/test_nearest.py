"""Near names."""

import pytest

from sparloom import cli

UNKNOWN = ("In 'config': Could not find 'op/{}'\n\nAvailable options in 'op':\n\tgemm\n\tspmm\nConfig search path:\n"
           "\tprovider=hydra, path=pkg://hydra.conf")
KEYS = ["seed", "model", "model.optimizer", "model.optimizer.lr", "selection.matrices", "trainer.epochs"]


def test_misspelt_key_finds_its_neighbour():
    assert cli.close_names("selektion.matrices", KEYS)[0] == "selection.matrices"


def test_without_a_close_name_all_are_listed():
    assert cli.suggestion("zzzzzz", ["b", "a"]) == "known are a, b"


@pytest.mark.parametrize(("message", "shown"), [
    ("Could not override 'hydra.sweeper.n_trials'.",
     "unknown key 'hydra.sweeper.n_trials': did you mean hydra.sweeper.trials"),
    ("Could not override 'task.n_trial'.", "unknown key 'task.n_trial': did you mean task.n_trials?"),
    (UNKNOWN.format("spm"), "op 'spm' does not exist: did you mean spmm?"),
    (UNKNOWN.format("x"), "op 'x' does not exist: known are gemm, spmm"),
])
def test_errors_of_hydra_name_what_was_probably_meant(message, shown):
    keys = ["task.n_trials", "hydra.sweeper.trials", "hydra.sweeper.batch"]
    assert cli.explain(type("ConfigCompositionException", (Exception,), {})(message), lambda: keys).startswith(shown)
