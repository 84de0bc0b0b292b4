"""Reduce benchmarks of tile fusion: metrics, tables, and the paper's Figures 2 and 4 to 10 as PNG and SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.measure import geomean
from sparloom.report.figures import Line, draw_lines, draw_means, op_title, ranked
from sparloom.report.runs import method_ratios, ratio_bounds

ANCHORS = ("lap2d", "lap3d", "band", "rmat17", "er", "comm")
"""Anchors of the geometric means; those in block order stand by themselves."""

PEERS = ("unfused", "separated", "fused", "local", "mkl", "torch", "scipy", "gemv", "blas_gemv", "listing", "atomic",
         "overlapped")
PAIRS = (*(("auto", peer) for peer in PEERS), ("unfused", "mkl"), ("unfused", "torch"), ("fused", "unfused"),
         ("local", "unfused"), ("separated", "unfused"), ("fused", "mkl"), ("coarse", "sequential"),
         ("fused", "coarse"))
CASE = ["part", "matrix", "op", "width", "threads"]
FUSES_WELL = 0.85  # share of rows that are fused
COLOURS: Mapping[str, str] = {
    "auto": "#b5443c", "fused": "#d9a441", "local": "#c98a6b", "unfused": "#5f7fa8", "separated": "#8fa9c9",
    "mkl": "#7aa974", "torch": "#9a9a9a", "scipy": "#c8c8c8", "atomic": "#8a6fa8", "overlapped": "#6f9aa8",
    "gemv": "#7d7d4d", "blas_gemv": "#a3a35f", "listing": "#4d4d4d", "coarse": "#5f7fa8", "sequential": "#2b2b2b",
}
NAMES: Mapping[str, str] = {
    "auto": "fuse=auto", "coarse": "step one", "sequential": "unfused, one thread",
    "unfused": "own unfused", "separated": "same tiles, nothing fused", "fused": "fused as in the paper",
    "local": "fused, local D1, streamed D", "mkl": "MKL", "torch": "torch", "scipy": "SciPy, one thread",
    "gemv": "tensor compiler, rows in registers", "blas_gemv": "tensor compiler, BLAS", "listing": "tensor compiler",
    "atomic": "atomic tiling", "overlapped": "overlapped tiling",
}
COMPARED = ("auto", "fused", "unfused", "mkl", "torch")
FUSED = ("auto", "fused", "local", "overlapped", "atomic", "gemv", "blas_gemv", "listing")
WHOLE_WIDTH = 7.2  # inches


def fusion_metrics(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce seconds over matrices.

    Args:
        frame: per_matrix.parquet of `bench_fusion`.
        seed: of the bootstrap over matrices.

    Returns:
        By operation and width, see `group_prefix`: `matrices`; `<a>_over_<b>`, how many times as fast as b method a
        is, as geometric mean over the matrices that have both, with its 95 % bounds `_low` and `_high`, the extremes
        `_min` and `_max`, and the `_share` above 1; `fused_share`, of matrices on which "auto" fuses;
        `fused_rows_median`; the cost of the inspector and of deciding in executions of the product, `_median` and
        `_max`; after how many runs either has paid where the fused code is faster, `_median` and `_p90`;
        `gain_<method>`, the median share of the time that even threads would save; `reused_flops_mean` and
        `access_unfused_over_fused`, see the columns that `bench_fusion` writes. `qualifying/...` is over matrices of
        which at least 85 % of the rows fuse and whose D1 exceeds the last cache; `scaling_<method>` is the time on one
        thread over that on all, where both are known.
    """
    found: dict[str, float] = {}
    for (part, op, width, threads), rows in frame.groupby(["part", "op", "width", "threads"], sort=False):
        prefix = group_prefix(part, op, width, threads, most=int(frame["threads"].max()))
        if part == "anchors":
            for matrix, own in rows.groupby("matrix", sort=False):
                found[f"{prefix}/{matrix}/auto_over_unfused"] = float(ratios(own, "auto", "unfused").iloc[0])
            rows = rows[rows["matrix"].isin(ANCHORS)]
            if rows.empty:
                continue
        found |= {f"{prefix}/{key}": value for key, value in _group(rows, seed).items()}
    return found | _scaling(frame)


