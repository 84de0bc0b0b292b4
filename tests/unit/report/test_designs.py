"""Pareto fronts of designs, and the effect of chosen programs."""

import numpy as np
import pandas as pd
import pytest

from sparloom.report import DESIGN_METHODS, design_gains, design_metrics, draw_designs, pareto, per_design

COSTS = {"pes=1": 0.5, "pes=2": 1.0, "pes=4": 2.0}
SPEEDUPS = {"default": (0.5, 1.0, 1.5), "transferred": (1.0, 1.6, 2.0), "learned": (1.1, 1.5, 1.9),
            "optimum": (1.2, 1.8, 2.5)}


@pytest.fixture
def table():
    rows = [{"design": design, "method": method, "matrix": matrix, "seed": 0, "speedup": speedup * factor}
            for method, speedups in SPEEDUPS.items() for design, speedup in zip(COSTS, speedups, strict=True)
            for matrix, factor in (("a", 1.0), ("b", 1.0))]
    made = per_design(pd.DataFrame(rows), COSTS)
    return made.assign(pes=made["design"].str.removeprefix("pes=").astype(float))


def beaten(place: int, costs: np.ndarray, speedups: np.ndarray) -> bool:
    """Compare the designs one by one, by the definition."""
    for cost, speedup in zip(costs, speedups, strict=True):
        if cost <= costs[place] and speedup >= speedups[place] and (cost < costs[place] or speedup > speedups[place]):
            return True
    return False


@pytest.mark.parametrize("seed", range(20))
def test_front_has_the_designs_that_no_other_dominates(seed):
    rng = np.random.default_rng(seed)
    costs, speedups = rng.integers(1, 8, (2, int(rng.integers(1, 25)))).astype(float)  # with ties
    expected = [not beaten(place, costs, speedups) for place in range(len(costs))]
    assert pareto(costs, speedups).tolist() == expected


def test_rows_are_reduced_by_design_and_method():
    rows = [{"design": "pes=1", "method": "default", "matrix": matrix, "seed": seed, "speedup": speedup}
            for matrix, seed, speedup in (("a", 0, 1.0), ("a", 1, 4.0), ("b", 0, 8.0))]
    (row,) = per_design(pd.DataFrame(rows), COSTS).to_dict(orient="records")
    assert row["speedup"] == pytest.approx(4)  # a: 2, b: 8
    assert row["low"] == pytest.approx(2)
    assert row["high"] == pytest.approx(8)
    assert row["front"]


def test_chosen_programs_replace_hardware(table):
    metrics = design_metrics(table, baseline="pes=2")
    assert metrics["bought_back/default/cost"] == 1
    assert metrics["bought_back/transferred/cost"] == 0.5
    assert metrics["bought_back/optimum/speedup"] == pytest.approx(1.2)
    assert metrics["in_hardware/learned/cost"] == 2
    assert np.isnan(metrics["in_hardware/optimum/cost"])  # no default program reaches 1.8
    assert metrics["front/default/cost"] == 1
    assert metrics["front/transferred/cost"] == pytest.approx((1.0 * 0.5 * 0.5) ** (1 / 3))
    assert metrics["front/default/designs"] == 3
    assert metrics["gain/pes=2/default"] == pytest.approx(2)
    assert metrics["gain/pes=4/optimum"] == pytest.approx(2.5 / 1.8)
    assert metrics["of_optimum/optimum"] == pytest.approx(1)
    assert metrics["of_optimum/default_least"] == pytest.approx(0.5 / 1.2)


def test_gains_are_taken_with_all_else_equal():
    rows = [{"design": f"{pes},{kib}", "method": method, "cost": 1.0, "speedup": pes**power * kib, "pes": pes,
             "llc_kib": kib} for method, power in zip(DESIGN_METHODS, (1, 2, 3, 4), strict=True)
            for pes in (1, 2) for kib in (5, 1)]
    pes, llc = design_gains(pd.DataFrame(rows)).to_dict(orient="records")
    assert (pes["parameter"], pes["lower"], pes["value"]) == ("pes", 1, 2)
    assert [pes[method] for method in DESIGN_METHODS] == pytest.approx([2, 4, 8, 16])
    assert [llc[method] for method in DESIGN_METHODS] == pytest.approx([5] * 4)


def test_figure_shows_every_method_and_the_saving(table, tmp_path):
    draw_designs(table, tmp_path / "figure", title="three designs")
    text = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    for label in (*DESIGN_METHODS.values(), "50 % cheaper", "PEs 2 → 4"):
        assert f"<!-- {label}" in text
    assert (tmp_path / "figure.png").stat().st_size > 1000
