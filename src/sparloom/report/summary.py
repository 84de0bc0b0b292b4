"""Choices as a table and as metrics: speedups, shares of the optimum, ranking quality, with bootstrap intervals."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from sparloom.measure import ape_speedup, ape_time
from sparloom.report.evaluation import Choices, Truth

__all__ = ["Bounded", "draws", "interval", "largest", "lead", "per_matrix", "quality", "speedups", "summary"]

RESAMPLES = 2000
Bounded = tuple[float, float, float]
"""A statistic with its lower and upper 95 % bootstrap bound."""


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
    draw = draws(frame["matrix"].nunique(), seed)
    methods = dict(tuple(frame.groupby("method", sort=False)))
    metrics: dict[str, float] = {"matrices": draw.shape[1],
                                 "seeds": max(rows["seed"].nunique() for rows in methods.values())}
    for method, rows in methods.items():
        found = speedups(rows, methods["optimum"], draw)
        for top in ("top1", "top5"):
            name = _name(method, top, headline)
            if name is None:
                continue
            _put(metrics, f"{name}_speedup", found[f"{top}_speedup"])
            metrics[f"{name}_max"] = largest(rows, top)
            if method != "optimum":
                _put(metrics, f"{name}_of_optimum", found[f"{top}_of_optimum"])
    if headline is not None:
        for method, rows in methods.items():
            if method not in (headline, "optimum"):
                _put(metrics, f"top1_over_{method}", lead(methods[headline], rows, draw))
        for key, value in quality(methods[headline], draw).items():
            _put(metrics, key, value)
    return {f"{prefix}/{key}": value for key, value in metrics.items()}


def draws(matrices: int, seed: int) -> np.ndarray:
    """Draw matrices with replacement, (resamples, matrices); equal for equal arguments, so ratios are paired."""
    return np.random.default_rng(seed).integers(matrices, size=(RESAMPLES, matrices))


def speedups(rows: pd.DataFrame, optimum: pd.DataFrame, draw: np.ndarray) -> dict[str, Bounded]:
    """Speedup over the baseline and share of the optimum's, of the first choice and of the best of five.

    Args:
        rows: of `per_matrix`, of one method.
        optimum: those of the optimum on the same matrices.
    """
    best = _log_speedups(optimum, "top1")
    found = {}
    for top in ("top1", "top5"):
        logs = _log_speedups(rows, top)
        found[f"{top}_speedup"] = interval(logs, draw)
        found[f"{top}_of_optimum"] = interval(logs, draw, over=best)
    return found


def largest(rows: pd.DataFrame, top: str) -> float:
    """Largest speedup on any matrix, with any seed."""
    return float(np.exp(_log_speedups(rows, top)).max())


def lead(rows: pd.DataFrame, others: pd.DataFrame, draw: np.ndarray) -> Bounded:
    """Ratio of the speedups of two methods' first choices."""
    return interval(_log_speedups(rows, "top1"), draw, over=_log_speedups(others, "top1"))


def quality(rows: pd.DataFrame, draw: np.ndarray) -> dict[str, Bounded]:
    """Errors of one method's first choice and quality of its ranking, means over seeds, with bounds over matrices.

    Without scores there is no ranking, and neither opa nor kendall_tau.
    """
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
        if np.isfinite(table).any():
            spread = np.nanmean(table[:, draw], axis=2).mean(axis=0)
            low, high = np.quantile(spread, [0.025, 0.975])
            found[key] = (float(np.nanmean(table, axis=1).mean()), float(low), float(high))
    return found


def interval(logs: np.ndarray, draw: np.ndarray, *, over: np.ndarray | None = None) -> Bounded:
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
    if method in ("optimum", "random", "static", "vendor"):
        return method if top == "top1" else None
    return f"{method}_{top}"


def _put(metrics: dict[str, float], key: str, value: Bounded) -> None:
    metrics[key], metrics[f"{key}_low"], metrics[f"{key}_high"] = value