def group_prefix(part: str, op: str, width: int, threads: int, *, most: int) -> str:
    """Name a group of metrics: `<op>/<width>`, `anchors/<op>/<width>` for anchors, followed by `/t1` on one thread."""
    name = f"{op}/{width}" if part == "real" else f"{part}/{op}/{width}"
    return name if threads == most else f"{name}/t{threads}"


def ratios(frame: pd.DataFrame, fast: str, slow: str) -> pd.Series:
    """Divide the seconds of `slow` by those of `fast`, by case, where both were timed."""
    return method_ratios(frame, fast, slow, case=CASE)


def ratio_means(frame: pd.DataFrame, fast: str = "auto") -> pd.DataFrame:
    """Average the speedups of one method over every other: (part, op, width, threads) x method.

    Geometric means over the matrices that have both; NaN where there is none.
    """
    means = {}
    for method in frame["method"].unique():
        found = ratios(frame, fast, method)
        if method != fast and len(found):
            means[method] = np.exp(np.log(found).groupby(level=["part", "op", "width", "threads"]).mean())
    return pd.DataFrame(means)


def _group(rows: pd.DataFrame, seed: int) -> dict[str, float]:
    found: dict[str, float] = {"matrices": int(rows["matrix"].nunique())}
    for fast, slow in PAIRS:
        found |= _bounded(f"{fast}_over_{slow}", ratios(rows, fast, slow), seed)
    auto = rows[(rows["method"] == "auto") & rows["seconds"].notna()]
    if auto.empty:
        return found
    found["fused_share"] = float((~auto["same"].astype(bool)).mean())
    found |= _costs(rows)
    for method, own in rows[rows["gain_seconds"].notna()].groupby("method", sort=False):
        found[f"gain_{method}"] = float((own["gain_seconds"] / own["seconds"]).median())
    found |= _locality(rows, seed)
    well = rows[rows["matrix"].isin(_fuses_well(rows))]
    found["qualifying/matrices"] = int(well["matrix"].nunique())
    return found | _bounded("qualifying/auto_over_unfused", ratios(well, "auto", "unfused"), seed)


def _bounded(key: str, values: pd.Series, seed: int) -> dict[str, float]:
    if values.empty:
        return {}
    return {**ratio_bounds(key, values, seed=seed), f"{key}_share": float((values > 1).mean()),
            f"{key}_matrices": len(values)}


def _costs(rows: pd.DataFrame) -> dict[str, float]:
    """Reduce the cost of inspector and decision, in executions, and the number of runs that amortises it."""
    timed = rows[rows["seconds"].notna()].set_index("method")
    unfused = timed.loc[["unfused"]].set_index("matrix")["seconds"]
    found: dict[str, float] = {}
    for name, method, column in (("inspector", "fused", "build_seconds"), ("decision", "auto", "decision_seconds")):
        if method not in timed.index or column not in timed:
            continue
        own = timed.loc[[method]].set_index("matrix")
        cost = own[column].dropna()
        executions = (cost / own["seconds"]).dropna()
        saved = (unfused - own["seconds"]).reindex(cost.index)
        runs = (cost / saved)[saved > 0]
        found |= {f"{name}_executions_median": float(executions.median()),
                  f"{name}_executions_max": float(executions.max())}
        if len(runs):
            found |= {f"{name}_amortised_median": float(runs.median()),
                      f"{name}_amortised_p90": float(runs.quantile(0.9)), f"{name}_amortised_matrices": len(runs)}
    fused = timed.loc[["fused"]] if "fused" in timed.index else timed.iloc[:0]
    return found | ({"fused_rows_median": float(fused["fused_rows"].median())} if len(fused) else {})


def _locality(rows: pd.DataFrame, seed: int) -> dict[str, float]:
    """Reduce the reuse of coarse tiles, and access times in simulated caches, unfused over fused."""
    found: dict[str, float] = {}
    if "reused_flops" in rows and rows["reused_flops"].notna().any():
        found["reused_flops_mean"] = float(rows["reused_flops"].mean())
    if "access_cycles" in rows and rows["access_cycles"].notna().any():
        cycles = rows.pivot(index="matrix", columns="method", values="access_cycles")
        found |= _bounded("access_unfused_over_fused", (cycles["unfused"] / cycles["fused"]).dropna(), seed)
    return found


def _fuses_well(rows: pd.DataFrame) -> np.ndarray:
    """Select matrices of which most rows fuse while D1 exceeds the last cache."""
    most = rows.groupby("matrix")["fused_rows"].max()
    first = rows.groupby("matrix")[["d1_bytes", "last_cache_bytes"]].first()
    return most.index[(most >= FUSES_WELL) & (first["d1_bytes"] > first["last_cache_bytes"])].to_numpy()


