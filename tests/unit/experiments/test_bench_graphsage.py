"""GraphSAGE with chosen kernels, on tiny graphs: what runs, what is refused, and resuming a killed run."""

import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from small import SMALL
from sparse_table import write_spmm_table

from sparloom.data import StoredSamples
from sparloom.experiments import BenchGraphsage, GraphChoice
from sparloom.experiments.autosage import (
    Classification,
    KernelChooser,
    MeanLayer,
    NeighbourMean,
    Trainee,
    bench_graphsage,
    kernel_product,
    mean_matrices,
    scipy_mean,
)
from sparloom.measure import TimingProtocol
from sparloom.models import CognateModel, FeatureAugmentation, initialise, load_networks
from sparloom.platforms import SpmmKernels
from sparloom.report import graphsage_metrics
from sparloom.space import SpmmSpace
from sparloom.sparse import SyntheticCorpus

pytestmark = [pytest.mark.cc, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]

CORPUS = SyntheticCorpus(rows=[200], variants=1, seed=0, families=["uniform", "hub_rows", "heavy_tail"])
TIMING = TimingProtocol(rounds=1, repetitions=2, short_seconds=0, most_repetitions=2, slow_factor=1e9, steal_ratio=100,
                        retakes=0, seed=0)
LEARNED = ["made/band0", "made/uneven1"]  # training matrices of the generated samples


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(bench_graphsage, "WARM_UP_STEPS", 2)


@pytest.fixture(scope="module")
def network(build, tmp_path_factory) -> CognateModel:
    """An initialised network of SpMM with 128 columns, without training."""
    space = SpmmSpace(128)
    net = build("finetune_cpu_kernels", *SMALL, folder=tmp_path_factory.mktemp("conf")).recipe.module.net
    initialise(net, 0)
    slots = FeatureAugmentation(width=net.predictor.settings["latent_width"], slots={space.name: 1})
    net.use_encoder(slots.fit(space.heterogeneous_codes(), platform=space.name, seed=0))
    return CognateModel(net, space)


@pytest.fixture
def bench(network, tmp_path):
    """Make the experiment with changed settings; notes of the network: matrices."""
    write_spmm_table(tmp_path / "data", 4, widths=(128,))

    def made(matrices: list[str] = LEARNED, **changes) -> BenchGraphsage:
        notes = {"width": 128, "preset": "t2", "matrices": matrices}
        network.save(tmp_path / "network.pt", notes=notes, precision="float32")
        return BenchGraphsage(**{
            "corpus": CORPUS, "graphs": GraphChoice([""], 0, 10**6, 10**6), "count": 2, "width": 16, "depth": 3,
            "model": str(tmp_path / "network.pt"), "samples": StoredSamples(str(tmp_path / "data"), "", "synthetic"),
            "timing": TIMING, "choice_timing": TIMING, "threads": 1, "memory_bytes": 1e9,
            "journals": str(tmp_path / "journals"), "seed": 0} | changes)

    return made


@pytest.fixture(scope="module")
def task() -> Classification:
    return Classification.drawn(CORPUS.load(CORPUS.entries()[0].name).pattern, 16, seed=0)


