"""What the options of SPADE do on generated stand-ins, against the tables of its paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom import log
from sparloom.data import write_frame
from sparloom.experiments.fanout import run_jobs

if TYPE_CHECKING:
    from sparloom.platforms import SpadePlatform

__all__ = ["CheckSpadeSigns", "judged"]

BAND = 5.0            # percent; a smaller effect has no sign, as in summarise_samples
BASE = "256 x all"    # the tile that effects of other tiles are relative to


@dataclass(frozen=True)
class CheckSpadeSigns:
    """Simulate the options of ISCA'23 table 3 on stand-ins at 1/factor of the size and compare with the paper.

    Args:
        target: the machine of the paper; it is scaled down with the matrices.
        matrices: names of ISCA'23 table 4.
        jobs: processes, one matrix each.
    """

    target: "SpadePlatform"
    factor: int
    matrices: Sequence[str]
    widths: Sequence[int]
    jobs: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write signs.parquet; returns for each table how many signs agree, differ by a tie, and are opposite."""
        jobs = {name: name for name in self.matrices}
        found = dict(run_jobs(self.simulate, jobs, weights=dict.fromkeys(jobs, 1.0), processes=self.jobs,
                              description="stand-ins"))
        frame = judged(pd.concat([found[name] for name in self.matrices], ignore_index=True))
        write_frame(out / "signs.parquet", frame)
        metrics: dict[str, float] = {"factor": self.factor}
        for table, rows in frame[frame["verdict"] != "base"].groupby("table", sort=False):
            counts = rows["verdict"].value_counts()
            metrics |= {f"{table}/cases": len(rows)}
            metrics |= {f"{table}/{verdict}": int(counts.get(verdict, 0)) for verdict in ("agree", "tie", "opposite")}
            log.console.print(f"{table}: {counts.get('agree', 0)} of {len(rows)} signs agree, "
                              f"{counts.get('tie', 0)} are a tie on one side, {counts.get('opposite', 0)} are opposite")
        return metrics

    def simulate(self, name: str) -> pd.DataFrame:
        """Published numbers and ours for one matrix: columns as the fields of `Sign`."""
        from sparloom.platforms.spade import sign_records

        return pd.DataFrame(sign_records(self.target.machine, factor=self.factor, matrices=[name], widths=self.widths))


def judged(frame: pd.DataFrame) -> pd.DataFrame:
    """Add effects in percent of time (of speedup for "gain") and a verdict on their signs.

    Returns:
        The frame with paper_effect, our_effect and verdict: "agree", both effects have one sign or are both within
        5 %; "tie", one is within 5 % and the other is not; "opposite"; "base", the tile that the others refer to.
    """
    made = frame.copy()
    keys = ["table", "matrix", "op", "width"]
    for column, effect in (("paper", "paper_effect"), ("ours", "our_effect")):
        base = made[column].where(made["setting"] == BASE).groupby([made[key] for key in keys]).transform("first")
        relative = 100 * (made[column] / base.where(made["table"] == "tiles", 1.0) - 1)
        made[effect] = made[column].where(made["table"].isin(["barrier", "bypass"]), relative)
    signs = [np.sign(made[effect]) * (made[effect].abs() > BAND) for effect in ("paper_effect", "our_effect")]
    apart = (signs[0] - signs[1]).abs()
    verdict = apart.map({0: "agree", 1: "tie", 2: "opposite"})
    made["verdict"] = verdict.where(made["setting"] != BASE, "base")
    return made
