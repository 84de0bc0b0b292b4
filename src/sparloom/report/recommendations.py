"""What recommendations lose and how long they take, matrix by matrix."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator

from sparloom.report.figures import COLOURS, TICKS, figure, save, styled

__all__ = ["draw_recommendations"]


@styled
def draw_recommendations(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw regrets, sorted, and seconds against nonzeros.

    Args:
        frame: per_matrix.parquet of a run of `bench_recommend`.
    """
    drawn, (left, right) = figure(7.2, 3.2, columns=2)
    places = np.arange(1, len(frame) + 1)
    for top, label, style in (("top1", "first choice", "o"), ("top5", "best of five", "-")):
        regret = np.sort((frame[f"{top}_seconds"] / frame["best_seconds"]).to_numpy())
        left.plot(places, regret, style, color=COLOURS["cognate" if top == "top1" else "optimum"], markersize=3,
                  linewidth=1.2, label=label)
    left.set_yscale("log")
    left.yaxis.set_major_locator(FixedLocator([1, 1.1, 1.2, 1.3, *TICKS[4:]]))
    left.yaxis.set_minor_locator(NullLocator())
    left.yaxis.set_major_formatter("{x:g}")
    left.set_xlabel("matrices, by regret")
    left.set_ylabel("seconds over the best of all")
    left.set_title(title)
    after = frame["rank_seconds"] + frame["draw_seconds"]
    for seconds, label, colour in ((after, "after reading", COLOURS["cognate"]),
                                   (frame["read_seconds"], "reading", COLOURS["trees"])):
        right.scatter(frame["nnz"], seconds, s=9, color=colour, label=label)
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xlabel("nonzeros")
    right.set_ylabel("seconds")
    handles, labels = (first + second for first, second in zip(
        left.get_legend_handles_labels(), right.get_legend_handles_labels(), strict=True))
    drawn.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    save(drawn, stem)
