"""Evaluate what methods choose against the seconds of every configuration: rows per matrix, metrics, intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sparloom.measure.metrics import (
    ape_speedup,
    ape_time,
    central,
    kendall_tau,
    mean_over_draws,
    ordered_pair_accuracy,
    resample,
)
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import ROW_BINS, row_bin

LARGE_ROWS = 32_768
"""Rows from which a matrix is large; methods differ little on others."""

Bounded = tuple[float, float, float]
"""A statistic with its lower and upper 95 % bootstrap bound."""


@dataclass(frozen=True)
class RuntimeTable:
    """Seconds of every configuration of a space on every matrix of an evaluation.

    Args:
        seconds: (matrices, configs), all finite.
        baseline: column of the configuration that speedups are relative to.
        programs: (matrices, configs) integers; configurations with equal numbers are one program on that matrix.
    """

    matrices: tuple[str, ...]
    configs: tuple[Config, ...]
    seconds: np.ndarray
    baseline: int
    programs: np.ndarray

    @classmethod
    def of(
        cls, labels: pd.DataFrame, space: ConfigSpace, shapes: Mapping[str, tuple[int, int]]
    ) -> "RuntimeTable":
        """Arrange labels of a sample table.

        Args:
            shapes: rows and columns of the matrices to judge by.

        Raises:
            ValueError: a configuration of a matrix has no seconds, so there is no optimum to compare with.
        """
        matrices, configs = list(shapes), list(space)
        keys = [config.key for config in configs]
        table = labels.pivot(index="matrix", columns="config", values="seconds").reindex(index=matrices, columns=keys)
        gaps = table.isna().sum(axis=1)
        if gaps.any():
            raise ValueError(f"{int((gaps > 0).sum())} of {len(matrices)} matrices lack seconds, {gaps.idxmax()} for "
                             f"{int(gaps.max())} of {len(keys)} configurations: collect them, the optimum needs all")
        programs = np.stack([_programs(space.bind(shape), configs) for shape in shapes.values()])
        baseline = keys.index(space.default().key)
        return cls(tuple(matrices), tuple(configs), table.to_numpy(np.float64), baseline, programs)

    @property
    def best(self) -> np.ndarray:
        """Return the least seconds of each matrix, (matrices,)."""
        return self.seconds.min(axis=1)

    @property
    def default(self) -> np.ndarray:
        """Return the seconds of the baseline, (matrices,)."""
        return self.seconds[:, self.baseline]


@dataclass(frozen=True)
class Choices:
    """Choices of one method, trained with one seed, for every matrix.

    Args:
        first: column of the first choice, (matrices,); -1 where there is none (an average over choices).
        top1, top5: true seconds of the first choice, and the least among the first five, (matrices,).
        opa, tau: ordered pair accuracy and Kendall tau of its scores on each matrix, NaN without scores.
    """

    method: str
    seed: int
    first: np.ndarray
    top1: np.ndarray
    top5: np.ndarray
    opa: np.ndarray
    tau: np.ndarray


def judge(method: str, seed: int, truth: RuntimeTable, scores: np.ndarray, *, tolerance: float = 0.0) -> Choices:
    """Let scores (matrices, configs), low = fast, choose; ties go to the earlier configuration.

    The first five are five different programs: to run one program twice would try nothing new.
    """
    if scores.shape != truth.seconds.shape:
        raise ValueError(f"scores of {method} have shape {scores.shape}, the truth {truth.seconds.shape}")
    order = np.argsort(scores, axis=1, kind="stable")
    rows = range(len(truth.matrices))
    best = [min(truth.seconds[row, config] for config in _first(order[row], truth.programs[row], 5)) for row in rows]
    return Choices(
        method, seed, order[:, 0], truth.seconds[rows, order[:, 0]], np.array(best),
        np.array([ordered_pair_accuracy(scores[row], truth.seconds[row], tolerance=tolerance) for row in rows]),
        np.array([kendall_tau(scores[row], truth.seconds[row]) for row in rows]),
    )


def optimum(truth: RuntimeTable) -> Choices:
    """Choose the best configuration of each matrix, found by trying all."""
    nothing = np.full(len(truth.matrices), np.nan)
    return Choices("optimum", 0, truth.seconds.argmin(axis=1), truth.best, truth.best, nothing, nothing)


def random_choice(truth: RuntimeTable) -> Choices:
    """Average over uniformly random choices: the geometric mean over all, exactly; of five, by their order."""
    nothing = np.full(len(truth.matrices), np.nan)
    ascending = np.sort(truth.seconds, axis=1)
    count = ascending.shape[1]
    first = np.exp(np.log(ascending).mean(axis=1))
    weights = _least_of(min(5, count), count)
    nowhere = np.full(len(truth.matrices), -1)
    return Choices("random", 0, nowhere, first, np.exp(np.log(ascending) @ weights), nothing, nothing)


def baseline_choice(method: str, seconds: np.ndarray) -> Choices:
    """Treat the seconds of another library's kernels, (matrices,), as a choice."""
    nothing, nowhere = np.full(len(seconds), np.nan), np.full(len(seconds), -1)
    return Choices(method, 0, nowhere, seconds, seconds, nothing, nothing)


