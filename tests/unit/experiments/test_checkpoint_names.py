"""Checkpoints of networks with different options have different names."""

from functools import cache

import pytest

from sparloom.data import CsvSamples
from sparloom.errors import MissingArtifact


@pytest.fixture(scope="module")
def named(build, tmp_path_factory):
    """Return the name of the source network that a run with these overrides loads."""
    @cache
    def name(*overrides: str) -> str:
        task = build("finetune_tiny", *overrides, folder=tmp_path_factory.mktemp("names"))
        return task.checkpoints.source(task.source, task.op, task.recipe.module.net)

    return name


@pytest.mark.parametrize("override", [
    "encoder=pca", "encoder.width=32", "predictor=lstm", "model=cognate_without_mapper", "pretraining.matrices=20",
    "selection@pretraining=random", "seed=1", "model.net.featurizer.norm=none", "op=sddmm",
])
def test_options_that_change_the_network_are_in_the_name(named, override):
    more = ["predictor.latent_width=32"] if override == "encoder.width=32" else []
    assert named(override, *more) != named()


@pytest.mark.parametrize("override", [
    "model.optimizer.lr=0.5", "selection.matrices=4", "task.seeds=[7]", "trees.bags=3",
])
def test_options_of_fine_tuning_are_not_in_the_name(named, override):
    assert named(override) == named()


def test_readings_of_a_platform_are_in_the_names(named, build, tmp_path):
    counts = "readings={_target_: sparloom.space.Readings, panel_values: counts}"
    usual, other = (build("finetune_tiny", *given, folder=tmp_path) for given in ((), (f"target.{counts}",)))
    for make in (lambda task: task.checkpoints.latent(task.target, task.op),
                 lambda task: task.checkpoints.finetuned(task.target, task.op, task.recipe.module.net)):
        assert make(usual) != make(other)
    assert named(f"target.{counts}") == named()  # the source has its own
    assert named("source.measured.readings={_target_: sparloom.space.Readings}") == named()
    assert named(f"source.measured.{counts}") != named()


def test_models_of_csv_samples_start_from_those_of_their_base(build, tmp_path):
    task = build("finetune_tiny", folder=tmp_path)
    checkpoints, base = task.checkpoints, task.samples
    csv = CsvSamples(files={}, manifest=None, cost=len, base=base)
    asked = {"experiment": "pretrain_cpu", "overrides": ()}
    with pytest.raises(MissingArtifact, match=r"no checkpoint source of csv samples in .*/csv or .*/tiny"):
        checkpoints.find("source", csv, **asked, base=base)
    for samples in (base, csv):  # an own one comes first
        path = checkpoints.path("source", samples)
        path.parent.mkdir(parents=True)
        path.touch()
        assert checkpoints.find("source", csv, **asked, base=base) == path
    path.unlink()
    with pytest.raises(MissingArtifact):
        checkpoints.find("source", csv, **asked)


def test_the_version_of_a_description_is_in_the_names_of_its_models(build, tmp_path):
    text = "name: chip\nparameters: {fast: {kind: boolean, default: 0, own: true}}\n"
    names = []
    for each in (text, text.replace("default: 0", "default: 1")):
        (tmp_path / "chip.yaml").write_text(each)
        task = build("autoencode_spade", "platform@target=custom", f"space={tmp_path / 'chip.yaml'}", folder=tmp_path)
        names.append(task.checkpoints.latent(task.platform, task.op))
    assert names[0] != names[1]
    assert all(name.startswith("latent_chip-") for name in names)


def test_a_custom_platform_needs_its_file_and_the_width_of_it(build, tmp_path):
    task = build("autoencode_spade", "platform@target=custom", folder=tmp_path)
    with pytest.raises(ValueError, match=r"which accelerator\? Give the YAML file of its parameters, space=<path>"):
        task.run(tmp_path)
    (tmp_path / "chip.yaml").write_text("name: chip\nparameters: {fast: {kind: boolean, default: 0, own: true}}\n")
    task = build("autoencode_spade", "platform@target=custom", f"space={tmp_path / 'chip.yaml'}", "target.width=64",
                 folder=tmp_path)
    with pytest.raises(ValueError, match=r"the width of target is 64, but .*chip.yaml describes samples of width 256"):
        task.run(tmp_path)
