"""Draw benchmarks of sparse kernels: over libraries, and the accuracy of probes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.report.figures import draw_means, figure, logarithmic, op_title, save, styled

OWN = "own"
OPS: Mapping[str, str] = {"gemm": "tall GEMM", "spmm": "SpMM", "gemm_spmm": "GeMM-SpMM,\nunfused"}
PEERS: Mapping[str, tuple[str, str]] = {
    "mkl": ("MKL", "#7aa974"), "numba": ("Numba", "#d9a441"), "torch": ("torch", "#9a9a9a"),
    "scipy": ("SciPy", "#c8c8c8"),
}
CASE = ["op", "matrix", "width"]

DRAW = [*CASE, "sample", "share", "draw"]
AGAIN = "again"  # all rows, timed once more: what noise alone does
SAFE = "safe"  # the kernel that runs where nothing is measured
SAMPLES: Mapping[str, tuple[str, str]] = {
    "rows": ("whole rows", "#b5443c"), "subgraph": ("subgraph", "#9a9a9a"), AGAIN: ("all rows, again", "#2b2b2b"),
    SAFE: ("none, safe kernel", "")}


def draw_kernels(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw geometric mean speedups over each peer, a point per width, from per_matrix.parquet of `bench_kernels`."""
    found, looks = {}, {}
    for op, name in OPS.items():
        seconds = frame[frame["op"] == op].pivot(index=["matrix", "width"], columns="method", values="median")
        for peer in (peer for peer in PEERS if peer in seconds):
            ratio = (seconds[peer] / seconds[OWN]).dropna()
            looks[f"{op} {peer}"] = (f"{PEERS[peer][0]}\n{name}", PEERS[peer][1])
            found |= {(f"{op} {peer}", width): own.to_numpy() for width, own in ratio.groupby("width")}
    draw_means({title: found}, looks, stem, y="times as fast is our kernel", size=(8.4, 3.8))


def probe_frame(per_case: pd.DataFrame) -> pd.DataFrame:
    """Divide every kernel's seconds by those of the default kernel, on a sample and on all rows.

    All rows are judged by the odd repetitions; the even ones are the sample "again", with share 1, which shows how much
    of a difference is noise.

    Args:
        per_case: per_case.parquet of `check_probe`, the safe kernel first in each sample.

    Returns:
        A row for each kernel of each draw: whether it is `safe`, the ratios `predicted` and `truth`, and `whole`,
        seconds on all rows.
    """
    whole, samples = per_case[per_case["sample"] == "all"], per_case[per_case["sample"] != "all"]
    halves = [whole.assign(median=whole["seconds"].map(lambda taken, first=first: float(np.median(taken[first::2]))))
              for first in (0, 1)]
    predicted = pd.concat([halves[0].assign(sample=AGAIN), samples], ignore_index=True)
    truth = _over_safe(halves[1], CASE, "truth").rename(columns={"median": "whole"})
    return _over_safe(predicted, DRAW, "predicted")[[*DRAW, "config", "safe", "predicted"]].merge(
        truth[[*CASE, "config", "truth", "whole"]], on=[*CASE, "config"])


def _over_safe(frame: pd.DataFrame, keys: list[str], name: str) -> pd.DataFrame:
    first = frame.groupby(keys, sort=False)["median"].transform("first")
    return frame.assign(**{name: frame["median"] / first}, safe=~frame.duplicated(keys))


@styled
def draw_probe(per_case: pd.DataFrame, stem: Path) -> None:
    """Draw seconds over the default kernel's: on all rows against a sample of the middle share."""
    frame = probe_frame(per_case)
    shares = sorted(set(frame.loc[frame["sample"] != AGAIN, "share"]))
    middle = frame[frame["share"].isin([shares[len(shares) // 2], 1.0])]
    ops = list(dict.fromkeys(middle["op"]))
    drawn, panels = figure(3.2 * len(ops), 3.2, columns=len(ops))
    for panel, op in zip(panels, ops, strict=True):
        for sample in ("subgraph", "rows", AGAIN):
            rows = middle[(middle["op"] == op) & (middle["sample"] == sample)]
            panel.plot(rows["predicted"], rows["truth"], "o", color=SAMPLES[sample][1], markersize=2.5, alpha=0.5,
                       label=SAMPLES[sample][0])
        logarithmic(panel, both=True)
        panel.axline((1, 1), (2, 2), color="#2b2b2b", linewidth=0.8)
        panel.set(xlabel=f"predicted by {100 * shares[len(shares) // 2]:g} %", title=op_title(op))
    panels[0].set_ylabel("seconds over those of the safe kernel")
    panels[-1].legend(fontsize=7)
    save(drawn, stem)
