"""Describe sample tables: agreement of timing passes, gain of the best configurations, likeness of two platforms."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom import log
from sparloom.data import SampleSource, SampleTable, write_frame
from sparloom.errors import MissingArtifact
from sparloom.experiments.harness import print_failures, samples_of
from sparloom.measure import bootstrap_interval, geomean, kendall_tau, noise_floor
from sparloom.ops import Op
from sparloom.report import RuntimeTable, report_table
from sparloom.space import Config, ConfigSpace

if TYPE_CHECKING:
    from sparloom.platforms import Platform

logger = logging.getLogger(__name__)
FASTEST = 0.25  # share of the configurations that compete for the choice
EFFECT = np.log(1.05)  # differences within 5 % are ties (SPADE figure 11 shows +-8 % that cannot be derived)
EXTENTS = {"rows": "I", "columns": "J", "dense": "K"}
"""Slope -> extent of a shared tile that it is relative to."""


@dataclass(frozen=True)
class AuditLabels:
    """Compare the first two rounds of a timed sample table, matrix by matrix."""

    op: Op
    platform: "Platform"
    samples: SampleSource

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet and print the distributions; return medians and quantiles."""
        table = samples_of(self.samples, self.platform, self.op)
        default = self.platform.space(self.op).default().key
        frame = audit(table, default)
        write_frame(out / "per_matrix.parquet", frame)
        rows = table.frame()
        log.console.print(_distributions(frame), soft_wrap=False)
        print_failures(table)
        return {
            "matrices": len(frame),
            "tau": float(frame["tau"].median()), "tau_p10": float(frame["tau"].quantile(0.1)),
            "tau_fastest_quarter": float(frame["tau_fastest"].median()),
            "same_order_of_pairs_beyond_5_percent": float(frame["agreement"].median()),
            "noise": float(frame["noise"].median()),
            "best_over_default_geomean": geomean(frame["gain"].to_numpy()),
            "best_over_default_max": float(frame["gain"].max()),
            "default_is_best": float((frame["gain"] <= 1).mean()),
            "failed_share": float(rows["failure"].notna().mean()), "stolen_share": float(rows["stolen"].mean()),
        }


def audit(table: SampleTable, default: str) -> pd.DataFrame:
    """Compare the first two rounds of each matrix: one row per matrix.

    Returns:
        tau between the two rounds; tau_fastest within the quarter with the least mean seconds; agreement: share of the
        pairs that differ by more than 5 % in the first round and have the same order in the second; noise of the
        repeated default (A/A); gain: default seconds over best seconds, each the median of the rounds.
    """
    frame = table.frame()
    frame = frame[frame["failure"].isna()].astype({"matrix": str, "config": str})
    frame["least"] = [float(np.min(seconds)) for seconds in frame["seconds"]]
    found = {}
    for name, rows in frame.groupby("matrix"):
        passes = rows[rows["round"] < 2].pivot(index="config", columns="round", values="least").dropna()
        if passes.shape[1] < 2 or len(passes) < 4:
            continue
        first, second = passes[0].to_numpy(), passes[1].to_numpy()
        mean = np.sqrt(first * second)
        fastest = np.argsort(mean, kind="stable")[:max(4, int(len(mean) * FASTEST))]
        repeats = rows.loc[rows["config"] == default, "least"].to_list()
        settled = rows.groupby("config")["least"].median()
        found[name] = {
            "tau": kendall_tau(first, second), "tau_fastest": kendall_tau(first[fastest], second[fastest]),
            "agreement": _agreement(first, second), "noise": noise_floor([repeats]) if len(repeats) > 1 else np.nan,
            "gain": settled[default] / settled.min() if default in settled else np.nan, "configs": len(passes),
        }
    if not found:
        raise ValueError("no matrix has two rounds: collect with a timing of at least two (timing=precise)")
    return pd.DataFrame.from_dict(found, orient="index").rename_axis("matrix")


def _agreement(first: np.ndarray, second: np.ndarray) -> float:
    left, right = np.triu_indices(len(first), k=1)
    apart = np.abs(np.log(first[left] / first[right])) > np.log(1.05)
    return float((np.sign(first[left] - first[right]) == np.sign(second[left] - second[right]))[apart].mean())


