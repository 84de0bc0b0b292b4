"""A performance model trained on samples supplies the shortlist."""

import numpy as np
import pytest

from sparloom.fusion import TileFusionSpace
from sparloom.models.performance import (
    BoostingConfig,
    Feature,
    FeatureSpec,
    Measured,
    Origin,
    Target,
    train_performance,
)
from sparloom.ops import GemmSpmm
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import LearnedPairCosts, PairCostModel, Problem, pair_numbers
from sparloom.tuning.fusion import shortlist

N, WIDTHS = 6000, (16, 32, 64)
GROWTH = BoostingConfig(
    trees=60, patience=10, leaves=15, depth=-1, rows_per_leaf=5, learning_rate=0.15, lasso=0.0, ridge=1.0,
    row_share=1.0, column_share=1.0, bins=255, threads=1, seed=0)
SPEC = FeatureSpec(
    op="gemm_spmm", version=1, fallback="nnz == 0",
    features=(
        *(Feature(name, "problem", name, "1")
          for name in ("rows", "nnz", "width", "inner", "fused_1024", "fused_8192")),
        Feature("flops", "problem", "2 * width * (rows * inner + nnz)", "flop"),
        Feature("bytes", "problem", "8 * nnz + 4 * rows * (inner + width)", "B"),
        Feature("ct_size", "kernel", "ct_size", "iterations"),
        Feature("local", "kernel", "local", "1"),
        Feature("fused", "interaction",
                "(ct_size > 0) * ((ct_size > 1024) * fused_8192 + (ct_size <= 1024) * fused_1024)", "1"),
    ))
SPACE = TileFusionSpace("gemm_spmm", ("natural",))


def problem(reach: int, width: int = 64) -> Problem:
    columns = np.clip(np.arange(N)[:, None] + np.array([-reach, 0, reach]), 0, N - 1)
    pattern = Pattern.from_coo(np.repeat(np.arange(N), 3), columns.ravel(), (N, N))
    op = GemmSpmm()
    return Problem.of(op, op.operands(SparseMatrix(pattern, np.ones(pattern.nnz)), width, seed=0))


def seconds(numbers, config) -> float:
    """Return seconds of a machine on which fusion gains by the fused rows, and local rows of D1 gain, too."""
    fused = numbers["fused_8192" if config["ct_size"] > 1024 else "fused_1024"] if config["ct_size"] else 0.0
    return 1e-9 * numbers["nnz"] * numbers["width"] * (
        1 + 0.1 * bool(config["ct_size"]) - (0.6 + 0.1 * config["local"]) * fused)


@pytest.fixture(scope="module")
def model() -> LearnedPairCosts:
    configs = (*SPACE.sample(40, np.random.default_rng(0)), SPACE.default())
    known = [pair_numbers(problem(reach, width), threads=2) for reach in (1, 40, 300, 900, 2900) for width in WIDTHS]
    measured = Measured(
        problems={name: np.array([numbers[name] for numbers in known]) for name in known[0]},
        groups=tuple(f"matrix {place // len(WIDTHS)}" for place in range(len(known))), configs=configs,
        seconds=np.array([[seconds(numbers, config) for config in configs] for numbers in known]))
    trained = train_performance(measured, spec=SPEC, target=Target("latency", "log"),
                                origin=Origin("cpu", "t2", SPACE.digest(), {}), growth=GROWTH, folds=3)
    return LearnedPairCosts(trained, threads=2)


def test_it_is_a_cost_model(model: PairCostModel):
    configs = list(SPACE)
    scores = model.score(problem(1), configs)
    assert scores.shape == (len(configs),)
    assert np.isfinite(scores).all()


def test_it_prefers_fast_configurations(model):
    near = problem(60)
    scores = dict(zip(SPACE, model.score(near, list(SPACE)), strict=True))
    large, small = (SPACE.config(ct_size=size, cache=4096, local=1) for size in (8192, 1024))
    assert scores[large] < scores[small]


def test_the_shortlist_is_its(model):
    chosen = shortlist(model, problem(60), SPACE, threads=2, count=4)
    assert len(chosen) == 4
    assert chosen[0]["local"] == 1
    assert all(config["ct_size"] > 0 for config in chosen)
