"""Samples dealt to simulated cores, and networks pre-trained on other sources."""

import json

import numpy as np
import pytest
from small import SMALL

from sparloom.data import Sample, SampleTable
from sparloom.errors import MissingArtifact, SchemaError
from sparloom.experiments.harness import samples_of
from sparloom.space import CpuSpace
from sparloom.sparse import SyntheticCorpus

TINY = ("corpus=tiny", "samples=synthetic", "task.jobs=1")
SOURCES = {"cpu_many": ("cpu_many", "workers_32"), "spade_205": ("spade", "cognate32_205")}


def measured_samples(corpus: SyntheticCorpus, count: int) -> list[Sample]:
    """Two made-up rounds of a few schedules of every matrix, and one failure."""
    samples = []
    for entry in corpus.entries():
        space, rng = CpuSpace("spmm").bind((entry.rows, entry.cols)), np.random.default_rng(0)
        for place, config in enumerate(space.sample(count, rng)):
            for turn in range(2):
                failed = place == 1
                samples.append(Sample(
                    op="spmm", platform="cpu", preset="two_threads", matrix=entry.name, width=256, config=config.key,
                    round=turn, seconds=() if failed else (0.002, 0.001 * (1 + place + turn / 10)), cpu_seconds=(),
                    kind="wall", failure="fill: too much" if failed else None, stolen=place == 2, machine="m",
                    commit="c", started="2026-01-01T00:00:00Z"))
    return samples


@pytest.fixture(scope="module")
def corpus():
    return SyntheticCorpus(rows=[200], variants=1, seed=0, families=[
        "star_2d", "triangles", "scrambled_band", "uniform", "hub_rows", "blocks", "roads", "heavy_tail", "nearest",
        "pruned"])


@pytest.fixture(scope="module")
def dealt(build, corpus, tmp_path_factory):
    """Deal made-up samples; returns the folder and the metrics."""
    folder = tmp_path_factory.mktemp("dealt")
    data = folder / "data" / "synthetic"
    SampleTable.of(measured_samples(corpus, 6)).write(data / "samples" / "cpu_spmm.parquet")
    build("prepare_inputs", "corpus=tiny", "task.jobs=1", folder=folder).run(folder)
    return folder, build("collect_cpu_many", *TINY, folder=folder).run(folder)


def table(folder, name: str) -> SampleTable:
    return SampleTable.read(folder / "data" / "synthetic" / "samples" / f"{name}_spmm.parquet")


@pytest.mark.cc
def test_every_measured_row_is_dealt_to_both_presets(dealt):
    folder, metrics = dealt
    made, measured = table(folder, "cpu_many"), table(folder, "cpu")
    made.validate()
    assert made.presets() == ("workers_32", "workers_32_single", "workers_32_static")
    assert len(made) == 3 * len(measured) == metrics["rows"]
    assert metrics["left_out"] == 0
    rows, before = made.frame(), measured.frame()
    assert set(rows["platform"]) == {"cpu_many"}
    assert set(rows["kind"]) == {"simulated"}
    for preset in made.presets():
        part = rows[rows["preset"] == preset]
        assert set(part["failure"].dropna()) == set(before["failure"].dropna())
        for column in ("matrix", "config", "round", "stolen", "started", "machine"):
            assert part[column].astype(str).to_list() == before[column].astype(str).to_list()
    assert (metrics["workers_32/speedup_over_measured"] >= metrics["workers_32_static/speedup_over_measured"] * 0.99)


@pytest.mark.cc
def test_measured_and_dealt_samples_do_not_mix(dealt):
    folder, _ = dealt
    both = SampleTable.concat([table(folder, "cpu"), table(folder, "cpu_many").filter(preset="workers_32")])
    with pytest.raises(SchemaError, match="times of different platform are not comparable"):
        both.labels()
    assert set(table(folder, "cpu").frame()["platform"]) == {"cpu"}


@pytest.mark.cc
def test_samples_remember_the_machine_they_were_dealt_to(build, dealt):
    folder, _ = dealt
    task = build("autoencode_cpu", "samples=synthetic", "platform@target=cpu_many", "target.workers=48", folder=folder)
    with pytest.raises(SchemaError, match=r"are of another machine than this run \(machine.workers .* -> "):
        samples_of(task.samples, task.platform, task.op)


@pytest.fixture(scope="module", params=SOURCES)
def other_source(request, build, trained, tmp_path_factory):
    """Pre-train on another source beside the CPU and fine-tune its network; returns source, folder and metrics."""
    out = tmp_path_factory.mktemp(request.param)
    if request.param == "cpu_many":
        build("autoencode_cpu", *SMALL, "platform@target=cpu_many", folder=trained).run(out)
    build("pretrain_cpu", *SMALL, f"platform@source={request.param}", folder=trained).run(out)
    metrics = build("finetune_tiny", *SMALL, f"platform@source={request.param}", "task.methods=[zero_shot,cognate]",
                    "task.seeds=[0]", "recommends=false", folder=trained).run(out)
    return request.param, out, metrics


@pytest.mark.slow
def test_other_sources_pre_train_and_fine_tune(other_source, trained):
    option, out, metrics = other_source
    name, preset = SOURCES[option]
    used = [path for path, digest in json.loads((out / "made_from.json").read_text()).items() if digest]
    assert any(f"source_{name}_{preset}_spmm_cognate-" in path for path in used)
    assert not any("source_cpu_spmm" in path for path in used)
    price = {"cpu_many": 1, "spade": 1000}[name]
    assert metrics["test/dce"] == 1000 * metrics["test/labels_per_seed"] + price * metrics["test/source_labels"]


@pytest.mark.parametrize(("option", "wanted"), [
    ("cpu_many", "platform@source=cpu_many"), ("spade_205", "platform@source=spade_205"),
    ("spade_16", "platform@source=spade_16"), ("spade", "platform@source=spade")])
def test_a_missing_source_network_is_trained_on_that_source(build, tmp_path, trained, option, wanted):
    task = build("finetune_tiny", *SMALL, f"platform@source={option}", "seed=9", folder=trained)
    build("autoencode_spade", *SMALL, "seed=9", folder=trained).run(tmp_path)
    with pytest.raises(MissingArtifact, match="no checkpoint source_") as caught:
        task.run(tmp_path)
    assert caught.value.experiment == "pretrain_cpu"
    assert wanted in caught.value.overrides


def test_sources_and_their_presets_have_networks_of_their_own(build, tmp_path):
    names = set()
    options = ("cpu", "cpu_many", "cpu_many_static", "cpu_many_single", "spade", "spade_205", "spade_16")
    for option in options:
        task = build("finetune_tiny", f"platform@source={option}", folder=tmp_path)
        names.add(task.checkpoints.source(task.source, task.op, task.recipe.module.net))
    assert len(names) == len(options)
    wider = build("finetune_tiny", "platform@source=cpu", "source.threads=64", "source.preset=threads_64",
                  folder=tmp_path)
    assert wider.checkpoints.source(wider.source, wider.op, wider.recipe.module.net) not in names
