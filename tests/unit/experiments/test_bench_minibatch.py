"""Mini-batches: samplers, and training side by side on tiny ones."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from sparloom.experiments import BenchMinibatch
from sparloom.experiments.autosage import (
    cluster_batch,
    induced_batch,
    sample_neighbours,
    small_graphs_batch,
    walk_batch,
)
from sparloom.nn import GCNConv
from sparloom.sparse import Pattern, SyntheticCorpus

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")

pytestmark = [pytest.mark.cc, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]

CORPUS = SyntheticCorpus(rows=[200], variants=1, seed=0, families=["uniform", "hub_rows"])
GRAPHS = [entry.name for entry in CORPUS.entries()]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def pattern() -> Pattern:
    return CORPUS.load(GRAPHS[-1]).pattern


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def dense(pattern: Pattern) -> np.ndarray:
    matrix = np.zeros(pattern.shape, bool)
    matrix[pattern.row_ids(), pattern.indices] = True
    return matrix


def test_neighbours_are_sampled_without_replacement(pattern, rng) -> None:
    seeds, fanouts = rng.choice(pattern.rows, 20, replace=False), [4, 2]
    batch = sample_neighbours(pattern, seeds, fanouts, rng=rng)
    nodes, (senders, receivers) = batch.nodes.numpy(), batch.edges.numpy()
    assert batch.size == 20
    assert nodes[:20].tolist() == seeds.tolist()
    assert np.unique(nodes).size == nodes.size
    assert dense(pattern)[nodes[receivers], nodes[senders]].all()
    assert np.unique(batch.edges.numpy(), axis=1).shape == batch.edges.shape
    degrees = np.diff(pattern.indptr)[nodes]
    drawn = np.bincount(receivers, minlength=nodes.size)
    assert (drawn[:20] == np.minimum(degrees[:20], 4)).all()
    assert (drawn[20:] <= 2).all()
    assert (np.sort(np.concatenate([np.arange(20), senders]))[-1]) == nodes.size - 1


@pytest.mark.parametrize("draw", [
    lambda pattern, rng: induced_batch(pattern, rng.permutation(pattern.rows)[:50]),
    lambda pattern, rng: cluster_batch(pattern, 60, parts=10, rng=rng),
    lambda pattern, rng: walk_batch(pattern, 60, length=2, rng=rng)], ids=("induced", "cluster", "walk"))
def test_subgraphs_have_all_edges_among_their_nodes(pattern, rng, draw) -> None:
    batch = draw(pattern, rng)
    nodes, (senders, receivers) = batch.nodes.numpy(), batch.edges.numpy()
    found = np.zeros((nodes.size, nodes.size), bool)
    found[receivers, senders] = True
    assert 0 < nodes.size <= 60
    assert (found == dense(pattern)[np.ix_(nodes, nodes)]).all()


def test_small_graphs_are_joined_without_edges_between_them(rng) -> None:
    batch = small_graphs_batch(10, mean_nodes=12, rng=rng)
    graph = batch.graph_of_node
    assert torch.unique(batch.edges, dim=1).shape == batch.edges.shape
    assert bool((batch.edges[0] != batch.edges[1]).all())
    assert torch.equal(graph[batch.edges[0]], graph[batch.edges[1]])
    sizes = torch.bincount(graph)
    assert 6 <= int(sizes.min()) <= int(sizes.max()) <= 18


def bench(tmp_path, **changes) -> BenchMinibatch:
    return replace(BenchMinibatch(
        CORPUS, graphs=GRAPHS, seeds=[10], fanouts=[3, 2], small={4: 8}, layers=["gcn", "sage", "gat"], width=8,
        classes=4, batches=2, rounds=2, threads=1, journals=str(tmp_path / "journals"), seed=0), **changes)


def test_all_methods_are_timed_on_equal_batches(tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    metrics = bench(tmp_path).run(out)
    frame = pd.read_parquet(out / "per_matrix.parquet")
    assert metrics["sampled/cases"] == 3 * 3 * len(GRAPHS)
    assert metrics["small/cases"] == 3
    assert {"sparloom", "pyg"} <= set(frame["method"])
    timed = frame[frame["failure"] == ""]
    assert (timed["seconds"].map(len) == 4).all()
    for key in ("sampled/over_pyg", "small/gcn/over_best", "sampled/sage/end_to_end"):
        assert metrics[f"{key}_low"] <= metrics[key] <= metrics[f"{key}_high"]
        assert metrics[f"{key}_min"] > 0
    assert not list((tmp_path / "journals").glob("*"))


def test_wrong_scores_are_refused(tmp_path, monkeypatch) -> None:
    forward = GCNConv.forward
    monkeypatch.setattr(GCNConv, "forward", lambda *arguments: forward(*arguments) + 0.01)
    with pytest.raises(AssertionError, match=r"scores of our GCNConv are .* apart from those of PyTorch Geometric"):
        bench(tmp_path, layers=["gcn"]).run(tmp_path)
