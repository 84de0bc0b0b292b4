"""Exploration of designs on generated matrices, from conf/ to the folder of the run."""

import json

import pandas as pd
import pytest

from sparloom.experiments.spade import DesignSeconds
from sparloom.space import SpadeSpace
from sparloom.sparse import Pattern

QUICK = ("corpus=tiny", "samples=tiny", "samples.configs=256", "selection.matrices=6",
         "selection.configs_per_matrix=40", "model.members.1.bags=2", "model.members.2.bags=2", "task.matrices=2",
         "task.own_matrices=3", "task.own_configs=12", "task.seeds=[0]", "task.grid.pes=[32]",
         "task.grid.llc_kib=[1536]", "task.grid.dram_gb_per_s=[29.3,58.6]")
SMALL, TARGET = (f"pes=32,llc_kib=1536,dram_gb_per_s={value}" for value in (29.3, 58.6))


@pytest.fixture(scope="module")
def explored(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("explored")
    return build("dse_spade", *QUICK, folder=folder).run(folder), folder


@pytest.mark.cc
def test_every_design_matrix_and_choice_has_a_row(explored):
    metrics, out = explored
    frame = pd.read_parquet(out / "per_matrix.parquet")
    assert frame.groupby(["method", "design"]).size().to_list() == [2] * 8
    assert set(frame["design"]) == {SMALL, TARGET}
    assert (metrics["designs"], metrics["matrices"]) == (2, 2)
    assert (metrics["labels/transferred"], metrics["labels/learned"]) == (240, 72)
    split = json.loads((out / "split.json").read_text())
    assert set(split["judged"]) == set(frame["matrix"])
    assert not set(split["judged"]) & set(split["own_labels"]["0"])
    assert (out / "designs.png").stat().st_size > 1000
    assert (out / "designs.svg").stat().st_size > 1000


@pytest.mark.cc
def test_baseline_with_default_programs_is_one(explored):
    metrics, out = explored
    table = pd.read_parquet(out / "designs.parquet").set_index(["method", "design"])
    assert table.at[("default", TARGET), "speedup"] == 1
    assert table.at[("default", TARGET), "cost"] == 1
    assert table.at[("default", SMALL), "cost"] < 1
    assert metrics["baseline/default/speedup"] == 1


@pytest.mark.cc
def test_no_choice_beats_the_optimum_and_bandwidth_never_slows_it(explored):
    _, out = explored
    frame = pd.read_parquet(out / "per_matrix.parquet")
    best = frame[frame["method"] == "optimum"].set_index(["design", "matrix"])["seconds"]
    assert (frame.set_index(["design", "matrix"])["seconds"] >= best.reindex(
        pd.MultiIndex.from_frame(frame[["design", "matrix"]])).to_numpy()).all()
    assert (best[TARGET] <= best[SMALL]).all()


@pytest.mark.cc
def test_kept_seconds_are_extended_and_other_machines_are_other_files(build, tmp_path):
    task = build("dse_spade", *QUICK, folder=tmp_path)
    first, second = task.machines.values()
    configs = list(SpadeSpace("spmm"))[:6]
    pattern = Pattern.from_coo([0, 1, 2, 2], [1, 0, 2, 3], (4, 4))
    kept = DesignSeconds(tmp_path, "spmm", 256)
    some = kept.of(pattern, configs[:2], [first])
    whole = kept.of(pattern, configs, [first, second])
    assert whole.shape == (2, 6)
    assert (whole[0, :2] == some[0]).all()
    assert (kept.of(pattern, configs[::-1], [second]) == whole[1:, ::-1]).all()
    assert len(list(tmp_path.glob("spmm-*/*.json"))) == 2
