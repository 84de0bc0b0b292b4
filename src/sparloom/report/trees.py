"""Judge choices of performance models by their efficiency: share of the best measured rate of a problem."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from rich.table import Table

from sparloom.measure.metrics import central, geomean, resample
from sparloom.report.figures import draw_intervals
from sparloom.report.runs import report_table

REDUCTIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {  # over the last axis
    "mean": lambda values: np.mean(values, axis=-1), "p10": lambda values: np.quantile(values, 0.1, axis=-1),
}
VERDICT_COLOURS = {"holds": "#7aa974", "does not hold": "#b5443c", "cannot say": "#9a9a9a"}


@dataclass(frozen=True)
class JudgedProblems:
    """Problems and measured seconds by which choices are judged.

    Args:
        about: one row per problem: matrix, width, group and slice; intervals are over groups.
        configs: keys.
        seconds: of the sweep that judges; NaN where a configuration did not run.
    """

    about: pd.DataFrame
    configs: tuple[str, ...]
    seconds: Float[np.ndarray, "problems configs"]

    @property
    def best(self) -> Float[np.ndarray, " problems"]:
        """Return the least seconds of each problem."""
        return np.nanmin(self.seconds, axis=1)

    def choices(self, method: str, columns: Int[np.ndarray, " problems"]) -> pd.DataFrame:
        """Make one row per problem for the choices of a method; a configuration that did not run has efficiency 0.

        Returns:
            The columns of `about`, then method, config, seconds, best_seconds and efficiency = best / chosen seconds.
        """
        taken = self.seconds[np.arange(len(self.about)), columns]
        return self.baseline(method, taken).assign(config=[self.configs[column] for column in columns])

    def baseline(self, method: str, seconds: Float[np.ndarray, " problems"]) -> pd.DataFrame:
        """Do the same for another library's kernel, whose efficiency may exceed 1; its config is empty."""
        return self.about.assign(method=method, config="", seconds=seconds, best_seconds=self.best,
                                 efficiency=np.nan_to_num(self.best / seconds))


def efficiencies(seconds: Float[np.ndarray, "problems configs"]) -> Float[np.ndarray, "problems configs"]:
    """Divide the best seconds by those of every configuration; 0 where it did not run."""
    return np.nan_to_num(np.nanmin(seconds, axis=1, keepdims=True) / seconds)


def efficiency_metrics(rows: pd.DataFrame, names: Mapping[str, str], *, seed: int) -> dict[str, float]:
    """Reduce rows of one method.

    Args:
        names: of mean, p10 (10th percentile) and min in the result, as far as they are wanted.

    Returns:
        The numbers by these names; of mean and p10 also `_low` and `_high`, 95 % bounds by resampling groups. The
        least value has none: resampling does not bound it.
    """
    values, draws = rows["efficiency"].to_numpy(), draws_of(rows["group"], seed=seed)
    metrics: dict[str, float] = {}
    for name, reduce in REDUCTIONS.items():
        if name in names:
            metrics |= bounded(names[name], float(reduce(values)), _over_draws(reduce, values, draws))
    return metrics | ({names["min"]: float(values.min())} if "min" in names else {})


def _over_draws(
    reduce: Callable[[np.ndarray], np.ndarray], values: np.ndarray, draws: Sequence[np.ndarray]
) -> Float[np.ndarray, " draws"]:
    """Reduce the values of every draw, those with equal numbers of rows at once."""
    sizes, found = np.array([len(draw) for draw in draws]), np.empty(len(draws))
    for size in np.unique(sizes):
        equal = np.flatnonzero(sizes == size)
        found[equal] = reduce(values[np.stack([draws[number] for number in equal])])
    return found


def paired_metrics(
    rows: pd.DataFrame, others: pd.DataFrame, key: str, compare: Callable[[np.ndarray, np.ndarray], float], *,
    column: str, seed: int,
) -> dict[str, float]:
    """Compare a column of two methods on the same problems; the bounds resample the groups of both alike."""
    rows, others = (frame.sort_values(["matrix", "width"], ignore_index=True) for frame in (rows, others))
    own, other = rows[column].to_numpy(), others[column].to_numpy()
    spread = [compare(own[draw], other[draw]) for draw in draws_of(rows["group"], seed=seed)]
    return bounded(key, compare(own, other), spread)


def bounded(key: str, value: float, spread: Sequence[float]) -> dict[str, float]:
    """Store a number with the central 95 % of its resampled values as `_low` and `_high`."""
    low, high = central(spread)
    return {key: float(value), f"{key}_low": low, f"{key}_high": high}


