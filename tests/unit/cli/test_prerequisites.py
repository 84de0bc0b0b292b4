"""Options that a prerequisite inherits from the run that needs it."""

import pytest

from sparloom import cli

CPU = {"_target_": "Cpu", "orders": "all", "preset": "two_threads"}
SPADE = {"_target_": "Spade", "pes": 32, "preset": "cognate32"}
FASTER = {"_target_": "Spade", "pes": 32, "preset": "cognate32_205"}


def given(*overrides, source=CPU, target=SPADE, **options):
    chosen = {"platform@source": "cpu", "platform@target": "spade", **options}
    return cli.RunOptions(overrides, chosen, {"source": source, "target": target, "seed": 0})


def test_data_and_network_are_inherited_but_not_training_options():
    run = given("experiment=finetune_spade", "paths.data=/d", "model.net.side.width=0", "trainer.epochs=3",
                "selection.matrices=7", "seed=4", "width=32", "backend=minkowski",
                op="sddmm", samples="tiny", task="finetune", experiment="finetune_spade")
    assert run.inherited() == [
        "op=sddmm", "samples=tiny", "paths.data=/d", "model.net.side.width=0", "seed=4", "width=32",
        "backend=minkowski"]


def test_a_prerequisite_gets_the_preset_of_the_run():
    run = given(target=FASTER, **{"platform@target": "spade_205"})
    assert run.platforms({"source": CPU, "target": SPADE}) == ["platform@target=spade_205"]


@pytest.mark.parametrize("text", ["target.pes=64", "++target.pes=64", "target.readings={barrier: order}"])
def test_settings_of_the_command_line_follow_the_platform(text):
    run = given("trainer.epochs=3", text, target={**SPADE, "pes": 64})
    assert run.platforms({"source": CPU, "target": SPADE}) == ["platform@target=spade", text]


def test_the_source_of_a_run_is_the_target_of_its_autoencoder():
    run = given("source.orders=waco", source={**CPU, "orders": "waco"})
    assert run.platforms({"source": CPU, "target": CPU}) == [
        "platform@source=cpu", "source.orders=waco", "platform@target=cpu", "target.orders=waco"]
    assert run.platforms({"source": {"_target_": "Other"}, "target": CPU}) == [
        "platform@target=cpu", "target.orders=waco"]
