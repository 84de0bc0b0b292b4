"""Constants of the simulator, changed one by one on generated matrices."""

from dataclasses import replace

import pandas as pd
import pytest

from sparloom.experiments.spade import sensitivity

VARIED = {"instruction_ns": [10, 2000], "llc_ways": [1, 16], "dealing": ["first_free"]}


@pytest.fixture
def task(build, tmp_path):
    made = build("spade_sensitivity", "corpus=tiny", "task.jobs=1", folder=tmp_path)
    return replace(made, varied=VARIED, matrices=3)


@pytest.mark.cc
def test_same_value_changes_nothing_and_a_great_one_does(task, tmp_path):
    metrics = task.run(tmp_path)
    rows = pd.read_parquet(tmp_path / "per_matrix.parquet")
    assert metrics["matrices"] == 3
    assert rows.groupby("matrix").size().to_list() == [2 * 6] * 3
    assert len(pd.read_parquet(tmp_path / "sensitivity.parquet")) == 2 * 6
    for op in ("spmm", "sddmm"):
        same = {key: metrics[f"{op}/instruction_ns=10/{key}"] for key in ("tau", "tau_least", "kept", "kept_least")}
        assert same == pytest.approx(dict.fromkeys(same, 1))
        assert metrics[f"{op}/instruction_ns=10/optimum"] == pytest.approx(metrics[f"{op}/optimum"])
        assert metrics[f"{op}/instruction_ns=2000/tau"] < 1
    assert rows["kept"].between(0, 1).all()
    assert (rows["optimum"] >= 1).all()
    assert (tmp_path / "sensitivity.svg").stat().st_size > 1000


def test_unknown_constant_is_refused_before_anything_is_simulated(task, tmp_path):
    with pytest.raises(ValueError, match=r"l4_ns: no constant of the machine: task\.varied takes names of the "):
        replace(task, varied={"l4_ns": [1]}).run(tmp_path)


def test_matrices_are_reduced_by_machine():
    rows = [{"op": "spmm", "matrix": name, "constant": "l1_ns", "value": "5", "optimum": optimum, "kept": 1.0,
             "tau": tau} for name, optimum, tau in (("a", 4.0, 0.5), ("b", 1.0, 0.9), ("c", 2.0, 0.8))]
    (row,) = sensitivity(pd.DataFrame(rows)).to_dict(orient="records")
    assert (row["optimum"], row["tau"], row["tau_least"], row["kept_least"]) == (pytest.approx(2), 0.8, 0.5, 1.0)