def _distributions(frame: pd.DataFrame) -> Table:
    quantiles = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    table = report_table(("", *(f"{share:.0%}" for share in quantiles)), wrap=True,
                         title=f"{len(frame)} matrices: quantiles over matrices")
    labels = {"tau": "Kendall tau between passes", "tau_fastest": "within the fastest quarter",
              "agreement": "pairs > 5 % in the same order", "noise": "A/A noise of the default",
              "gain": "default / best"}
    for column, label in labels.items():
        table.add_row(label, *(f"{frame[column].quantile(share):.3f}" for share in quantiles))
    return table


@dataclass(frozen=True)
class SummariseSamples:
    """Describe the optimum and the effect of every knob, for each operation and preset."""

    ops: Sequence[Op]
    platforms: Sequence["Platform"]
    samples: SampleSource
    roles: Sequence[str]

    def run(self, out: Path) -> Mapping[str, float]:
        """Write optimum.parquet and knobs.parquet, print both tables; return the statistics of the optimum."""
        metrics: dict[str, float] = {}
        optima, knobs = [], []
        for platform in self.platforms:
            for op in self.ops:
                truth, space = self._truth(platform, op), platform.space(op)
                found = describe_optimum(truth)
                metrics |= {f"{op.name}/{platform.preset}/{key}": value for key, value in found.items()}
                optima.append({"op": op.name, "preset": platform.preset, **found})
                knobs.append(knob_effects(truth, space).assign(op=op.name, preset=platform.preset))
        effects = pd.concat(knobs, ignore_index=True)
        for name, frame in (("optimum", pd.DataFrame(optima)), ("knobs", effects)):
            write_frame(out / f"{name}.parquet", frame)
        log.console.print(_optimum_table(optima), soft_wrap=False)
        log.console.print(_knob_table(effects), soft_wrap=False)
        return metrics

    def _truth(self, platform: "Platform", op: Op) -> RuntimeTable:
        space = platform.space(op)
        roles, inputs = self.samples.split(), self.samples.inputs()
        labels = samples_of(self.samples, platform, op).labels()
        counts = labels.groupby("matrix").size()
        names = sorted(name for name in counts.index[counts == len(space)] if roles[name] in self.roles)
        return RuntimeTable.of(labels, space, {name: inputs[name].shape for name in names})


def describe_optimum(truth: RuntimeTable) -> dict[str, float]:
    """Return speedups of the best configuration over the default, and the variety of the winners."""
    gains = truth.default / truth.best
    winners = pd.Series([truth.programs[row, column] for row, column in enumerate(truth.seconds.argmin(axis=1))])
    low, high = bootstrap_interval(gains, seed=0)
    return {
        "matrices": len(gains), "optimum": geomean(gains), "optimum_low": low, "optimum_high": high,
        "optimum_max": float(gains.max()), "optimum_median": float(np.median(gains)),
        "below_1.05": float((gains < 1.05).mean()), "winners": int(winners.nunique()),
        "most_frequent_winner": float(winners.value_counts(normalize=True).iloc[0]),
        "worst_over_best_median": float(np.median(truth.seconds.max(axis=1) / truth.best)),
    }


def knob_effects(truth: RuntimeTable, space: ConfigSpace) -> pd.DataFrame:
    """Compare the best times of each value of a knob with those of each later value.

    Returns:
        Columns knob, before, after; faster, slower: share of the matrices whose best time changes by more than 5 %;
        change: geometric mean of best time after / before.
    """
    rows = []
    for parameter in space.parameters:
        best = {value: np.log(truth.seconds[:, _columns(truth.configs, parameter.name, value)].min(axis=1))
                for value in parameter.values}
        values = list(parameter.values)
        for index, before in enumerate(values):
            for after in values[index + 1:]:
                change = best[after] - best[before]
                rows.append({"knob": parameter.name, "before": str(before), "after": str(after),
                             "faster": float((change < -EFFECT).mean()), "slower": float((change > EFFECT).mean()),
                             "change": float(np.exp(change.mean()))})
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class CompareSlopes:
    """Correlate, over matrices, what tile sizes do to seconds on source platforms and on the target.

    A network that was pre-trained on a source can only transfer what both platforms have in common. Where their slopes
    do not correlate, it has learned nothing about which matrices want large tiles on the target.

    Args:
        sources: platforms, each with a preset; those without samples are left out.
    """

    op: Op
    sources: Sequence["Platform"]
    target: "Platform"
    samples: SampleSource

    def run(self, out: Path) -> Mapping[str, float]:
        """Write slopes.parquet and print the table; return Spearman's correlation and median slopes by source.

        Raises:
            MissingArtifact: the target has no samples.
        """
        found = {_preset(self.target): slopes(self.samples, self.target, self.op)}
        for source in self.sources:
            try:
                found[_preset(source)] = slopes(self.samples, source, self.op)
            except MissingArtifact as missing:
                logger.warning("%s is left out: %s", _preset(source), missing)
        frames = [frame.assign(platform=name).reset_index() for name, frame in found.items()]
        write_frame(out / "slopes.parquet", pd.concat(frames, ignore_index=True))
        reference, metrics = found.pop(_preset(self.target)), {}
        for name, frame in found.items():
            for slope in EXTENTS:
                both = pd.DataFrame({"source": frame[slope], "target": reference[slope]}).dropna()
                metrics[f"{name}/{slope}/spearman"] = float(both["source"].corr(both["target"], method="spearman"))
                metrics[f"{name}/{slope}/median"] = float(both["source"].median())
                metrics[f"{name}/{slope}/target_median"] = float(both["target"].median())
                metrics[f"{name}/{slope}/matrices"] = len(both)
        log.console.print(_slope_table(metrics, list(found), f"{self.op.name}: slopes of {_preset(self.target)} and"))
        return metrics