def efficiency_table(rows: pd.DataFrame, labels: Mapping[str, str], *, title: str, seed: int) -> Table:
    """Lay out efficiencies, one row per method in the order of `labels`, with 95 % bounds over groups.

    Args:
        rows: of all methods.
        labels: method -> how it is called.
    """
    table = report_table(("choice", "problems", "mean", "95 %", "P10", "95 %", "least", "times the best"), title=title)
    for method, label in labels.items():
        own = rows[rows["method"] == method]
        if len(own):
            found = efficiency_metrics(own, {"mean": "mean", "p10": "p10", "min": "min"}, seed=seed)
            cells = [cell for key in REDUCTIONS for cell in (
                f"{found[key]:.3f}", f"{found[f'{key}_low']:.3f}–{found[f'{key}_high']:.3f}")]
            ratio = geomean((own["seconds"] / own["best_seconds"]).to_numpy())
            table.add_row(label, str(len(own)), *cells, f"{found['min']:.3f}", f"{ratio:.3f}")
    return table


def draw_efficiencies(
    rows: pd.DataFrame, labels: Mapping[str, str], stem: Path, *, title: str, seed: int
) -> None:
    """Draw mean, 10th percentile and least efficiency of methods, the first two with 95 % bounds over groups.

    Args:
        labels: method -> how it is called, in the order in which they are drawn; those without rows are left out.
    """
    shown = [method for method in labels if (rows["method"] == method).any()]
    found = [efficiency_metrics(rows[rows["method"] == method], {key: key for key in (*REDUCTIONS, "min")}, seed=seed)
             for method in shown]
    series = {name: (colour, pd.DataFrame([{end: each.get(f"{key}{ending}", each[key]) for end, ending in (
        ("value", ""), ("low", "_low"), ("high", "_high"))} for each in found]))
        for key, name, colour in (("mean", "mean, 95 %", "#b5443c"), ("p10", "10th percentile, 95 %", "#5f7fa8"),
                                  ("min", "least", "#9a9a9a"))}
    draw_intervals([labels[method] for method in shown], series, stem, title=title,
                   x="efficiency of the choice, 1 = fastest measured")


def draws_of(groups: Sequence[str], *, seed: int) -> list[np.ndarray]:
    """Draw groups with replacement and give the indices of all their rows; equal groups give equal draws."""
    _, group, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    drawn = resample(sizes.size, seed)
    taken, begins = sizes[drawn], (np.cumsum(sizes) - sizes)[drawn].ravel()  # indices of a group, side by side
    shift = begins - (np.cumsum(taken) - taken.ravel())
    indices = np.argsort(group, kind="stable")[np.arange(taken.sum()) + np.repeat(shift, taken.ravel())]
    return np.split(indices, np.cumsum(taken.sum(axis=1))[:-1])


@dataclass(frozen=True)
class PaperClaim:
    """Test of one claim of the paper about trees.

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
        """State what the bounds allow: holds, does not hold, or undecided."""
        return verdict(self.low, self.high)


def verdict(low: float, high: float) -> str:
    """Say that a claim holds when all of its interval is above 0, that it does not when all is below or at 0."""
    if low > 0:
        return "holds"
    return "does not hold" if high <= 0 else "cannot say"


def contrast(
    rows: pd.DataFrame, weights: Mapping[str, float], *, statistic: str = "mean", seed: int
) -> tuple[float, float, float]:
    """Weigh and add a statistic of the efficiencies of methods on the same problems, with 95 % bounds.

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
    """Subtract a method's mean efficiency on one slice from that on all others, with 95 % bounds."""
    own = rows[rows["method"] == method]
    sides = [own[own["slice"] != hard], own[own["slice"] == hard]]
    means = [side["efficiency"].mean() for side in sides]
    spreads = [[side["efficiency"].to_numpy()[draw].mean() for draw in draws_of(side["group"], seed=seed + number)]
               for number, side in enumerate(sides)]
    return tuple(bounded("value", means[0] - means[1], np.subtract(*spreads)).values())


def draw_learnings(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw values and bounds of learnings.parquet of `check_learnings`; right of 0 speaks for the claim."""
    frame = frame.reset_index(drop=True)
    verdicts = [verdict(row.low, row.high) for row in frame.itertuples()]
    series = {name: (colour, frame[[each == name for each in verdicts]]) for name, colour in VERDICT_COLOURS.items()}
    draw_intervals([f"{row.number}  {row.measure}" for row in frame.itertuples()], series, stem, at=0, title=title,
                   x="right of 0 speaks for the claim")
