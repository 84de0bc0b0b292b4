"""Figures of a bench of input-aware operations."""

from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.measure import geomean
from sparloom.report.dispatch import LARGE, OWN, PEERS, decision_regret, dispatch_seconds
from sparloom.report.figures import figure, logarithmic, op_title, save, styled, width_bars

__all__ = ["draw_dispatch"]


@styled
def draw_dispatch(
    per_case: pd.DataFrame, decisions: pd.DataFrame, candidates: pd.DataFrame, *, folder: Path,
    least_seconds: float = LARGE,
) -> None:
    """Draw speedups.png over each baseline, best.png over the best one by size, and regret.png of all ways.

    Args:
        least_seconds: of the best baseline, from which on a case is drawn.
    """
    seconds = dispatch_seconds(per_case)
    large = seconds[seconds["best"] >= least_seconds]
    if len(large):
        _draw_speedups(large, folder / "speedups")
        _draw_best(per_case, large, folder / "best")
    if len(candidates):
        _draw_regret(decision_regret(candidates, decisions[decisions["way"] != ""]), folder / "regret")


def _draw_speedups(large: pd.DataFrame, stem: Path) -> None:
    """A row of groups of bars for each operation."""
    ops = list(dict.fromkeys(large.index.get_level_values("op")))
    known = large.groupby("op").count().gt(0)
    shown = {op: [peer for peer in PEERS if peer in known and known.loc[op, peer]] for op in ops}
    drawn, panels = figure(1.2 + 1.6 * max(map(len, shown.values())), 2.6 * len(ops), rows=len(ops))
    for panel, (op, peers) in zip(panels, shown.items(), strict=True):
        rows = large.xs(op, level="op")
        found = {(peer, int(width)): own.to_numpy()
                 for peer in peers for width, own in (rows[peer] / rows[OWN]).dropna().groupby("width")}
        width_bars(panel, found, {peer: PEERS[peer][1] for peer in peers})
        logarithmic(panel)
        panel.set_xticks(range(len(peers)), [PEERS[peer][0] for peer in peers], fontsize=8)
        panel.set_ylabel("times as fast")
        panel.set_title(f"{op_title(op)}, over each baseline, by width")
    save(drawn, stem)


def _draw_best(per_case: pd.DataFrame, large: pd.DataFrame, stem: Path) -> None:
    """Every case by the nonzeros of its matrix."""
    nonzeros = per_case.drop_duplicates("matrix").set_index("matrix")["nnz"]
    ops = list(dict.fromkeys(large.index.get_level_values("op")))
    colours = {width: f"C{place}" for place, width in enumerate(sorted(set(large.index.get_level_values("width"))))}
    drawn, panels = figure(3.4 * len(ops), 3.2, columns=len(ops))
    for panel, op in zip(panels, ops, strict=True):
        rows = large.xs(op, level="op")
        for width, own in rows.groupby("width"):
            at = nonzeros.loc[own.index.get_level_values("matrix")]
            panel.plot(at, own["best"] / own[OWN], "o", color=colours[width], markersize=2.5, alpha=0.6,
                       label=f"{width}")
        panel.set_xscale("log")
        logarithmic(panel)
        panel.set_xlabel("nonzeros")
        panel.set_title(op_title(op))
    panels[0].set_ylabel("times as fast as the best baseline")
    panels[-1].legend(title="width", fontsize=7, title_fontsize=8)
    save(drawn, stem)


def _draw_regret(judged: pd.DataFrame, stem: Path) -> None:
    """A dot for every case, a bar for the geometric mean."""
    first = judged[judged["repeat"] == 0]
    ways = list(dict.fromkeys(first["way"]))
    drawn, (panel,) = figure(1.4 + 0.8 * len(ways), 3.2)
    for place, way in enumerate(ways):
        values = first.loc[first["way"] == way, "regret"].to_numpy()
        panel.bar(place, geomean(values) - 1, width=0.6, bottom=1, color="#b5443c" if way == "default" else "#c8c8c8")
        panel.scatter(np.full(values.size, place), values, s=5, color="#2b2b2b", alpha=0.5, linewidth=0)
    panel.set_xticks(range(len(ways)), [way.replace("_", "\n") for way in ways], fontsize=8)
    panel.set_ylabel("times as slow as the best candidate")
    panel.set_title("regret of decisions")
    save(drawn, stem)
