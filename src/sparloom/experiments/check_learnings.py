"""What the CK Tile authors learned about trees, put to the test on our GEMM samples."""

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom import log
from sparloom.data import SampleSource, write_frame
from sparloom.experiments.tree_arms import TreeArms
from sparloom.experiments.tree_degenerate import degenerate_results
from sparloom.experiments.tree_methods import chosen
from sparloom.experiments.tree_subject import gemm_subject
from sparloom.models.performance import Growth, Mining
from sparloom.ops import GEMM
from sparloom.report import Learning, contrast, draw_learnings, learnings_table, slice_lead

if TYPE_CHECKING:
    from sparloom.platforms import CpuKernels

__all__ = ["CheckLearnings"]

CLAIMS: Mapping[int, str] = {
    1: "a logarithm is essential", 2: "one row is the hardest case", 3: "mining hard examples hurts",
    4: "random folds flatter", 5: "a bigger model is a little better", 6: "kernels fail at N = 1 and K = 1",
    7: "dimensions and their interaction with tiles matter most", 8: "a model can grow further",
    9: "data matter more than the size of the model",
}
DIMENSIONS = ("m", "n", "k")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckLearnings:
    """Train every variant that a learning speaks of, on the same folds, and compare their choices.

    Args:
        growth, small, big, folds, mining, share, more_trees: see `TreeArms`.
    """

    gemm: GEMM
    gemm_platform: "CpuKernels"
    samples: SampleSource
    judging_sweep: int
    growth: Growth
    small: Growth
    big: Growth
    folds: int
    mining: Mining
    share: float
    more_trees: int
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_problem.parquet and learnings.parquet; print and draw the latter."""
        began = time.monotonic()
        whole = gemm_subject(self.samples, self.gemm_platform, self.gemm, judging=self.judging_sweep)
        subject = whole.take(~whole.unasked)
        arms = TreeArms(subject, growth=self.growth, small=self.small, big=self.big, folds=self.folds,
                        mining=self.mining, share=self.share, more_trees=self.more_trees)
        frames = []
        for method, scores in arms:
            frames.append(subject.scene.judged(method, chosen(subject, scores)))
            logger.info("%s: mean efficiency %.4f; %.0f s", method, frames[-1]["efficiency"].mean(),
                        time.monotonic() - began)
        rows = pd.concat(frames, ignore_index=True)
        learnings = [*self._compared(rows), self._degenerate(), self._splits(arms)]
        learnings.sort(key=lambda test: test.number)
        table = pd.DataFrame([asdict(test) | {"verdict": test.verdict} for test in learnings])
        for name, frame in (("per_problem", rows), ("learnings", table)):
            write_frame(out / f"{name}.parquet", frame)
        log.console.print(learnings_table(learnings), soft_wrap=False)
        draw_learnings(table, out / "learnings", title=f"GEMM, {len(subject)} shapes, {self.folds} folds")
        return _metrics(rows, learnings) | {"problems": len(subject), "seconds": time.monotonic() - began}

    def _compared(self, rows: pd.DataFrame) -> list[Learning]:
        """Learnings that compare choices."""
        last = f"mined_{self.mining.rounds}"
        one_row = rows[rows["slice"] == "m1"]

        def test(number: int, key: str, measure: str, weights: Mapping[str, float], *, statistic: str = "mean",
                 among: pd.DataFrame = rows) -> Learning:
            found = contrast(among, weights, statistic=statistic, seed=self.seed)
            return Learning(number, key, CLAIMS[number], f"{measure}, {statistic}", *found)

        scales, mined, sizes = {"log1p": 1, "raw": -1}, {"fixed": 1, last: -1}, {"big": 1, "small": -1}
        return [
            test(1, "log1p_over_raw", "log1p over raw", scales),
            test(1, "log1p_over_raw_p10", "log1p over raw", scales, statistic="p10"),
            test(1, "log1p_over_log", "log1p over log", {"log1p": 1, "log": -1}),
            Learning(2, "others_over_m1", CLAIMS[2], "other shapes over M = 1, mean",
                     *slice_lead(rows, "log1p", "m1", seed=self.seed)),
            test(3, "plain_over_mined", "all alike over hard ones heavier", mined),
            test(3, "plain_over_mined_p10", "all alike over hard ones heavier", mined, statistic="p10"),
            test(4, "rows_over_shapes", "folds of rows over folds of shapes", {"random_rows": 1, "log1p": -1}),
            test(5, "big_over_small", "2000 x 255 leaves over 500 x 127", sizes),
            test(5, "big_over_small_p10", "2000 x 255 leaves over 500 x 127", sizes, statistic="p10"),
            test(7, "over_without_dimensions", "all over all but M, N, K", {"fixed": 1, "without_dimensions": -1}),
            test(7, "over_without_interaction", "all over all but interaction",
                 {"fixed": 1, "without_interaction": -1}),
            test(8, "grown_over_base", "grown further over its base", {"grown_further": 1, "part": -1}),
            test(8, "grown_over_anew", "grown further over anew", {"grown_further": 1, "fixed": -1}),
            test(9, "data_over_size", "more shapes over more leaves", {"fixed": 1, "part": -1, "big": -1, "small": 1}),
            test(9, "m1_learned_over_not", "on M = 1: learned from it over not", {"fixed": 1, "without_m1": -1},
                 among=one_row),
        ]

    def _degenerate(self) -> Learning:
        """Share of results that are wrong less the share that are right; bounds by the rule of succession."""
        right, asked = degenerate_results(self.gemm_platform, self.gemm)
        draws = np.random.default_rng(self.seed).beta(asked - right + 1, right + 1, 20_000)
        low, high = np.quantile(2 * draws - 1, [0.025, 0.975])
        value = 1 - 2 * right / asked
        return Learning(6, "wrong_over_right", CLAIMS[6], f"wrong less right of {asked} results",
                        value, min(value, float(low)), max(value, float(high)))

    def _splits(self, arms: TreeArms) -> Learning:
        """How far above the other features M, N and K stand in the order of splits, as a share of all places."""
        names = arms.grid.names
        own = np.array([name in DIMENSIONS for name in names])
        leads = []
        for member in arms.members:
            rank = np.argsort(np.argsort(member.feature_importance("split"))) / (len(names) - 1)
            leads.append(rank[own].mean() - rank[~own].mean())
        measure = f"place of M, N, K by splits, range over {len(leads)} models"
        return Learning(7, "dimensions_by_splits", CLAIMS[7], measure, float(np.mean(leads)), float(min(leads)),
                        float(max(leads)))


def _metrics(rows: pd.DataFrame, learnings: list[Learning]) -> dict[str, float]:
    """`<method>/mean_efficiency` and `/p10_efficiency`; `<number>/<key>` of each test with its bounds."""
    found: dict[str, float] = {}
    for method, own in rows.groupby("method", sort=False):
        found |= {f"{method}/mean_efficiency": float(own["efficiency"].mean()),
                  f"{method}/p10_efficiency": float(own["efficiency"].quantile(0.1))}
    for test in learnings:
        key = f"{test.number}/{test.key}"
        found |= {key: test.value, f"{key}_low": test.low, f"{key}_high": test.high}
    return found
