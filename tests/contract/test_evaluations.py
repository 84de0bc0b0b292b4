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

CONF = Path(__file__).parents[2] / "conf"
EVALUATIONS = sorted(path.stem for path in (CONF / "experiment").glob("eval_*.yaml")
                     if "override /task: compare" in path.read_text(encoding="utf-8"))

RUNS = {  # of every arm, in order: the folder in which its run is kept, if it is one of fit_spade, since that has an
    # option for the formula of the platform, and else since variants of COGNATE are made by one function
    "eval_ablations": (
        "8efe720e e381b9c3 5bee2e3e cfe84bec dc98d427 19f9eeb4 56ec72e7 a0860d42 80e7f695 0274733a 50a9d466 "
        "b1eba97b 14f1744f 41b2d560 c3241677 4276da4e 048e4317 fd1317e0 874cc4e2 f1619329 29b03fa0 d7bcef9d "
        "efd75384 5c141374 b3eb80b9 8bf82b12 531a41d1 1d919a7b 6766fb0a dd9eb5c0 afb07609 1d4b9355 0ab698de "
        "381064c4 7fe48d2b a8d51c74 1c0db2af 030c6768 9fa1b629 8ba7f35e"),
    "eval_figure02": (
        "89552bd6 e7988d0b cac08b34 d89dfec6 a2f1597b 22c25e49"),
    "eval_figure04": (
        "89552bd6 7efb1132 cac08b34 d89dfec6 1bdcd4a5 fc4cb7d6 a4229b3d cbbd0a86 bfc8d8c8 b08fe318 9affb44d daa89d87 "
        "fa66bca5 7780365a"),
    "eval_figure05": (
        "89552bd6 1bdcd4a5"),
    "eval_figure06": (
        "89552bd6"),
    "eval_figure07": (
        "89552bd6 25b0413e 9fd11aae b8b8a296 973481f5 25179a66"),
    "eval_figure08": (
        "89552bd6 25b0413e 54502fe8 94ca0ed4 626ee03e"),
    "eval_figure09": (
        "5e4e512f 16856a0f 16d26867 f12a2158 89552bd6 25b0413e"),
    "eval_figure10": (
        "81f50e99 89552bd6 f04e13d0 7f924d45 2bcf315f"),
    "eval_figure11": (
        "f602fd8f 62313867 89552bd6 91a7b15d"),
    "eval_figure12": (
        "81f50e99 89552bd6 f04e13d0 7f924d45 2bcf315f"),
    "eval_labels": (
        "e381b9c3 40bedbd0 5754e47a c8b0586a d7bcef9d dbbcc8fc ac57e63e d73cdc00"),
    "eval_members": (
        "4598387e a29a9150 04531956 f2a26bdd 2cb883d3 b1a8d39d d45bee96 2f313606 1dc851e8 4056aad0 4db37bbc dea1bc6f"),
    "eval_pipeline": (
        "44e557e0"),
    "eval_selection": (
        "4598387e 16294187 3326ecfc e3da0c80 a379d9ed e045c87f 37f6cd32 cae9ebba a4b5df90 6f162561 da401371 978455e8 "
        "d54bc9ac 8f3b7b94 24288096 b4eec910 78bb0f07 3a66c77e 4c2c8ef3 fbe3ea26 bff848d9 d45bee96 604986cd c4636ed0 "
        "c0b3d965 ab15109d e11c5906 42a6b3bc 6139d213"),
    "eval_sources": (
        "27fc7014 9de9c045 d0f84c34 d9c622c7 27407b97 9327941b 614da15f f9ba4ec2 ad8d2757 aee9b9d3"),
    "eval_table2": (
        "89552bd6 2bcf315f f602fd8f 62313867 91a7b15d"),
    "eval_variants": (
        "179d548e 83f790e9 e2717509 b9548642"),
}

MANY = 20  # arms, which take half a minute to compose
each = pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.exhaustive if len(RUNS[name].split()) > MANY else ()) for name in EVALUATIONS])


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
            for arm, described in task["arms"].items()}


def run_of(name: str, arm: str) -> str:
    return cli.digest(arms(name)[arm][1], "data")


@each
def test_finished_runs_of_arms_are_found_after_a_renaming(name):
    assert [run_of(name, arm) for arm in arms(name)] == RUNS[name].split()


def test_all_results_of_the_paper_have_a_comparison():
    figures = [f"eval_figure{number:02}" for number in (2, 4, 5, 6, 7, 8, 9, 10, 11, 12)]
    assert set(EVALUATIONS) >= {*figures, "eval_table2"}


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
    rows = [(arm.get("group", "spmm"), row) for arm in task["arms"].values() for row in arm["rows"].values()]
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
