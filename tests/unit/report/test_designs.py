"""Gains of designs, and their figure."""

import pandas as pd
import pytest

from sparloom.report import DESIGN_METHODS, design_gains, draw_designs

COSTS = {"pes=1": 0.5, "pes=2": 1.0, "pes=4": 2.0}
SPEEDUPS = {"default": (0.5, 1.0, 1.5), "transferred": (1.0, 1.6, 2.0), "learned": (1.1, 1.5, 1.9),
            "optimum": (1.2, 1.8, 2.5)}


@pytest.fixture
def table():
    rows = [{"design": design, "method": method, "cost": COSTS[design], "speedup": speedup, "front": True,
             "pes": float(design.removeprefix("pes="))}
            for method, speedups in SPEEDUPS.items() for design, speedup in zip(COSTS, speedups, strict=True)]
    return pd.DataFrame(rows)


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