def test_both_stages_are_timed_by_every_method(bench, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    out = tmp_path / "out"
    out.mkdir()
    metrics = bench().run(out)
    frame = pd.read_parquet(out / "per_case.parquet")
    timed = frame[frame["median"].notna()]
    methods = {"default", "adapted", "static", "cognate", "cognate_5", "optimum", "sparloom", "pyg_edge_index"}
    for (_, _), rows in timed.groupby(["matrix", "stage"]):
        assert methods <= set(rows["method"])
    assert timed.groupby("stage")["matrix"].nunique().to_dict() == {"inference": 2, "training": 2}
    own = timed[timed["config"].notna()]
    assert own["aggregation_share"].between(0, 1, inclusive="neither").all()
    assert set(own.loc[own["method"] == "default", "config"]) == {SpmmSpace(16).default().key}
    assert (own.loc[own["method"].isin(["cognate", "cognate_5", "optimum"]), "choice_seconds"] > 0).all()
    assert metrics["inference/default/speedup"] == 1
    for key in ("inference/cognate/speedup", "training/optimum/speedup", "training/static/of_optimum"):
        assert metrics[f"{key}_low"] <= metrics[key] <= metrics[f"{key}_high"]
    assert metrics["spmm/optimum/speedup"] >= 1
    assert (out / "speedups.png").stat().st_size > 0
    assert not list((tmp_path / "journals").glob("*"))


def test_scores_and_gradients_are_those_of_autograd(task):
    matrices = mean_matrices(task)
    dense = torch.from_numpy(matrices[0].to_scipy().toarray()).double()
    assert torch.allclose(dense.sum(1)[dense.sum(1) > 0], torch.ones(1, dtype=torch.float64))
    assert (dense.diagonal() == 0).all()
    wide = task.double()
    expected, found = (Trainee(MeanLayer, lambda graph=graph: graph, wide, seed=0, depth=3)
                       for graph in (lambda features: dense @ features, scipy_mean(wide)))
    assert torch.allclose(found.infer(), expected.infer())
    gradients = expected.gradients()
    assert len(gradients) == 9
    for name, gradient in found.gradients().items():
        assert torch.allclose(gradient, gradients[name]), name


def test_the_chosen_kernels_run(task, monkeypatch):
    bound, bind = [], SpmmKernels.bind

    def noted(self, operands, config, result):
        bound.append((operands.matrix, config.key))
        return bind(self, operands, config, result)

    monkeypatch.setattr(SpmmKernels, "bind", noted)
    matrices, space = mean_matrices(task), SpmmSpace(16)
    pair = (space.default(), next(config for config in space if config["order"] == "column"))
    mean = NeighbourMean(*(kernel_product(matrix, config, threads=1)
                           for matrix, config in zip(matrices, pair, strict=True)))
    trainee = Trainee(MeanLayer, lambda: mean, task, seed=0, depth=3)
    trainee.infer()
    assert bound == [(matrices[0], pair[0].key)]
    assert mean.seconds > 0
    trainee.train(2)
    assert bound == [(matrices[0], pair[0].key), (matrices[1], pair[1].key)]


def test_choices_are_those_of_their_methods(bench, network, task, monkeypatch):
    matrix, configs = mean_matrices(task)[0], list(SpmmSpace(128))
    scores = dict(zip((config.key for config in configs), network.score(matrix.pattern, configs), strict=True))
    ranked = sorted((config.key for config in SpmmSpace(16)), key=scores.__getitem__)
    fastest, asked = {ranked[3], ranked[-1]}, []

    def measured(self, operands, measured_configs):
        asked.append([config.key for config in measured_configs])
        return {key: 1.0 + ranked.index(key) - 100 * (key in fastest) for key in asked[-1]}

    monkeypatch.setattr(KernelChooser, "_measured", measured)
    made = bench()
    networks = load_networks([Path(made.model)])
    chooser = KernelChooser(networks, made.static(), width=16, threads=1, timing=TIMING, seed=0)
    chosen = {name: config.key for name, config in chooser.choose(matrix).configs.items()}
    assert asked == [ranked[:5], ranked]
    assert chosen["cognate"] == ranked[0]
    assert chosen["cognate_5"] == chosen["optimum"] == ranked[3]
    assert chosen["default"] == SpmmSpace(16).default().key
    assert chosen["static"] == made.static().key


def test_a_wrong_product_is_refused(bench, tmp_path, monkeypatch):
    def wrong(matrix, config, *, threads):
        product = kernel_product(matrix, config, threads=threads)
        return lambda features: 1.01 * product(features)

    monkeypatch.setattr(bench_graphsage, "kernel_product", wrong)
    with pytest.raises(AssertionError, match=r"is wrong: scores or gradients are .* apart from those of float64"):
        bench(count=1).run(tmp_path)


def test_a_wrong_kernel_is_refused(bench, tmp_path, monkeypatch):
    bind = SpmmKernels.bind

    def halved(self, operands, config, result):
        call = bind(self, operands, config, result)
        return call if config["order"] == "natural" else lambda: (call(), np.multiply(result, 0.5, out=result))

    monkeypatch.setattr(SpmmKernels, "bind", halved)
    with pytest.raises(AssertionError, match=r"spmm with .*order=column.* is wrong"):
        bench(count=1).run(tmp_path)


def test_a_network_that_has_seen_a_graph_is_refused(bench, tmp_path):
    seen = bench().entries()[1].name
    with pytest.raises(ValueError, match=rf"has learned from 1 of 2 timed graphs \({seen}.*: choose another corpus"):
        bench([*LEARNED, seen]).run(tmp_path)


def test_metrics_are_geometric_means_over_matrices():
    row = partial(dict, aggregation_share=0.5, choice_seconds=3.0, product_seconds=1.0, transposed_seconds=1.0)
    taken = {"default": (4.0, 4.0), "cognate": (2.0, 4.0), "optimum": (1.0, 4.0)}
    frame = pd.DataFrame([
        row(matrix=matrix, stage="training", method=method, median=seconds) for method, both in taken.items()
        for matrix, seconds in zip("ab", both, strict=True)])
    found = graphsage_metrics(frame, seed=0)
    assert found["training/cognate/speedup"] == pytest.approx(2**0.5)
    assert found["training/cognate/of_optimum"] == pytest.approx(0.5**0.5)
    assert found["training/cognate/aggregation_share"] == 0.5
    assert found["training/cognate/choice_steps"] == 0.75
    assert found["spmm/cognate/speedup"] == 1
