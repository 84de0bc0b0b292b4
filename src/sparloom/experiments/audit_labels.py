"""How much timed labels can be trusted: two independent passes against each other, and what there is to gain."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom import log
from sparloom.data import SampleSource, SampleTable, write_frame
from sparloom.experiments.failures import tell_failures
from sparloom.experiments.labels import samples_of
from sparloom.measure import geomean, kendall_tau, noise_floor
from sparloom.ops import Op

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["AuditLabels"]

FASTEST = 0.25  # share of the configurations within which a choice is made


@dataclass(frozen=True)
class AuditLabels:
    """Compare the first two rounds of a timed sample table, matrix by matrix.

    Args:
        platform: whose samples.
    """

    op: Op
    platform: "Platform"
    samples: SampleSource

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet and print the distributions; returns their medians and quantiles."""
        table = samples_of(self.samples, self.platform, self.op)
        default = self.platform.space(self.op).default().key
        frame = audit(table, default)
        write_frame(out / "per_matrix.parquet", frame)
        rows = table.frame()
        log.console.print(_distributions(frame), soft_wrap=False)
        tell_failures(table)
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
    """One row per matrix that has two rounds.

    Returns:
        tau between the two rounds; tau_fastest within the quarter that the mean of both calls fastest; agreement: share
        of the pairs that differ by more than 5 % in the first round and have the same order in the second; noise of the
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
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                  title=f"{len(frame)} matrices: quantiles over matrices")
    table.add_column("")
    for share in quantiles:
        table.add_column(f"{share:.0%}", justify="right")
    labels = {"tau": "Kendall tau between passes", "tau_fastest": "within the fastest quarter",
              "agreement": "pairs > 5 % in the same order", "noise": "A/A noise of the default",
              "gain": "default / best"}
    for column, label in labels.items():
        table.add_row(label, *(f"{frame[column].quantile(share):.3f}" for share in quantiles))
    return table
