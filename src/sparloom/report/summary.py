"""Choices as a table and as metrics: speedups, shares of the optimum, ranking quality, with bootstrap intervals."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from sparloom.measure import ape_speedup, ape_time
from sparloom.report.evaluation import Choices, Truth

__all__ = ["interval", "per_matrix", "summary"]

RESAMPLES = 2000


def per_matrix(truth: Truth, choices: Sequence[Choices], about: pd.DataFrame | None = None) -> pd.DataFrame:
    """Make one row per matrix, method and seed.

    Args:
        about: further columns by matrix, such as its family and size.

    Returns:
        Columns matrix, method, seed, config (first choice, null for an average), top1_seconds, top5_seconds,
        best_seconds, baseline_seconds, opa, kendall_tau, and those of `about`.
    """
    frames = []
    for choice in choices:
        frames.append(pd.DataFrame({
            "matrix": truth.matrices, "method": choice.method, "seed": choice.seed,
            "config": [truth.configs[column].key if column >= 0 else None for column in choice.first],
            "top1_seconds": choice.top1, "top5_seconds": choice.top5, "best_seconds": truth.best,
            "baseline_seconds": truth.default, "opa": choice.opa, "kendall_tau": choice.tau,
        }))
    rows = pd.concat(frames, ignore_index=True)
    return rows if about is None else rows.merge(about, left_on="matrix", right_index=True, how="left")


def summary(frame: pd.DataFrame, *, headline: str | None, prefix: str, seed: int) -> dict[str, float]:
    """Reduce `per_matrix` to flat metrics: geometric means over matrices, means over seeds, bootstrap intervals.

    Args:
        headline: method whose numbers carry no name of their own; None: there is none.

    Returns:
        `<prefix>/matrices`, `/seeds`; for every method `<method>_top1_speedup`, `_top5_speedup`, `_top1_max` and
        `_of_optimum`; the headline's ranking quality and its lead over every other method; each with `_low`, `_high`.
    """
    draw = np.random.default_rng(seed).integers(frame["matrix"].nunique(), size=(RESAMPLES, frame["matrix"].nunique()))
    logs = {(method, top): _log_speedups(rows, top) for method, rows in frame.groupby("method", sort=False)
            for top in ("top1", "top5")}
    best = logs["optimum", "top1"]
    metrics: dict[str, float] = {"matrices": best.shape[1], "seeds": max(map(len, logs.values()))}
    for (method, top), values in logs.items():
        name = _name(method, top, headline)
        if name is None:
            continue
        _put(metrics, f"{name}_speedup", interval(values, draw))
        metrics[f"{name}_max"] = float(np.exp(values).max())
        if method != "optimum":
            _put(metrics, f"{name}_of_optimum", interval(values, draw, over=best))
    if headline is not None:
        for method in dict.fromkeys(frame["method"]):
            if method not in (headline, "optimum"):
                _put(metrics, f"top1_over_{method}", interval(logs[headline, "top1"], draw, over=logs[method, "top1"]))
        for key, value in _quality(frame[frame["method"] == headline], draw).items():
            _put(metrics, key, value)
    return {f"{prefix}/{key}": value for key, value in metrics.items()}


def interval(
    logs: np.ndarray, draw: np.ndarray, *, over: np.ndarray | None = None
) -> tuple[float, float, float]:
    """Take the geometric mean over matrices, mean over seeds, and its 95 % bootstrap bounds over matrices.

    Args:
        logs: (seeds, matrices), logarithms of speedups.
        draw: (resamples, matrices), columns drawn with replacement.
        over: divide by the same statistic of these, on the same resamples.
    """
    whole = np.arange(logs.shape[1])[None]
    value, spread = _means(logs, whole), _means(logs, draw)
    if over is not None:
        value, spread = value / _means(over, whole), spread / _means(over, draw)
    low, high = np.quantile(spread, [0.025, 0.975])
    return float(value[0]), float(low), float(high)


def _means(logs: np.ndarray, draw: np.ndarray) -> np.ndarray:
    return np.exp(logs[:, draw].mean(axis=2)).mean(axis=0)


def _log_speedups(rows: pd.DataFrame, top: str) -> np.ndarray:
    logs = np.log(rows["baseline_seconds"] / rows[f"{top}_seconds"])
    table = rows.assign(log=logs).pivot(index="seed", columns="matrix", values="log")
    return table.to_numpy()


def _name(method: str, top: str, headline: str | None) -> str | None:
    if method == headline:
        return top
    if method in ("optimum", "random", "static"):
        return method if top == "top1" else None
    return f"{method}_{top}"


def _quality(rows: pd.DataFrame, draw: np.ndarray) -> Mapping[str, tuple[float, float, float]]:
    """Ranking quality and errors of one method, means over seeds, with bounds over matrices."""
    times = rows["top1_seconds"].to_numpy(), rows["best_seconds"].to_numpy()
    columns = {
        "ape_time": ape_time(*times),
        "ape_speedup": ape_speedup(*times),
        "opa": rows["opa"],
        "kendall_tau": rows["kendall_tau"],
    }
    found = {}
    for key, values in columns.items():
        table = rows.assign(value=values).pivot(index="seed", columns="matrix", values="value").to_numpy()
        spread = np.nanmean(table[:, draw], axis=2).mean(axis=0)
        low, high = np.quantile(spread, [0.025, 0.975])
        found[key] = (float(np.nanmean(table, axis=1).mean()), float(low), float(high))
    return found


def _put(metrics: dict[str, float], key: str, value: tuple[float, float, float]) -> None:
    metrics[key], metrics[f"{key}_low"], metrics[f"{key}_high"] = value
