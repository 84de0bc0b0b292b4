"""The fast level T1 stands for the line-accurate T0."""

import numpy as np
import pytest
from spade_cases import banded, grid, machine_of, shuffled, uniform

from sparloom.platforms.spade.agreement import agree, stratified
from sparloom.platforms.spade.standins import delaunay, grid_3d, kronecker, mycielskian, road, social, symmetric
from sparloom.space import SpadeSpace
from sparloom.sparse import Pattern

pytestmark = pytest.mark.paper


def arrow(size: int, width: int) -> Pattern:
    rows = np.concatenate([np.arange(size - 1), np.repeat(np.arange(size), width)])
    return symmetric(rows, np.concatenate([np.arange(1, size), np.tile(np.arange(width), size)]), size)


def hubs(size: int, degree: int, count: int) -> Pattern:
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.repeat(np.arange(size), degree), np.repeat(rng.integers(0, size, count), size // 8)])
    return Pattern.from_coo(rows, rng.integers(0, size, rows.size), (size, size))


FAMILIES = {
    "plane": (grid(60, 60), grid(110, 110)),
    "space": (grid_3d((9, 9, 9), reach=1.8), grid_3d((14, 14, 14), reach=1.8)),
    "delaunay": (delaunay(3000, 0), delaunay(10_000, 0)),
    "banded": (banded(2000, 30, 5), banded(7000, 60, 5)),
    "scrambled": (shuffled(banded(2000, 20, 5)), shuffled(banded(7000, 40, 5))),
    "kronecker": (kronecker(11, 14, 0), kronecker(13, 9, 0)),
    "uniform": (uniform(4000, 5), uniform(25_000, 3)),
    "rectangular": (uniform(1500, 10, cols=9000), uniform(20_000, 3, cols=3000)),
    "social": (social(2500, 12, inside=0.5, group=60, seed=0), social(9000, 8, inside=0.5, group=60, seed=0)),
    "road": (road(8000, 0), road(30_000, 0)),
    "hubs": (hubs(4000, 4, 8), hubs(12_000, 4, 10)),
    "mycielskian": (mycielskian(9), mycielskian(10)),
    "arrow": (arrow(3000, 3), arrow(9000, 3)),
}


def summary(found):
    column = {name: np.array([getattr(each, name) for each in found])
              for name in ("error", "spearman", "traffic", "regret")}
    return {
        "error": np.median(column["error"]), "worst": column["error"].max(), "traffic": np.median(column["traffic"]),
        "spearman": np.median(column["spearman"]), "decile": np.quantile(column["spearman"], 0.1),
        "regret": np.exp(np.mean(np.log(column["regret"]))),
    }


@pytest.mark.slow
@pytest.mark.parametrize("bandwidth", [58.6, 205])
@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_times_orders_and_traffic_agree_on_all_families(op, bandwidth):
    patterns = {f"{name} {size}": pair[size] for name, pair in FAMILIES.items() for size in (0, 1)}
    configs = stratified(SpadeSpace(op))
    assert (len(patterns), len(configs)) == (26, 64)
    found = summary(agree(patterns, op, width=256, configs=configs,
                          machine=machine_of("spade", dram_gb_per_s=bandwidth)))
    assert found["error"] <= 0.15
    assert found["worst"] <= 0.25
    assert found["spearman"] >= 0.95
    assert found["decile"] >= 0.85
    assert found["traffic"] <= 0.10
    assert found["regret"] <= 1.03


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_times_orders_and_traffic_agree_on_small_matrices(op):
    patterns = {name: FAMILIES[name][0] for name in ("plane", "banded", "uniform", "mycielskian")}
    configs = stratified(SpadeSpace(op))[::3]
    found = summary(agree(patterns, op, width=256, configs=configs, machine=machine_of("spade")))
    assert found["error"] <= 0.10
    assert found["worst"] <= 0.15
    assert found["decile"] >= 0.90
    assert found["traffic"] <= 0.05
