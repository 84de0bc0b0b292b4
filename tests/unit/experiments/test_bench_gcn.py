"""Training side by side on tiny graphs: outputs, and resuming a killed run."""

import warnings
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
import torch

from sparloom.experiments import BenchGcn
from sparloom.experiments.autosage import Classification, GraphChoice, Trainee
from sparloom.nn import GCNConv
from sparloom.sparse import SyntheticCorpus

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")

pytestmark = [pytest.mark.cc, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


ANY = GraphChoice(kinds=[""], least_nonzeros=0, most_nonzeros=10**6, most_rows=10**6)


def corpus() -> SyntheticCorpus:
    return SyntheticCorpus(rows=[200], variants=1, seed=0, families=["uniform", "hub_rows", "heavy_tail"])


def bench(tmp_path, **changes) -> BenchGcn:
    settings = {
        "corpus": corpus(), "graphs": ANY, "widths": [8, 32], "blocks": 2, "block_steps": 2, "probe_steps": 2,
        "threads": 1, "journals": str(tmp_path / "journals"), "seed": 0}
    return BenchGcn(**settings | changes)


def test_all_methods_reach_the_same_losses(tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    metrics = bench(tmp_path).run(out)
    frame = pd.read_parquet(out / "per_matrix.parquet")
    assert set(frame["method"]) == {"pyg", "sparloom", "transform_first", "unfused"}
    assert len(frame) == 4 * 2 * metrics["8/graphs"]
    assert (frame["steps"] == 5).all()
    assert metrics["loss_difference_max"] < 1e-4
    assert frame["seconds"].sub(frame["first_seconds"] + 4 * frame["step_seconds"]).abs().max() < 1e-9
    assert metrics["32/speedup_over_pyg_low"] <= metrics["32/speedup_over_pyg"] <= metrics["32/speedup_over_pyg_high"]
    assert set(frame.loc[frame["method"] == "pyg", "form"]) <= {"csr", "csr_int32", "edge_index", "torch_sparse"}
    assert (out / "training.png").stat().st_size > 0
    assert not list((tmp_path / "journals").glob("*"))


def test_in_float64_both_train_to_the_same_loss() -> None:
    from torch_geometric.nn import GCNConv as Theirs

    corpus = SyntheticCorpus(rows=[200], variants=1, seed=0, families=["heavy_tail"])
    pattern = corpus.load(corpus.entries()[0].name).pattern
    task = Classification.drawn(pattern, 16, seed=0)
    task, losses = replace(task, features=task.features.double()), []
    for layer in (Theirs, partial(GCNConv, first="aggregate"), partial(GCNConv, first="transform")):
        trainee = Trainee(partial(layer, cached=True), lambda: task.edges, task, seed=0)
        trainee.train(100)
        losses.append(trainee.loss)
    assert max(losses) - min(losses) < 1e-9


def test_corpus_without_such_graphs_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"whose kind is one of web, social: widen task\.graphs\.kinds or the bounds"):
        bench(tmp_path, graphs=replace(ANY, kinds=["web", "social"])).run(tmp_path)