def _programs(space: ConfigSpace, configs: Sequence[Config]) -> np.ndarray:
    """Number the programs that the configurations are on the bound shape."""
    numbers: dict[Config, int] = {}
    return np.array([numbers.setdefault(space.canonical(config), len(numbers)) for config in configs])


def _first(order: np.ndarray, programs: np.ndarray, count: int) -> list[int]:
    """Take the first `count` entries of `order` that are different programs."""
    _, earliest = np.unique(programs[order], return_index=True)
    return order[np.sort(earliest)[:count]].tolist()


def _least_of(picked: int, count: int) -> np.ndarray:
    """Compute the probability that the i-th smallest of `count` is the least of `picked` drawn without replacement."""
    beyond = np.ones(count + 1)
    for step in range(picked):
        beyond *= np.maximum(0, count - np.arange(count + 1) - step) / (count - step)
    return beyond[:-1] - beyond[1:]


def per_matrix(truth: RuntimeTable, choices: Sequence[Choices], about: pd.DataFrame | None = None) -> pd.DataFrame:
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

    The intervals resample seeds, that is draws of labels with their trainings, and matrices.

    Args:
        headline: method whose numbers carry no name of their own; None: there is none.

    Returns:
        `<prefix>/matrices`, `/seeds`; for every method `<method>_top1_speedup`, `_top5_speedup`, `_top1_max` and
        `_of_optimum`; the headline's ranking quality and its lead over every other method; each with `_low`, `_high`.
        If the frame has rows of matrices, `_of_optimum` and leads also as `by_size` gives them.
    """
    draw = resample(frame["matrix"].nunique(), seed)
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
    if "rows" in frame:
        metrics |= _sized_metrics(methods, headline, seed)
    return {f"{prefix}/{key}": value for key, value in metrics.items()}


def _sized_metrics(methods: Mapping[str, pd.DataFrame], headline: str | None, seed: int) -> dict[str, float]:
    """Flatten `by_size` to `<group>/<name>_of_optimum`, `<group>/top1_over_<method>` of the headline, and counts."""
    metrics: dict[str, float] = {f"{group}/matrices": sum(part.size for part in bins)
                                 for group, bins in size_groups(methods["optimum"]).items()}
    for method, rows in methods.items():
        if method == "optimum":
            continue
        others = {name: other for name, other in methods.items() if name not in (method, "optimum")}
        found = by_size(rows, methods["optimum"], others if method == headline else {}, seed=seed)
        for key, value in found.items():
            group, _, kind = key.partition("/")
            name = "top1" if kind.startswith("over_") else _name(method, "top1", headline)
            _put(metrics, f"{group}/{name}_{kind}", value)
    return metrics


def by_size(
    rows: pd.DataFrame, optimum: pd.DataFrame, others: Mapping[str, pd.DataFrame], *, seed: int,
) -> dict[str, Bounded]:
    """Compute a method's share of the optimum and its leads with equal weights of COGNATE's bins of rows.

    Most matrices have few rows, where every method is near the optimum.

    Args:
        rows: of `per_matrix`, of one method, with the column rows; `optimum` and `others` on the same matrices.

    Returns:
        `equal_bins/of_optimum` and `equal_bins/over_<name>` for each of `others`, whose bounds are from matrices drawn
        within each bin that has any; the same as `large/...` over the matrices of 32,768 rows and more, if there are
        any.
    """
    logs, best = _log_speedups(rows, "top1"), _log_speedups(optimum, "top1")
    found = {}
    for group, bins in size_groups(rows).items():
        if bins:
            found[f"{group}/of_optimum"] = _bin_interval(logs, bins, best, seed)
            found |= {f"{group}/over_{name}": _bin_interval(logs, bins, _log_speedups(other, "top1"), seed)
                      for name, other in others.items()}
    return found


def size_groups(rows: pd.DataFrame) -> dict[str, list[np.ndarray]]:
    """Return the places of matrices, in the order of their names, in each bin of rows that has any, and of large ones.

    Args:
        rows: of `per_matrix`, with the column rows.
    """
    sizes = rows.drop_duplicates("matrix").set_index("matrix")["rows"].sort_index()
    large = np.flatnonzero(sizes >= LARGE_ROWS)
    return {"equal_bins": places_by_bin(sizes), "large": [large] if large.size else []}


def places_by_bin(rows: Sequence[int]) -> list[np.ndarray]:
    """Return the places of matrices with these numbers of rows in each of COGNATE's bins that has any."""
    known = np.array([row_bin(int(count)) for count in rows])
    return [places for name in ROW_BINS if (places := np.flatnonzero(known == name)).size]


