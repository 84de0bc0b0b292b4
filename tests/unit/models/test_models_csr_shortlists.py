"""Trained models supply the shortlists of sparse operations: only their candidates are measured."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from kept_files import kept_files
from model_parts import small_net

import sparloom
from sparloom.data import coarsen
from sparloom.errors import SchemaError, Unsupported
from sparloom.models import (
    Autoencoder,
    CognateModel,
    conv_flops,
    load_networks,
    load_trees,
    ranking_loss,
)
from sparloom.models.performance import (
    SPMM_FEATURES,
    BoostingConfig,
    Measured,
    Origin,
    PerformanceModel,
    Target,
    save_performance,
    train_performance,
)
from sparloom.ops import CsrAttention, SpMM
from sparloom.space import Config, SddmmSpace, SpmmSpace
from sparloom.sparse import STATISTICS, Pattern, SparseMatrix, statistics
from sparloom.tuning import MeasurementBudget, PlanCache, search
from sparloom.tuning.sparse import CsrPolicy

GROWTH = BoostingConfig(
    trees=60, patience=10, leaves=15, depth=-1, rows_per_leaf=5, learning_rate=0.15, lasso=0.0, ridge=1.0,
    row_share=1.0, column_share=1.0, bins=255, threads=1, seed=0)
MACHINE = {"l1_bytes": 32e3, "l2_bytes": 1e6, "l3_bytes": 32e6, "threads": 2.0}
PATIENT = CsrPolicy(least_seconds=0, runs=1e9, effort=MeasurementBudget(candidates=6, seconds=30.0))
WIDTHS = (32, 128)


def uneven(seed: int, rows: int = 400) -> SparseMatrix:
    """Rows of geometric lengths, longest first, with random columns."""
    rng = np.random.default_rng(seed)
    lengths = np.sort(np.minimum(rng.geometric(0.08, rows), rows // 2))[::-1]
    pattern = Pattern.from_coo(np.repeat(np.arange(rows), lengths), rng.integers(0, rows, lengths.sum()), (rows, rows))
    return SparseMatrix(pattern, np.ones(pattern.nnz, np.float32))


def seconds(config: Config, favourite: str) -> float:
    """Return seconds of a machine that favours one way of sharing rows, and far prefetching."""
    return 1e-5 * (1 + 1.0 * (config["balance"] != favourite) + 0.1 * (config["prefetch"] != 8))


def trees(favourite: str) -> PerformanceModel:
    """A performance model of SpMM on that machine."""
    configs = tuple(SpmmSpace(128))
    known = [(statistics(uneven(seed).pattern), width) for seed in range(6) for width in WIDTHS]
    problems = {name: np.array([numbers[name] for numbers, _ in known], np.float64) for name in STATISTICS}
    problems |= {"width": np.array([width for _, width in known], np.float64)}
    problems |= {name: np.full(len(known), value) for name, value in MACHINE.items()}
    measured = Measured(
        problems=problems, groups=tuple(str(place // len(WIDTHS)) for place in range(len(known))), configs=configs,
        seconds=np.array([[seconds(config, favourite) for config in configs] for _ in known]))
    return train_performance(measured, spec=SPMM_FEATURES, target=Target("latency", "log"),
                             origin=Origin("cpu_kernels", "t2", SpmmSpace(128).digest(), MACHINE), growth=GROWTH,
                             folds=3)


@pytest.fixture(scope="module")
def saved_trees(tmp_path_factory) -> dict[str, Path]:
    """Folders of two models, as experiment=fit_trees lays them out."""
    folder = tmp_path_factory.mktemp("trees")
    for favourite in ("rows", "dynamic"):
        save_performance(folder / favourite / "full", trees(favourite))
    return {favourite: folder / favourite for favourite in ("rows", "dynamic")}


def network(width: int, favourite: str, steps: int = 0) -> CognateModel:
    """A small network of SpMM, trained on that machine for some steps."""
    space, net = SpmmSpace(width), small_net()
    encoder = Autoencoder(width=8, hidden=16, epochs=20, batch_size=32, learning_rate=1e-2)
    net.use_encoder(encoder.fit(space.heterogeneous_codes(), platform=space.name, seed=0))
    inputs = [coarsen(uneven(seed).pattern, name=str(seed), cost=conv_flops) for seed in range(2)]
    net.standardise(inputs)
    configs = list(space)
    taken = torch.tensor([seconds(config, favourite) for config in configs])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(steps):
        given = inputs[step % 2]
        shared, codes = map(torch.from_numpy, space.bind(given.shape).vectors(configs))
        scores = net.score(net.embed([given]).expand(len(configs), -1), shared, codes)
        optimizer.zero_grad()
        ranking_loss(scores, (taken[:, None] - taken[None, :]).sign(), margin=1.0).backward()
        optimizer.step()
    return CognateModel(net, space)


@pytest.fixture(scope="module")
def saved_network(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("network") / "finetuned.pt"
    network(32, "rows", steps=60).save(path, notes={"width": 32}, precision="float32")
    return path


def measured_by(cache: PlanCache, **source: object) -> list[Config]:
    """Return the configurations that a decision about SpMM measured, without the default one."""
    matrix = uneven(50)
    ready = sparloom.prepare(matrix, threads=2, cache=cache, policy=PATIENT, **source)
    plan = ready.plan("spmm", B=np.ones((matrix.pattern.cols, 32), np.float32))
    keys = dict.fromkeys(trial.candidate for trial in plan.decision.trials)
    return [Config.parse("cpu_kernels", key) for key in keys if key != "scipy"][1:]


@pytest.mark.cc
def test_trees_select_the_measured_candidates(saved_trees, tmp_path):
    by_formula = measured_by(PlanCache(tmp_path))
    assert len({config["balance"] for config in by_formula}) > 1  # the estimate has no favourite
    for favourite, folder in saved_trees.items():
        proposed = measured_by(PlanCache(tmp_path), shortlist="trees", model=folder)
        assert {config["balance"] for config in proposed} == {favourite}
        assert [config["prefetch"] for config in proposed][:4] == [8] * 4  # all that there are come first


@pytest.mark.cc
def test_a_network_selects_the_measured_candidates(saved_network, tmp_path):
    proposed = measured_by(PlanCache(tmp_path), shortlist="model", model=[saved_network])
    assert sum(config["balance"] == "rows" for config in proposed) >= len(proposed) - 1


@pytest.mark.cc
def test_the_environment_chooses_a_model(saved_trees, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOSAGE_SHORTLIST", "trees")
    monkeypatch.setenv("AUTOSAGE_SHORTLIST_MODEL", str(saved_trees["rows"] / "full"))
    assert {config["balance"] for config in measured_by(PlanCache(tmp_path))} == {"rows"}
    assert len({config["balance"] for config in measured_by(PlanCache(tmp_path), shortlist="estimate")}) > 1


@pytest.mark.cc
def test_cached_decisions_belong_to_one_model(saved_trees, tmp_path, monkeypatch):
    cache, sources = PlanCache(tmp_path), [
        {}, {"shortlist": "all"}, *({"shortlist": "trees", "model": folder} for folder in saved_trees.values())]
    first = [measured_by(cache, **source) for source in sources]
    kept = kept_files(tmp_path, "csr")
    assert len(kept) == len(sources)
    monkeypatch.setattr(search, "_opened", None)  # what is kept runs without any model
    assert [measured_by(cache, **source) for source in sources] == first
    assert kept_files(tmp_path, "csr") == kept


@pytest.mark.cc
def test_unsupported_operations_use_the_formula_with_one_warning(saved_trees, tmp_path, caplog):
    search._warn_once.cache_clear()
    matrix = uneven(51)
    dense = {"B": np.ones((400, 16), np.float32), "C": np.ones((400, 16), np.float32)}
    with caplog.at_level(logging.WARNING):
        for number in range(2):
            ready = sparloom.prepare(matrix, threads=2, cache=PlanCache(tmp_path / str(number)), policy=PATIENT,
                                     shortlist="trees", model=saved_trees["rows"])
            assert ready.plan("sddmm", **dense).decision.origin == "measured"
    assert [record.getMessage() for record in caplog.records] == [
        "shortlists of sddmm are made by the formula: there are trees only for spmm"]


def test_trees_refuse_unknown_problems(saved_trees, tmp_path):
    costs = load_trees([saved_trees["rows"] / "full"], threads=2)
    matrix = uneven(53)
    with pytest.raises(Unsupported, match="there are trees only for spmm"):
        costs.score("attention", CsrAttention().operands(matrix, 8, seed=0), list(SpmmSpace(8)))
    operands = SpMM().operands(matrix, 8, seed=0)
    with pytest.raises(Unsupported, match="score configurations of cpu_kernels, not of cuda_kernels"):
        costs.score("spmm", operands, [Config("cuda_kernels", (("lanes", 8),))])
    with pytest.raises(Unsupported, match=r"the trees of spmm read .*, which the configurations do not have"):
        costs.score("spmm", operands, list(SddmmSpace(8)))
    empty = SparseMatrix(Pattern.from_coo([], [], (5, 5)), np.zeros(0, np.float32))
    with pytest.raises(Unsupported, match="trees do not apply where nnz == 0"):
        costs.score("spmm", SpMM().operands(empty, 8, seed=0), list(SpmmSpace(8)))
    with pytest.raises(SchemaError, match=r"holds no performance model .* run experiment=fit_trees"):
        load_trees([tmp_path], threads=2)


def test_a_network_is_restored_from_its_file_alone(tmp_path):
    model, matrix = network(128, "rows", steps=1), uneven(54)
    model.save(tmp_path / "one.pt", notes={"width": 128}, precision="float32")
    costs, configs = load_networks([tmp_path / "one.pt"], threads=2), list(SpmmSpace(128))
    expected = model.score(matrix.pattern, configs)
    assert np.ptp(expected) > 0
    for width in (128, 256):  # the network of the nearest width is asked
        np.testing.assert_array_equal(costs.score("spmm", SpMM().operands(matrix, width, seed=0), configs), expected)


def test_a_network_refuses_unknown_problems(tmp_path):
    model, matrix = network(32, "rows"), uneven(56)
    model.save(tmp_path / "good.pt", notes={"width": 32}, precision="float32")
    costs = load_networks([tmp_path / "good.pt"], threads=2)
    with pytest.raises(Unsupported, match="there are networks only for spmm"):
        costs.score("sddmm", SpMM().operands(matrix, 8, seed=0), list(SddmmSpace(8)))
    with pytest.raises(Unsupported, match=r"network of spmm with 32 columns: .*strip=64"):
        costs.score("spmm", SpMM().operands(matrix, 128, seed=0), list(SpmmSpace(128)))
    empty = SparseMatrix(Pattern.from_coo([], [], (5, 5)), np.zeros(0, np.float32))
    with pytest.raises(Unsupported, match="the matrix has no nonzeros"):
        costs.score("spmm", SpMM().operands(empty, 8, seed=0), list(SpmmSpace(8)))
    model.save(tmp_path / "other.pt", notes={"width": 64}, precision="float32")
    with pytest.raises(SchemaError, match=r"the space has changed, run .* op=spmm target\.width=64"):
        load_networks([tmp_path / "other.pt"], threads=2)
    model.save(tmp_path / "unsaid.pt", notes={}, precision="float32")
    with pytest.raises(SchemaError, match="is a network of spmm for width None"):
        load_networks([tmp_path / "unsaid.pt"], threads=2)
