"""Reduce benchmarks of sparse kernels: over libraries, in GraphSAGE, accuracy of probes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.measure import kendall_tau
from sparloom.report.figures import draw_means, figure, logarithmic, op_title, save, styled
from sparloom.report.runs import ratio_bounds

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
STAGES: Mapping[str, str] = {"inference": "inference", "training": "training step"}
CHOICES: Mapping[str, tuple[str, str]] = {
    "adapted": ("default, adapted to sizes", "#c8c8c8"), "static": ("static", "#9a9a9a"),
    "cognate": ("COGNATE", "#b5443c"), "cognate_5": ("COGNATE, best of 5", "#d9a441"),
    "optimum": ("optimum, measured", "#2b2b2b"), "sparloom": ("our layers", "#5f7fa8"),
    "pyg_csr": ("PyG, CSR", "#7aa974"), "pyg_csr_int32": ("PyG, int32", "#a3c79e"),
    "pyg_edge_index": ("PyG, edges", "#8064a2"), "pyg_torch_sparse": ("PyG, SparseTensor", "#c58fbf"),
}
"""Methods of `bench_graphsage` beside the default -> name and colour."""

PAPER: Mapping[str, float] = {"inference": 1.30, "training": 1.28}
"""COGNATE over SparseTIR's default kernel on a GPU, for the matrix transient, COGNATE §4.3."""

PRODUCTS: Mapping[str, str] = {"spmm": "product_seconds", "spmm_transposed": "transposed_seconds"}


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


def probe_metrics(per_case: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce samples of each kind and share.

    Args:
        per_case: as for `probe_frame`.
        seed: of the bootstrap over cases.

    Returns:
        For each kind of sample and share, `<kind>/<share>/...`, and by operation: `error`, by what factor the seconds
        of a kernel over those of the safe one are missed, geometric mean over cases of the median over kernels;
        `spread`, that factor between draws of one share, one standard deviation; `regret`, how many times as long the
        kernel that was fastest on the sample takes on all rows as the fastest there; `tau`, Kendall's correlation of
        the two orders, mean over draws. Factors have bounds, see `ratio_bounds`. `safe/regret`, and by operation
        `safe/<op>/regret`, is what to take the safe kernel costs, without any measurement.
    """
    frame = probe_frame(per_case)
    whole = frame[frame["sample"] == AGAIN].set_index(CASE)
    unmeasured = whole.loc[whole["safe"], "whole"] / whole.groupby(level=CASE)["whole"].min()
    found = ratio_bounds(f"{SAFE}/regret", unmeasured, seed=seed)
    for op, rows in unmeasured.groupby(level="op", sort=False):
        found |= ratio_bounds(f"{SAFE}/{op}/regret", rows, seed=seed)
    for (sample, share), rows in frame.groupby(["sample", "share"], sort=False):
        found |= _reduced(f"{sample}/{share:g}", rows, seed)
        for op, part in rows.groupby("op", sort=False):
            found |= _reduced(f"{sample}/{share:g}/{op}", part, seed)
    return found


def _reduced(key: str, rows: pd.DataFrame, seed: int) -> dict[str, float]:
    others = rows[~rows["safe"]]
    missed = np.log(others["predicted"] / others["truth"])
    error = np.exp(missed.abs().groupby([others[name] for name in CASE]).median())
    found = ratio_bounds(f"{key}/error", error, seed=seed)
    spread = missed.groupby([others[name] for name in [*CASE, "config"]]).std()
    found |= ratio_bounds(f"{key}/spread", np.exp(spread.groupby(level=CASE).median()), seed=seed)
    draws = [draw for _, draw in rows.groupby(DRAW, sort=False)]
    regret = pd.Series([draw.loc[draw["predicted"].idxmin(), "whole"] / draw["whole"].min() for draw in draws])
    found |= ratio_bounds(f"{key}/regret", regret, seed=seed)
    return found | {f"{key}/tau": float(np.nanmean([
        kendall_tau(draw["predicted"].to_numpy(), draw["truth"].to_numpy()) for draw in draws]))}


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


def graphsage_metrics(per_case: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce steps of GraphSAGE to speedups over the default configuration.

    Args:
        per_case: per_case.parquet of `bench_graphsage`.
        seed: of the bootstrap over matrices.

    Returns:
        By stage, "inference" and "training": `<stage>/matrices`; `<stage>/<method>/speedup` over the default, and
        `<stage>/<method>/of_optimum`, the seconds of "optimum" over those of the method, above 1 if fastest products
        do not make the fastest step: geometric means with bounds as of `ratio_bounds`;
        `<stage>/<method>/aggregation_share` of the step's seconds in sparse products, median, of methods that choose
        kernels; `<stage>/<method>/choice_steps`, what choosing takes in steps of the default, median.
        `spmm/<method>/speedup` and `spmm_transposed/<method>/speedup` of the products alone; for "optimum" it is too
        high by the noise of one measurement, because the same seconds choose and judge.
    """
    found: dict[str, float] = {}
    timed = per_case[per_case["median"].notna()]
    for stage, rows in timed.groupby("stage", sort=False):
        seconds = rows.pivot(index="matrix", columns="method", values="median")
        found[f"{stage}/matrices"] = len(seconds)
        for method in ("default", *(method for method in CHOICES if method in seconds)):
            key, of_method = f"{stage}/{method}", rows[rows["method"] == method].set_index("matrix")
            found |= ratio_bounds(f"{key}/speedup", seconds["default"] / seconds[method], seed=seed)
            found |= ratio_bounds(f"{key}/of_optimum", seconds["optimum"] / seconds[method], seed=seed)
            if of_method["aggregation_share"].notna().any():
                cost = of_method["choice_seconds"] / seconds["default"]
                found |= {f"{key}/aggregation_share": float(of_method["aggregation_share"].median()),
                          f"{key}/choice_steps": float(cost.median())}
    for product, column in PRODUCTS.items():
        seconds = timed[timed["stage"] == "training"].pivot(index="matrix", columns="method", values=column)
        for method in (method for method in CHOICES if method in seconds):
            found |= ratio_bounds(f"{product}/{method}/speedup", seconds["default"] / seconds[method], seed=seed)
    return found


def draw_graphsage(per_case: pd.DataFrame, stem: Path) -> None:
    """Draw the speedup of every matrix and the geometric mean of each method over the default, a panel per stage."""
    timed, panels = per_case[per_case["median"].notna()], {}
    for stage, title in STAGES.items():
        seconds = timed[timed["stage"] == stage].pivot(index="matrix", columns="method", values="median")
        panels[f"{title}, {len(seconds)} graphs (the paper, on a GPU: {PAPER[stage]:.2f})"] = {
            (method, ""): (seconds["default"] / seconds[method]).dropna().to_numpy()
            for method in CHOICES if method in seconds}
    draw_means(panels, CHOICES, stem, y="times as fast as the default", size=(10.5, 3.8), fontsize=7, rotation=60,
               ha="right")
