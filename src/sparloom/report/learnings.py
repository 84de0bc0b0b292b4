"""What a source learned about trees, put to the test: a statistic, its bounds, and what follows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom.report.efficiency import REDUCTIONS, bounded, draws_of
from sparloom.report.figures import figure, save, styled

__all__ = ["Learning", "contrast", "draw_learnings", "learnings_table", "slice_lead", "verdict"]

COLOURS = {"holds": "#7aa974", "does not hold": "#b5443c", "cannot say": "#9a9a9a"}


@dataclass(frozen=True)
class Learning:
    """One test of a learning.

    Args:
        number: of the learning in the source.
        key: of the test, in metrics.
        claim: what the source says, in few words.
        measure: what the value is; above 0 speaks for the claim.
        value, low, high: with its 95 % bounds.
    """

    number: int
    key: str
    claim: str
    measure: str
    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What the bounds allow to say."""
        return verdict(self.low, self.high)


def verdict(low: float, high: float) -> str:
    """Say that a claim holds when all of its interval is above 0, that it does not when all is below or at 0."""
    if low > 0:
        return "holds"
    return "does not hold" if high <= 0 else "cannot say"


def contrast(
    rows: pd.DataFrame, weights: Mapping[str, float], *, statistic: str = "mean", seed: int
) -> tuple[float, float, float]:
    """Weighted sum of a statistic of the efficiencies of methods on the same problems, with 95 % bounds.

    Args:
        weights: by method, such as {"better": 1, "worse": -1}.
        statistic: "mean" or "p10".
    """
    table = rows.pivot(index=["group", "matrix", "width"], columns="method", values="efficiency")
    columns = {method: table[method].to_numpy() for method in weights}
    reduce = REDUCTIONS[statistic]

    def combined(draw: np.ndarray) -> float:
        return sum(weight * reduce(columns[method][draw]) for method, weight in weights.items())

    groups = table.index.get_level_values("group")
    spread = [combined(draw) for draw in draws_of(groups, seed=seed)]
    return tuple(bounded("value", combined(np.arange(len(groups))), spread).values())


def slice_lead(rows: pd.DataFrame, method: str, hard: str, *, seed: int) -> tuple[float, float, float]:
    """Mean efficiency of a method on all other slices less that on one, with 95 % bounds; each side is resampled."""
    own = rows[rows["method"] == method]
    sides = [own[own["slice"] != hard], own[own["slice"] == hard]]
    means = [side["efficiency"].mean() for side in sides]
    spreads = [[side["efficiency"].to_numpy()[draw].mean() for draw in draws_of(side["group"], seed=seed + place)]
               for place, side in enumerate(sides)]
    return tuple(bounded("value", means[0] - means[1], np.subtract(*spreads)).values())


def learnings_table(learnings: Sequence[Learning]) -> Table:
    """Lay out all tests."""
    table = Table(box=None, pad_edge=False, header_style="bold", title="what the source learned, on our data",
                  title_justify="left")
    for heading in ("", "claim", "measured", "value", "95 %", "verdict"):
        table.add_column(heading, justify="right" if heading in ("value", "95 %") else "left")
    for entry in learnings:
        table.add_row(str(entry.number), entry.claim, entry.measure, f"{entry.value:+.4f}",
                      f"{entry.low:+.4f} to {entry.high:+.4f}", entry.verdict)
    return table


@styled
def draw_learnings(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw every value with its bounds; right of 0 speaks for the claim.

    Args:
        frame: learnings.parquet of a run of `check_learnings`.
    """
    drawn, (axes,) = figure(9.6, 1.4 + 0.36 * len(frame))
    for place, row in enumerate(frame.itertuples()):
        colour = COLOURS[verdict(row.low, row.high)]
        axes.plot([row.low, row.high], [-place, -place], color=colour, linewidth=2)
        axes.plot(row.value, -place, "o", color=colour, markersize=5)
    for label, colour in COLOURS.items():
        axes.plot([], [], color=colour, linewidth=2, label=label)
    axes.axvline(0, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_yticks(-np.arange(len(frame)), [f"{row.number}  {row.measure}" for row in frame.itertuples()], fontsize=8)
    axes.set_ylim(0.6 - len(frame), 0.6)
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("right of 0 speaks for the claim")
    axes.set_title(title)
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=3, fontsize=9)
    save(drawn, stem)

