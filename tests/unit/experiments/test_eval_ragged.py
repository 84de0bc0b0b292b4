"""The evaluation of ragged programs on a few short sequences: all parts, then a resumed run."""


import numpy as np
import pandas as pd
import pytest

from sparloom.experiments.cora import (
    activation_rows,
    computation_rows,
    hoisting_arms,
    prelude_arms,
    prelude_bytes,
    splitting_arms,
    storage_arms,
    storage_bytes,
)
from sparloom.ragged import ATTENTION_LOOPS, ATTENTION_OPERATORS, LengthCorpus
from sparloom.report import RAGGED_PARTS

SMALL = ("timing=quick", "timing.retakes=0", "paths.seqlens=null", "lengths.names=[cola,mrpc]", "task.sizes=[2,4]",
         "task.kept=2", "task.count=2", "task.prelude=[[cola,3]]", "task.equal=2", "task.tokens=5",
         "task.storage=[[cola,3]]", "task.splitting=[[mrpc,2]]", "task.pad_fusion=[[mrpc,2]]",
         "task.breakdown=[[cola,3]]", "task.threads=1")


@pytest.fixture(scope="module")
def finished(build, tmp_path_factory):
    folder, out = tmp_path_factory.mktemp("eval"), tmp_path_factory.mktemp("out")
    return out, build("eval_ragged", *SMALL, folder=folder).run(out), folder


@pytest.mark.cc
def test_every_part_has_its_rows_and_figures(finished):
    out, metrics, folder = finished
    frame = pd.read_parquet(out / "per_case.parquet")
    assert set(frame["part"]) == {*RAGGED_PARTS, "activations"}
    for part in RAGGED_PARTS.values():
        for name in part.figures:
            assert (out / f"{name}.png").stat().st_size > 1000
    timed = frame[frame["median"].notna()]
    assert set(timed["part"]) == set(RAGGED_PARTS) - {"computation"}
    assert (timed["p10"] <= timed["median"]).all()
    assert set(timed.loc[timed["part"] == "hoisting", "operator"]) == set(ATTENTION_OPERATORS)
    assert set(timed.loc[timed["part"] == "storage", "operator"]) == set(ATTENTION_LOOPS)
    assert all(np.isfinite(value) for value in metrics.values())
    assert not list((folder / "artifacts" / "eval_ragged").iterdir())


def test_own_schedules_waste_computation_in_triangles_of_tiles_only():
    lengths = [np.array([70, 3]), np.array([5, 1])]
    found = pd.DataFrame(computation_rows(lengths)).pivot(index="operator", columns="method", values="flops")
    masked = found.loc["causal"]
    assert (found.drop(index="causal")["own"] == found.drop(index="causal")["ideal"]).all()
    assert masked["ideal"] == 8 * (70 * 71 + 3 * 4 + 5 * 6 + 1 * 2) // 2
    assert masked["own"] == 8 * (64 * 64 + 6 * 70 + 9 + 25 + 1)
    assert masked["dense"] == 8 * (70**2 + 9 + 25 + 1)
    assert (found["dense"] > found["ideal"]).all()


def test_own_layer_keeps_statistics_of_rows_instead_of_scores():
    found = pd.DataFrame(activation_rows([np.array([3, 1])])).pivot(index="operator", columns="method", values="bytes")
    assert found.loc["scores", ["dense", "ragged"]].tolist() == [4 * 8 * 18, 4 * 8 * 10]
    assert found.index[found["own"].isna()].tolist() == ["probabilities", "scores"]
    assert found.loc["statistics"].dropna().to_dict() == {"own": 4 * 4 * (2 * 8 + 2 * 2)}
    both = found.drop(index=["probabilities", "scores", "statistics"])
    assert (both["own"] == both["ragged"]).all()


@pytest.mark.cc
def test_preludes_by_formula_and_of_structures():
    lengths = np.array([70, 3])
    arms, taken = prelude_arms(lengths), prelude_bytes([lengths, lengths])
    assert set(arms) == set(taken) == {"shared", "unshared", "redundant", "by_tensor", "by_layout", "sparse_redundant",
                                       "sparse_by_tensor"}
    for build in arms.values():
        assert len(build()) >= 1
    assert taken["shared"] == {"storage": 3 * 8, "fusion": 0}
    assert taken["unshared"]["storage"] == 7 * taken["shared"]["storage"]
    assert taken["sparse_by_tensor"]["fusion"] == 0 < taken["by_tensor"]["fusion"] < taken["redundant"]["fusion"]


@pytest.mark.cc
def test_pointers_have_an_entry_for_every_row_of_every_head():
    lengths = np.array([6, 0, 2])
    assert storage_bytes("softmax", lengths) == {"graph": 8 * (3 + 1), "sparse": 8 * (3 * 8 + 1 + 8 * 8 + 1)}
    assert storage_bytes("attnv", lengths) == {"graph": 8 * 2 * (3 + 1), "sparse": 8 * (3 * 8 + 1 + 8 * 8 + 1 + 3 + 1)}
    arms = storage_arms("qkt", lengths, threads=1, seed=0)
    assert list(arms) == ["graph", "graph_unhoisted", "sparse", "sparse_unhoisted", "graph_prelude", "sparse_prelude"]
    assert arms["sparse_prelude"]().table_bytes() == storage_bytes("qkt", lengths)["sparse"]


@pytest.mark.cc
def test_arms_with_wrong_results_are_not_timed(monkeypatch):
    from sparloom.experiments.cora import operator_variants

    lengths = LengthCorpus(None, ["cola"], 0).load("cola").batches(2)[0]
    monkeypatch.setattr(operator_variants, "ORACLES", {"attnv": lambda weights, qkv: np.zeros((1, 4, 8, 64))})
    with pytest.raises(AssertionError, match="elements differ"):
        hoisting_arms("attnv", batch=1, tokens=4, threads=1, seed=0)
    monkeypatch.setattr(operator_variants, "SPLITTING_ORACLES",
                        {"qkt": lambda queries, keys: 1.1 * queries.swapaxes(0, 1) @ keys})
    with pytest.raises(AssertionError, match="elements differ"):
        splitting_arms("qkt", lengths, threads=1, seed=0)
    monkeypatch.setattr(operator_variants, "STORAGE_ORACLES", {"softmax": lambda scores: np.exp(scores)})
    with pytest.raises(AssertionError, match="elements differ"):
        storage_arms("softmax", lengths, threads=1, seed=0)
