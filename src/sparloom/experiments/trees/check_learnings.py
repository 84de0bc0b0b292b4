"""Test what the CK Tile authors learned about trees on our GEMM samples."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import lightgbm
import numpy as np
import pandas as pd
from jaxtyping import Float

from sparloom.data import SampleSource
from sparloom.experiments.harness import finish
from sparloom.experiments.trees.evaluation import TreeSubject, best_configs, gemm_subject
from sparloom.models.performance import (
    BoostingConfig,
    Grid,
    Mining,
    Target,
    assign_folds,
    cross_fit,
    mine_hard_examples,
    out_of_fold,
    problem_folds,
    train_per_fold,
)
from sparloom.ops import GEMM, GemmShape, assert_close
from sparloom.report import PaperClaim, contrast, draw_learnings, efficiencies, slice_lead

if TYPE_CHECKING:
    from sparloom.platforms import CpuKernels

TrainingVariant = tuple[str, Float[np.ndarray, "problems configs"]]
"""Name and out-of-fold scores, low = fast."""

SHAPES = tuple(GemmShape(*sizes) for sizes in (
    (1, 1, 1), (1, 1, 64), (1, 64, 1), (64, 1, 1), (64, 1, 64), (64, 64, 1), (300, 1, 257), (300, 257, 1)))
CLAIMS: Mapping[int, str] = {
    1: "a logarithm is essential", 2: "one row is the hardest case", 3: "mining hard examples hurts",
    4: "random folds flatter", 5: "a bigger model is a little better", 6: "kernels fail at N = 1 and K = 1",
    7: "dimensions and their interaction with tiles matter most", 8: "a model can grow further",
    9: "data matter more than the size of the model",
}
DIMENSIONS = ("m", "n", "k")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingVariants:
    """Train all variants of the performance model on the same folds."""

    subject: TreeSubject
    settings: "CheckLearnings"

    def __iter__(self) -> Iterator[TrainingVariant]:
        yield from self._scales()
        yield from self._random_rows()
        yield from self._sizes()
        yield from self._mined()
        yield from self._fewer_features()
        yield from self._fewer_problems()

    @cached_property
    def members(self) -> list[lightgbm.Booster]:
        """Boosters of the model on log1p throughput, one per fold."""
        return cross_fit(self.grid, self.settings.growth, self._fold)

    @cached_property
    def fixed(self) -> BoostingConfig:
        """Settings with as many trees as the model has, for variants without early stopping."""
        return self.settings.growth.with_trees(int(np.median([member.num_trees() for member in self.members])))

    @cached_property
    def grid(self) -> Grid:
        """Features and targets of the members."""
        return self._scaled("log1p")

    @cached_property
    def _fold(self) -> np.ndarray:
        measured, settings = self.subject.measured, self.settings
        return problem_folds(measured, assign_folds(measured.groups, settings.folds, seed=settings.growth.seed))

    def _scaled(self, scale: str) -> Grid:
        return Grid.of(self.subject.spec, self.subject.measured, target=Target("throughput", scale))

    def _scores(self, grid: Grid, members: Sequence[lightgbm.Booster], folds: np.ndarray) -> np.ndarray:
        return -out_of_fold(grid, members, folds, threads=self.settings.growth.threads)

    def _scales(self) -> Iterator[TrainingVariant]:
        yield "log1p", self._scores(self.grid, self.members, self._fold)
        for scale in ("raw", "log"):
            grid = self._scaled(scale)
            yield scale, self._scores(grid, cross_fit(grid, self.settings.growth, self._fold), self._fold)

    def _random_rows(self) -> Iterator[TrainingVariant]:
        """Yield the variant with folds of single rows, which has seen other configurations of the scored problem."""
        rng = np.random.default_rng(self.settings.growth.seed)
        folds = rng.integers(self.settings.folds, size=self.grid.targets.shape)
        yield "random_rows", self._scores(self.grid, cross_fit(self.grid, self.settings.growth, folds), folds)

    def _sizes(self) -> Iterator[TrainingVariant]:
        for name, growth in (("small", self.settings.small), ("big", self.settings.big)):
            yield name, self._scores(self.grid, train_per_fold(self.grid, growth, self._fold), self._fold)

    def _mined(self) -> Iterator[TrainingVariant]:
        """Yield the rounds of mining; the first round, with equal weights, is the model of fixed size."""
        reached = efficiencies(self.subject.measured.seconds)

        def judge(learned: np.ndarray) -> np.ndarray:
            return reached[np.arange(len(reached)), best_configs(self.subject, -learned)]

        rounds = mine_hard_examples(self.grid, self.fixed, self._fold, mining=self.settings.mining, judge=judge)
        for turn, learned in enumerate(rounds):
            yield f"mined_{turn}" if turn else "fixed", -learned

    def _fewer_features(self) -> Iterator[TrainingVariant]:
        spec = self.subject.spec
        interaction = {feature.name for feature in spec.features if feature.group == "interaction"}
        for name, left in (("without_dimensions", {"m", "n", "k"}), ("without_interaction", interaction)):
            grid = self.grid.only([feature for feature in self.grid.names if feature not in left])
            yield name, self._scores(grid, train_per_fold(grid, self.fixed, self._fold), self._fold)

    def _fewer_problems(self) -> Iterator[TrainingVariant]:
        rng = np.random.default_rng(self.settings.growth.seed)
        included = rng.permutation(len(self.subject))[:, None] < self.settings.share * len(self.subject)
        base = train_per_fold(self.grid, self.fixed, self._fold, kept=included)
        yield "part", self._scores(self.grid, base, self._fold)
        more = self.fixed.with_trees(self.settings.growth.more_trees)
        grown = [more.train(self.grid.rows(self._fold != fold), self.grid.names, base=member)
                 for fold, member in enumerate(base)]
        yield "grown_further", self._scores(self.grid, grown, self._fold)
        tall = (self.subject.judged.about["slice"] != "m1").to_numpy()[:, None]
        others = train_per_fold(self.grid, self.fixed, self._fold, kept=tall)
        yield "without_m1", self._scores(self.grid, others, self._fold)


def degenerate_results(platform: "CpuKernels", op: GEMM) -> tuple[int, int]:
    """Run every configuration on small degenerate shapes; return how many results are right, and how many ran."""
    right = asked = 0
    for shape in SHAPES:
        operands = op.operands(shape, seed=0)
        oracle, terms, scale = op.oracle(operands), op.terms(shape), op.scale(operands)
        for config in platform.space(op):
            asked += 1
            try:
                assert_close(platform.run(op, operands, config), oracle, terms=terms, scale=scale)
            except AssertionError:
                continue
            right += 1
    return right, asked


@dataclass(frozen=True)
class CheckLearnings:
    """Train every variant that a learning mentions on the same folds, and compare their choices.

    Args:
        growth: settings of all variants but the two sizes; a model of fewer problems grows further by its `more_trees`.
        small, big: settings of the two models of the source, without early stopping.
        mining: settings of hard-example mining.
        share: share of the training problems in variants with fewer problems.
    """

    gemm: GEMM
    gemm_platform: "CpuKernels"
    samples: SampleSource
    judging_sweep: int
    growth: BoostingConfig
    small: BoostingConfig
    big: BoostingConfig
    folds: int
    mining: Mining
    share: float
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_problem.parquet and learnings.parquet; print and draw the latter."""
        began = time.monotonic()
        whole = gemm_subject(self.samples, self.gemm_platform, self.gemm, judging=self.judging_sweep)
        subject = whole.take(~whole.unasked)
        variants = TrainingVariants(subject, self)
        frames = []
        for method, scores in variants:
            frames.append(subject.judged.choices(method, best_configs(subject, scores)))
            logger.info("%s: mean efficiency %.4f; %.0f s", method, frames[-1]["efficiency"].mean(),
                        time.monotonic() - began)
        rows = pd.concat(frames, ignore_index=True)
        learnings = [*self._compared(rows), self._degenerate(), self._splits(variants)]
        learnings.sort(key=lambda test: test.number)
        table = pd.DataFrame([asdict(test) | {"verdict": test.verdict} for test in learnings])
        title, counts = f"GEMM, {len(subject)} shapes, {self.folds} folds", {"problems": len(subject)}
        return finish(out, None, _metrics(rows, learnings) | counts | {"seconds": time.monotonic() - began},
                      lambda out: draw_learnings(table, out / "learnings", title=title), per_problem=rows,
                      learnings=table)

    def _compared(self, rows: pd.DataFrame) -> list[PaperClaim]:
        """Test the learnings that compare choices."""
        last = f"mined_{self.mining.rounds}"
        one_row = rows[rows["slice"] == "m1"]

        def test(number: int, key: str, measure: str, weights: Mapping[str, float], *, statistic: str = "mean",
                 among: pd.DataFrame = rows) -> PaperClaim:
            found = contrast(among, weights, statistic=statistic, seed=self.seed)
            return PaperClaim(number, key, CLAIMS[number], f"{measure}, {statistic}", *found)

        scales, mined, sizes = {"log1p": 1, "raw": -1}, {"fixed": 1, last: -1}, {"big": 1, "small": -1}
        return [
            test(1, "log1p_over_raw", "log1p over raw", scales),
            test(1, "log1p_over_raw_p10", "log1p over raw", scales, statistic="p10"),
            test(1, "log1p_over_log", "log1p over log", {"log1p": 1, "log": -1}),
            PaperClaim(2, "others_over_m1", CLAIMS[2], "other shapes over M = 1, mean",
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

    def _degenerate(self) -> PaperClaim:
        """Share of wrong results minus share of right results; bounds by the rule of succession."""
        right, asked = degenerate_results(self.gemm_platform, self.gemm)
        draws = np.random.default_rng(self.seed).beta(asked - right + 1, right + 1, 20_000)
        low, high = np.quantile(2 * draws - 1, [0.025, 0.975])
        value = 1 - 2 * right / asked
        return PaperClaim(6, "wrong_over_right", CLAIMS[6], f"wrong less right of {asked} results",
                        value, min(value, float(low)), max(value, float(high)))

    def _splits(self, variants: TrainingVariants) -> PaperClaim:
        """Lead of M, N and K over the other features in the ranking by splits, as a share of all ranks."""
        names = variants.grid.names
        own = np.array([name in DIMENSIONS for name in names])
        leads = []
        for member in variants.members:
            rank = np.argsort(np.argsort(member.feature_importance("split"))) / (len(names) - 1)
            leads.append(rank[own].mean() - rank[~own].mean())
        measure = f"place of M, N, K by splits, range over {len(leads)} models"
        return PaperClaim(7, "dimensions_by_splits", CLAIMS[7], measure, float(np.mean(leads)), float(min(leads)),
                        float(max(leads)))


def _metrics(rows: pd.DataFrame, learnings: list[PaperClaim]) -> dict[str, float]:
    """`<method>/mean_efficiency` and `/p10_efficiency`; `<number>/<key>` of each test with its bounds."""
    found: dict[str, float] = {}
    for method, own in rows.groupby("method", sort=False):
        found |= {f"{method}/mean_efficiency": float(own["efficiency"].mean()),
                  f"{method}/p10_efficiency": float(own["efficiency"].quantile(0.1))}
    for test in learnings:
        key = f"{test.number}/{test.key}"
        found |= {key: test.value, f"{key}_low": test.low, f"{key}_high": test.high}
    return found
