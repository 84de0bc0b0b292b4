"""Figures of a sweep: the objective over trials with the best so far, and over each parameter."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hydra_plugins.sparloom_sweeps._jobs import Point, Trial
from hydra_plugins.sparloom_sweeps._results import names
from sparloom.report.figures import figure, save, styled

POINT, PALE, BEST = "#5f7fa8", "#9a9a9a", "#b5443c"
COLUMNS = 3  # of slices
MARGIN = 0.04  # of a searched range, at both ends


@styled
def draw_objective(trials: Sequence[Trial], stem: Path, *, maximize: bool, objective: str) -> None:
    """Draw the value of every trial and the best so far; pruned ones hollow at their last value, failed ones below."""
    drawn, (axes,) = figure(6.4, 3.4)
    valued = _valued(trials)
    numbers, values = [trial.number for trial in valued], [trial.value for trial in valued]
    running = (np.maximum if maximize else np.minimum).accumulate(values)
    axes.step([*numbers, trials[-1].number], [*running, running[-1]], where="post", color=BEST, linewidth=1.4,
              label="best so far")
    axes.scatter(numbers, values, s=16, color=POINT, label="trial", zorder=3)
    pruned = [trial for trial in trials if trial.state.name == "PRUNED" and trial.value is not None]
    if pruned:
        axes.scatter([trial.number for trial in pruned], [trial.value for trial in pruned], s=16, facecolors="none",
                     edgecolors=PALE, label="pruned", zorder=2)
    failed = [trial.number for trial in trials if trial.state.name == "FAIL"]
    if failed:
        axes.scatter(failed, [0.02] * len(failed), marker="x", s=20, color=PALE, label="failed",
                     transform=axes.get_xaxis_transform())
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("trial")
    axes.set_ylabel(objective)
    axes.set_title(f"best {objective} {running[-1]:.4g} after {len(trials)} trials")
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    save(drawn, stem)


@styled
def draw_slices(trials: Sequence[Trial], stem: Path, *, best: int, objective: str) -> None:
    """Draw the value over each parameter by itself, the best one marked; of a search, later trials are darker."""
    valued, keys = _valued(trials), names(trials)
    columns = min(COLUMNS, len(keys))
    rows = -(-len(keys) // columns)
    drawn = Figure(figsize=(1 + 2.5 * columns, 0.4 + 2.5 * rows), layout="constrained")
    grid = drawn.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, key in zip(grid.flat, keys, strict=False):
        _draw_slice(axes, [trial for trial in valued if key in trial.params], key, best)
    for axes in grid.flat[len(keys):]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel(objective)
    save(drawn, stem)


def _draw_slice(axes: Axes, trials: Sequence[Trial], key: str, best: int) -> None:
    distribution = trials[-1].distributions[key]
    choices = [str(choice) for choice in getattr(distribution, "choices", ())]
    where = {trial.number: choices.index(str(trial.params[key])) if choices else trial.params[key] for trial in trials}
    shade = 1.0 if isinstance(trials[0], Point) else np.linspace(0.3, 1, len(trials))
    axes.scatter([where[trial.number] for trial in trials], [trial.value for trial in trials], s=16, color=POINT,
                 alpha=shade, linewidths=0)
    axes.scatter([where[trial.number] for trial in trials if trial.number == best],
                 [trial.value for trial in trials if trial.number == best], s=60, facecolors="none", edgecolors=BEST,
                 linewidths=1.4)
    if choices:
        axes.set_xticks(range(len(choices)), choices, parse_math=False)
        axes.set_xlim(-0.5, len(choices) - 0.5)
    else:
        axes.set_xscale("log" if distribution.log else "linear")
        axes.set_xlim(*_widened(distribution.low, distribution.high, log=distribution.log))
    axes.set_xlabel(key.lstrip("+"))


def _widened(low: float, high: float, *, log: bool) -> tuple[float, float]:
    """Add a margin to the range that was searched: whether its ends were reached is to be seen."""
    if low == high:
        return low - 0.5, high + 0.5
    if log:
        factor = (high / low) ** MARGIN
        return low / factor, high * factor
    return low - MARGIN * (high - low), high + MARGIN * (high - low)


def _valued(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.state.name == "COMPLETE" and trial.value is not None]