def _scaling(frame: pd.DataFrame) -> dict[str, float]:
    found: dict[str, float] = {}
    most = int(frame["threads"].max())
    seconds = frame[frame["seconds"].notna()].pivot_table(
        index=["part", "op", "width", "method", "matrix"], columns="threads", values="seconds")
    if most == 1 or 1 not in seconds or most not in seconds:
        return found
    gains: Mapping[tuple, pd.Series] = dict(iter((seconds[1] / seconds[most]).dropna().groupby(level=[0, 1, 2, 3])))
    for (part, op, width, method), values in gains.items():
        prefix = group_prefix(part, op, width, most, most=most)
        found[f"{prefix}/scaling_{method}"] = geomean(values.to_numpy())
    return found


def draw_fusion(frame: pd.DataFrame, folder: Path) -> None:
    """Draw every figure for which per_matrix.parquet of `bench_fusion` has rows."""
    threads = int(frame["threads"].max())
    whole = frame[(frame["threads"] == threads) & frame["seconds"].notna()]
    for (part, op), rows in whole.groupby(["part", "op"], sort=False):
        title = f"{op_title(op)}, {_part(rows)}"
        draw_rates(rows, folder / f"{part}_{op}_rates", title=title)
        draw_fused_methods(rows, folder / f"{part}_{op}_fused_methods", title=title)
        draw_amortisation(rows, folder / f"{part}_{op}_amortisation", title=title)
    for part, rows in whole[whole["op"] == "gemm_spmm"].groupby("part", sort=False):
        title = f"{op_title('gemm_spmm')}, {_part(rows)}"
        draw_gain(rows, folder / f"{part}_gain", title=title)
        if "coarse" in set(rows["method"]):
            draw_steps(rows, folder / f"{part}_steps", title=title)
            draw_reuse(rows, folder / f"{part}_reuse", title=title)
            draw_memory_time(rows, folder / f"{part}_memory_time", title=title)
    for part, rows in frame[frame["seconds"].notna()].groupby("part", sort=False):
        if rows["threads"].nunique() > 1:
            draw_scaling(rows, folder / f"{part}_scaling", title=_part(rows))


def draw_rates(frame: pd.DataFrame, stem: Path, *, title: str, methods: Sequence[str] = COMPARED) -> None:
    """Draw GFLOP/s on every matrix, sorted by the rate of "auto", a panel for each width (Figures 4 and 10)."""
    panels = {}
    for width in sorted(frame["width"].unique()):
        rates = _rates(frame[frame["width"] == width])
        order = rates["auto"].sort_values().index
        lines = [_curve(rates[method].reindex(order), method) for method in methods[::-1] if method in rates]
        if len(order) <= len(ANCHORS) + 2:
            lines = [replace(line, x=list(order)) for line in lines]
        panels[f"{width} columns"] = lines
    draw_lines(panels, stem, x="matrices, by rate of fuse=auto", y="GFLOP/s", title=title, ylim=(0, None))