def speedups(rows: pd.DataFrame, optimum: pd.DataFrame, draw: np.ndarray) -> dict[str, Bounded]:
    """Compute speedups over the baseline and shares of the optimum, of top-1 and top-5.

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
    """Return the largest speedup on any matrix with any seed."""
    return float(np.exp(_log_speedups(rows, top)).max())


def lead(rows: pd.DataFrame, others: pd.DataFrame, draw: np.ndarray) -> Bounded:
    """Divide the top-1 speedups of two methods."""
    return interval(_log_speedups(rows, "top1"), draw, over=_log_speedups(others, "top1"))


def quality(rows: pd.DataFrame, draw: np.ndarray) -> dict[str, Bounded]:
    """Compute errors of the top-1 choice and quality of the ranking: means over seeds, bounds over both.

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
            spread = mean_over_draws(np.nanmean(table[:, draw], axis=2))
            found[key] = (float(np.nanmean(table, axis=1).mean()), *central(spread))
    return found


def interval(logs: np.ndarray, draw: np.ndarray, *, over: np.ndarray | None = None) -> Bounded:
    """Take the geometric mean over matrices, mean over seeds, and its 95 % bootstrap bounds over seeds and matrices.

    Args:
        logs: (seeds, matrices), logarithms of speedups.
        draw: (resamples, matrices), columns drawn with replacement.
        over: divide by the same statistic of these, on the same resamples.
    """
    return _ratio([np.arange(logs.shape[1])], [draw], logs, np.zeros((1, logs.shape[1])) if over is None else over)


def _bin_interval(logs: np.ndarray, bins: Sequence[np.ndarray], over: np.ndarray, seed: int) -> Bounded:
    """Divide geometric means in which every bin, an array of columns, has the same weight, as `interval` does."""
    rng = np.random.default_rng(seed)
    return _ratio(bins, [columns[resample(columns.size, rng)] for columns in bins], logs, over)


def _ratio(bins: Sequence[np.ndarray], drawn: Sequence[np.ndarray], logs: np.ndarray, over: np.ndarray) -> Bounded:
    """Divide means over seeds of geometric means over bins of columns, with bounds from the drawn columns."""

    def means(values: np.ndarray, parts: Sequence[np.ndarray]) -> np.ndarray:
        return np.exp(np.mean([values[:, part].mean(axis=-1) for part in parts], axis=0))

    spread = mean_over_draws(means(logs, drawn)) / mean_over_draws(means(over, drawn))
    return float(means(logs, bins).mean() / means(over, bins).mean()), *central(spread)


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
