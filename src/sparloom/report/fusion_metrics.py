"""Rows of a bench of tile fusion to geometric means of ratios."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from sparloom.measure import bootstrap_interval, geomean

__all__ = ["ANCHORS", "PEERS", "fusion_metrics", "group_prefix", "ratio_means", "ratios"]

ANCHORS = ("lap2d", "lap3d", "band", "rmat17", "er", "comm")
"""Anchors of the geometric means; those in block order stand by themselves."""

PEERS = ("unfused", "separated", "fused", "local", "mkl", "torch", "scipy", "gemv", "blas_gemv", "listing", "atomic",
         "overlapped")
PAIRS = (*(("auto", peer) for peer in PEERS), ("unfused", "mkl"), ("unfused", "torch"), ("fused", "unfused"),
         ("local", "unfused"), ("separated", "unfused"), ("fused", "mkl"), ("coarse", "sequential"),
         ("fused", "coarse"))
CASE = ["part", "matrix", "op", "width", "threads"]
FUSES_WELL = 0.85  # share of rows that are fused


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
    """Name a group of metrics: `<op>/<width>`, `anchors/<op>/<width>` for the anchors, `/t1` behind on one thread."""
    name = f"{op}/{width}" if part == "real" else f"{part}/{op}/{width}"
    return name if threads == most else f"{name}/t{threads}"


def ratios(frame: pd.DataFrame, fast: str, slow: str) -> pd.Series:
    """How many times as fast as `slow` the method `fast` is, by case; where both were timed."""
    timed = frame[frame["seconds"].notna()]
    seconds = timed.pivot(index=CASE, columns="method", values="seconds")
    if fast not in seconds or slow not in seconds:
        return pd.Series(dtype=float)
    return (seconds[slow] / seconds[fast]).dropna()


def ratio_means(frame: pd.DataFrame, fast: str = "auto") -> pd.DataFrame:
    """Average how many times as fast as every other method one is: part, op, width and threads x method.

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
    numbers = values.to_numpy()
    low, high = bootstrap_interval(numbers, seed=seed)
    return {key: geomean(numbers), f"{key}_low": low, f"{key}_high": high, f"{key}_min": float(numbers.min()),
            f"{key}_max": float(numbers.max()), f"{key}_share": float((numbers > 1).mean()),
            f"{key}_matrices": len(numbers)}


def _costs(rows: pd.DataFrame) -> dict[str, float]:
    """What the inspector and the decision take, in executions, and after how many runs they have paid."""
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
    """What tiles of step one could reuse, and the access time in simulated caches of unfused over fused code."""
    found: dict[str, float] = {}
    if "reused_flops" in rows and rows["reused_flops"].notna().any():
        found["reused_flops_mean"] = float(rows["reused_flops"].mean())
    if "access_cycles" in rows and rows["access_cycles"].notna().any():
        cycles = rows.pivot(index="matrix", columns="method", values="access_cycles")
        found |= _bounded("access_unfused_over_fused", (cycles["unfused"] / cycles["fused"]).dropna(), seed)
    return found


def _fuses_well(rows: pd.DataFrame) -> np.ndarray:
    """Matrices of which most rows fuse, by whichever schedule, while D1 is too large for the last cache."""
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
