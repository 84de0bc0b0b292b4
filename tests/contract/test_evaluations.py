"""Every comparison of conf/: arms compose and bind, rows are named after their runs, equal arms share a run."""

import re
from functools import cache
from pathlib import Path

import hydra
import pytest
from binding import faults
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from sparloom import cli
from sparloom.experiments import Arm
from sparloom.experiments.cognate import expand_grid

CONF = Path(__file__).parents[2] / "conf"
EVALUATIONS = sorted(path.stem for path in (CONF / "experiment").glob("eval_*.yaml")
                     if "override /task: compare" in path.read_text(encoding="utf-8"))

MANY = ("eval_ablations", "eval_selection")  # arms, which take half a minute to compose
each = pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.exhaustive if name in MANY else ()) for name in EVALUATIONS])


@cache
def composed(overrides: tuple[str, ...]) -> dict:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("config", list(overrides))
    folders = OmegaConf.merge(config, {"paths": {name: name for name in config.paths}})  # as run.py does for digests
    return OmegaConf.to_container(folders, resolve=True)


def arms(name: str) -> dict[str, tuple[dict, dict]]:
    """Map each arm to its description and the configuration of its run."""
    task = composed((f"experiment={name}",))["task"]
    return {arm: (described, composed(tuple(cli.arm_overrides(described, common=task["common"], given=()))))
            for arm, described in described_arms(task).items()}


def described_arms(task: dict) -> dict[str, dict]:
    return task["arms"] | {name: arm for grid in task["grids"] for name, arm in expand_grid(grid).items()}


def run_of(name: str, arm: str) -> str:
    return cli.digest(arms(name)[arm][1], "data")


def test_all_results_of_the_paper_have_a_comparison():
    figures = [f"eval_figure{number:02}" for number in (2, 4, 5, 6, 7, 8, 9, 10, 11, 12)]
    assert set(EVALUATIONS) >= {*figures, "eval_table2"}


@pytest.mark.slow
@each
def test_arms_compose_and_bind_and_replace_no_network(name):
    for arm, (described, tree) in arms(name).items():
        Arm(**{"group": None, **described})
        assert list(faults(tree)) == [], arm
        assert tree["recommends"] is False, arm
        assert set(described["rows"]) <= {"random", *tree["task"].get("methods", [tree["task"].get("name")])}, arm


@each
def test_rows_have_different_names_and_every_name_is_a_row(name):
    task = composed((f"experiment={name}",))["task"]
    rows = [(arm.get("group", "spmm"), row) for arm in described_arms(task).values() for row in arm["rows"].values()]
    assert len(set(rows)) == len(rows)
    known = {row for _, row in rows} | {"optimum"}
    groups = {group for group, _ in rows}
    assert set(task["labels"]) <= known | groups
    assert {row for told in task["paper"].values() for row in told} <= known
    assert {row for joined in task["figure"].get("lines", {}).values() for row in joined} <= known
    assert task["figure"].get("row", "optimum") in known
    for group in groups:
        assert (group, task["reference"]) in rows


@each
def test_rows_are_named_by_the_sizes_that_run(name):
    for described, tree in (found for found in arms(name).values()):
        sizes = {tree["selection"]["matrices"], tree["pretraining"]["matrices"]}
        labels = tree["selection"]["matrices"] * tree["selection"]["configs_per_matrix"]
        for row in described["rows"].values():
            number = re.search(r"_(\d+)$", row)
            named = number and int(number[1])
            assert named is None or named in sizes or 0.95 * named < labels <= named


@each
def test_groups_are_operations_or_have_a_label(name):
    called = composed((f"experiment={name}",))["task"]["labels"]
    for described, tree in arms(name).values():
        op = tree["op"]["_target_"].rpartition(".")[2].lower()
        assert described.get("group", op) in {op, *called}


@each
def test_rows_of_one_split_name_it(name):
    for described, tree in arms(name).values():
        for row in described["rows"].values():
            split = re.search(r"_(\d+)x(\d+)$", row)
            chosen = tree["selection"]
            if split:
                assert (int(split[1]), int(split[2])) == (chosen["matrices"], chosen["configs_per_matrix"])
                assert row.startswith(chosen["_target_"].rpartition(".")[2].lower())


def test_equal_arms_of_different_figures_are_one_run():
    whole = {run_of("eval_figure07", "whole"), run_of("eval_figure08", "mlp"), run_of("eval_figure09", "autoencoder"),
             run_of("eval_figure02", "cognate"), run_of("eval_figure11", "source_100")}
    assert len(whole) == 1
    published = {run_of("eval_figure04", "spmm_cognate"), run_of("eval_figure06", "cognate"),
                 run_of("eval_figure10", "matrices_5"), run_of("eval_table2", "matrices_5")}
    assert len(published) == 1
    assert run_of("eval_figure12", "matrices_100") == run_of("eval_table2", "matrices_100")
    assert run_of("eval_figure04", "spmm_waco_fa") != run_of("eval_figure04", "sddmm_waco_fa")
