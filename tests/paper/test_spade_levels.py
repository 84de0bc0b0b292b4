"""The fast level T1 agrees with the line-accurate T0, in the committed run of both and in smaller runs."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from spade_cases import banded, grid, machine_of, shuffled, uniform

from sparloom.platforms.spade import (
    Agreement,
    both_levels,
    delaunay,
    grid_3d,
    kronecker,
    mycielskian,
    road,
    social,
    stratified,
    symmetric,
)
from sparloom.space import SpadeSpace
from sparloom.sparse import Pattern, SyntheticCorpus

pytestmark = [pytest.mark.paper, pytest.mark.cc]

RESULTS = Path(__file__).parents[2] / "results" / "validate_simulator"
OPS = pytest.mark.parametrize("op", ["spmm", "sddmm"])


def arrow(size: int, width: int) -> Pattern:
    rows = np.concatenate([np.arange(size - 1), np.repeat(np.arange(size), width)])
    return symmetric(rows, np.concatenate([np.arange(1, size), np.tile(np.arange(width), size)]), size)


def hubs(size: int, degree: int, count: int) -> Pattern:
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.repeat(np.arange(size), degree), np.repeat(rng.integers(0, size, count), size // 8)])
    return Pattern.from_coo(rows, rng.integers(0, size, rows.size), (size, size))


FAMILIES = {
    "plane": lambda: grid(60, 60),
    "space": lambda: grid_3d((9, 9, 9), reach=1.8),
    "delaunay": lambda: delaunay(3000, 0),
    "banded": lambda: banded(2000, 30, 5),
    "scrambled": lambda: shuffled(banded(2000, 20, 5)),
    "kronecker": lambda: kronecker(11, 14, 0),
    "uniform": lambda: uniform(4000, 5),
    "rectangular": lambda: uniform(1500, 10, cols=9000),
    "social": lambda: social(2500, 12, inside=0.5, group=60, seed=0),
    "road": lambda: road(8000, 0),
    "hubs": lambda: hubs(4000, 4, 8),
    "mycielskian": lambda: mycielskian(9),
    "arrow": lambda: arrow(3000, 3),
}


@OPS
def test_the_committed_run_keeps_the_bars(op):
    metrics = json.loads((RESULTS / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["matrices"] >= 24
    assert metrics["points"] == 2 * 64 * metrics["matrices"]
    assert metrics[f"{op}/error_median"] <= 0.15
    assert metrics[f"{op}/spearman_median"] >= 0.95
    assert metrics[f"{op}/spearman_p10"] >= 0.85
    assert metrics[f"{op}/traffic_median"] <= 0.10


@OPS
def test_the_committed_run_is_of_this_simulator(op):
    # Every configuration of the smallest matrices once more; a change of the model makes the run stale.
    samples = pd.read_parquet(RESULTS / "samples.parquet")
    table = pd.read_parquet(RESULTS / "per_matrix.parquet")
    chosen = {config.key: config for config in SpadeSpace(op)}
    name = table.loc[table["nnz"].idxmin(), "matrix"]
    rows = samples[(samples["op"] == op) & (samples["matrix"] == name)].iloc[::5]
    pattern = SyntheticCorpus(rows=[1000], variants=1, seed=0).load(name).pattern
    pairs = both_levels(pattern, op, width=256, configs=[chosen[key] for key in rows["config"]],
                        machine=machine_of("spade"))
    for key in ("fast", "reference", "fast_lines", "reference_lines"):
        np.testing.assert_allclose([getattr(pair, key) for pair in pairs], rows[key], rtol=1e-9)


@pytest.mark.exhaustive
@pytest.mark.slow
@OPS
def test_times_orders_and_traffic_agree_on_all_families_at_205_gb_per_s(op):
    machine, found = machine_of("spade", dram_gb_per_s=205), {}
    for name, make in FAMILIES.items():
        pairs = both_levels(make(), op, width=256, configs=stratified(SpadeSpace(op))[::5], machine=machine)
        found[name] = Agreement.of(pairs)
    assert np.median([each.error for each in found.values()]) <= 0.15
    assert max(each.error for each in found.values()) <= 0.25
    spearman = [each.spearman for each in found.values()]
    assert np.median(spearman) >= 0.95
    assert np.quantile(spearman, 0.1) >= 0.85
    assert np.median([each.traffic for each in found.values()]) <= 0.10
    assert np.exp(np.mean(np.log([each.regret for each in found.values()]))) <= 1.03