def draw_fused_methods(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw geometric mean speedups over each way to fuse, on the matrices that have it (Figure 5)."""
    found = {(method, width): values for method in FUSED[1:] for width in sorted(frame["width"].unique())
             if (values := ratios(frame[frame["width"] == width], "auto", method).to_numpy()).size}
    looks = {method: (NAMES[method].replace(", ", ",\n").replace(" as ", "\nas ").replace(" compiler", "\ncompiler"),
                      COLOURS[method]) for method in FUSED}
    draw_means({title: found}, looks, stem, y="times as fast is fuse=auto", size=(WHOLE_WIDTH, 3.4))


def draw_gain(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw the share of time that balanced threads would save, by matrix, a panel per width (Figure 7)."""
    panels = {}
    for width, rows in frame[frame["gain_seconds"].notna()].groupby("width"):
        share = (rows["gain_seconds"] / rows["seconds"]).groupby([rows["matrix"], rows["method"]]).first().unstack()
        order = share["unfused"].sort_values().index
        panels[f"{width} columns"] = [_curve(100 * share[method].reindex(order), method)
                                      for method in ("unfused", "fused", "auto") if method in share]
    draw_lines(panels, stem, x="matrices, by gain of unfused", y="potential gain, % of the time", title=title)


def draw_steps(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw the speedup of the scheduler's step one over one thread, and of step two over step one (Figure 8)."""
    first, both = ratios(frame, "coarse", "sequential"), ratios(frame, "fused", "sequential")
    order = both.sort_values().index
    draw_lines({"": [_curve(first.reindex(order), "coarse"), _curve(both.reindex(order), "fused")]}, stem, at=1,
               x="matrices and widths, by speedup of both steps", y="times as fast as one thread", title=title,
               size=(WHOLE_WIDTH, 3.2))


def draw_reuse(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw the shares of computation and of rows of D1 that stay in a coarse tile (Figure 2)."""
    rows = frame[frame["reused_flops"].notna()].drop_duplicates("matrix").sort_values("reused_flops")
    lines = []
    for column, label, colour in (("reused_flops", "computation of both loops", "#b5443c"),
                                  ("kept_rows", "rows of D1 that no other tile reads", "#5f7fa8")):
        mean = f"{100 * rows[column].mean():.0f} %" if len(rows) else "unknown"
        lines.append(ranked(100 * rows[column], f"{label}, mean {mean}", colour))
    draw_lines({"": lines}, stem, x="matrices, by computation", y="in one tile of 2048 iterations, %", title=title,
               size=(WHOLE_WIDTH, 3.2), ylim=(0, 100))


def draw_memory_time(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw the average time of a memory access, in cycles, counted or simulated (Figure 6)."""
    cycles = frame[frame["access_cycles"].notna()].pivot_table(
        index=["matrix", "width"], columns="method", values="access_cycles")
    order = cycles.get("unfused", pd.Series(dtype=float)).sort_values().index
    source = ", ".join(sorted(frame["access_source"].dropna().unique()))
    draw_lines({"": [_curve(cycles[method].reindex(order), method) for method in ("unfused", "fused", "auto")
                     if method in cycles]}, stem, x="matrices, by access time of unfused",
               y=f"cycles per access, {source}", title=title, size=(WHOLE_WIDTH, 3.2))


def draw_amortisation(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw how many runs amortise inspector and decision, where the fused code is faster (§5.2.5)."""
    seconds = frame.pivot_table(index=["matrix", "width"], columns="method", values="seconds")
    lines = []
    for method, column, label in (("fused", "build_seconds", "inspector, fused as in the paper"),
                                  ("auto", "decision_seconds", "decision of fuse=auto")):
        if method not in seconds or column not in frame:
            continue
        cost = frame[frame["method"] == method].set_index(["matrix", "width"])[column]
        saved = seconds["unfused"] - seconds[method]
        runs = np.sort((cost / saved)[saved > 0].dropna().to_numpy())
        if runs.size:
            lines.append(Line(runs, np.arange(1, runs.size + 1) / len(cost), f"{label}: median {np.median(runs):.0f}",
                              COLOURS[method], "-"))
    draw_lines({"": lines}, stem, x="runs until it has paid", y="share of matrices and widths", title=title,
               size=(WHOLE_WIDTH, 3.2), xscale="log", ylim=(0, 1))


def draw_scaling(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw geometric mean rates over the number of threads, for what was timed with each of them (Figure 9)."""
    counts = sorted(frame["threads"].unique())
    rows = frame.assign(rate=frame["flops"] / frame["seconds"] / 1e9)
    table = rows.pivot_table(index=["op", "matrix", "width", "method"], columns="threads", values="rate").dropna()
    panels = {op_title(op): [
        Line(counts, [geomean(own[count].to_numpy()) for count in counts], NAMES[method], COLOURS[method], "o-")
        for method in COMPARED if len(own := rates[rates.index.get_level_values("method") == method])]
        for op, rates in table.groupby(level="op")}
    draw_lines(panels, stem, x="threads", y="GFLOP/s, geometric mean", title=title, xticks=counts, ylim=(0, None))


def _part(rows: pd.DataFrame) -> str:
    count = rows["matrix"].nunique()
    return f"{count} real matrices" if rows["part"].iloc[0] == "real" else f"{count} anchors"


def _rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Compute GFLOP/s, matrices x methods."""
    return frame.assign(rate=frame["flops"] / frame["seconds"] / 1e9).pivot(
        index="matrix", columns="method", values="rate")


def _curve(values: pd.Series, method: str) -> Line:
    return ranked(values, NAMES[method], COLOURS[method])