def slopes(samples: SampleSource, platform: "Platform", op: Op) -> pd.DataFrame:
    """Fit, for every matrix, the logarithm of seconds to those of the extents of the shared tile.

    The fit is linear, by least squares, and has the hardware-specific codes of a configuration beside the extents, so
    that the slope of one is what remains with all others equal.

    Returns:
        A row per matrix with the columns rows, columns and dense; NaN where an extent does not vary.
    """
    space, inputs = platform.space(op), samples.inputs()
    labels, found = samples_of(samples, platform, op).labels(), {}
    for name, rows in labels.groupby("matrix"):
        bound = space.bind(inputs[str(name)].shape)
        configs = [bound.parse(key) for key in rows["config"]]
        extents = np.log([[getattr(shared, letter) for letter in EXTENTS.values()]
                          for shared in map(bound.shared, configs)])
        terms = np.column_stack([extents, bound.vectors(configs)[1], np.ones(len(rows))])
        fitted = np.linalg.lstsq(terms, np.log(rows["seconds"].to_numpy()), rcond=None)[0][:len(EXTENTS)]
        found[str(name)] = np.where(np.ptp(extents, axis=0) > 0, fitted, np.nan)
    return pd.DataFrame.from_dict(found, orient="index", columns=list(EXTENTS)).rename_axis("matrix")


def _preset(platform: "Platform") -> str:
    return f"{platform.name}_{platform.preset}"


def _slope_table(metrics: Mapping[str, float], sources: Sequence[str], title: str) -> Table:
    shown = {"spearman": "Spearman", "median": "median"}
    table = report_table(("source", "matrices", *(f"{slope} {what}" for slope in EXTENTS for what in shown.values())),
                         title=f"{title} each source over matrices")
    for name in sources:
        table.add_row(name, str(metrics[f"{name}/rows/matrices"]), *(
            f"{metrics[f'{name}/{slope}/{what}']:.3f}" for slope in EXTENTS for what in shown))
    return table


def _columns(configs: Sequence[Config], name: str, value: object) -> list[int]:
    return [column for column, config in enumerate(configs) if config[name] == value]


def _optimum_table(optima: Sequence[Mapping[str, float]]) -> Table:
    headings = ("op", "preset", "matrices", "geomean", "95 %", "max", "median", "< 1.05x", "winners", "top winner",
                "worst/best")
    table = report_table(headings, title="best configuration over the default", text=())
    for row in optima:
        table.add_row(
            str(row["op"]), str(row["preset"]), str(row["matrices"]), f"{row['optimum']:.3f}",
            f"{row['optimum_low']:.3f}–{row['optimum_high']:.3f}", f"{row['optimum_max']:.2f}",
            f"{row['optimum_median']:.3f}", f"{row['below_1.05']:.0%}", str(row["winners"]),
            f"{row['most_frequent_winner']:.0%}", f"{row['worst_over_best_median']:.1f}")
    return table


def _knob_table(effects: pd.DataFrame) -> Table:
    table = report_table(
        ("op", "preset", "knob", "from", "to", "faster", "slower", "ratio"), text=(),
        title="best time with a knob at one value against another: share of matrices beyond 5 %, mean ratio")
    for row in effects.itertuples():
        table.add_row(row.op, row.preset, row.knob, row.before, row.after, f"{row.faster:.0%}", f"{row.slower:.0%}",
                      f"{row.change:.3f}")
    return table
