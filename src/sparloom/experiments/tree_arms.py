"""Variants of training a performance model, whose choices are compared to test a learning."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import lightgbm
import numpy as np
from jaxtyping import Float

from sparloom.experiments.tree_methods import chosen
from sparloom.experiments.tree_subject import TreeSubject
from sparloom.models.performance import (
    Grid,
    Growth,
    Mining,
    Target,
    assign_folds,
    cross_fit,
    fold_of,
    grow_each,
    mine_hard_examples,
    out_of_fold,
)
from sparloom.report import efficiencies

__all__ = ["TreeArms"]

Arm = tuple[str, Float[np.ndarray, "problems configs"]]
"""Name and scores out of fold, low = fast."""


@dataclass(frozen=True)
class TreeArms:
    """All variants on the same folds.

    Args:
        growth: of everything but the two sizes.
        small, big: growths of the source's two models; all their trees are grown.
        mining: of hard examples.
        share: of the training problems, where there are fewer.
        more_trees: that a model on fewer problems gets when it sees all.
    """

    subject: TreeSubject
    growth: Growth
    small: Growth
    big: Growth
    folds: int
    mining: Mining
    share: float
    more_trees: int

    def __iter__(self) -> Iterator[Arm]:
        yield from self._scales()
        yield from self._random_rows()
        yield from self._sizes()
        yield from self._mined()
        yield from self._fewer_features()
        yield from self._fewer_problems()

    @cached_property
    def members(self) -> list[lightgbm.Booster]:
        """Of the model on log1p throughput, one per fold."""
        return cross_fit(self.grid, self.growth, self._fold)

    @cached_property
    def fixed(self) -> Growth:
        """As many trees as the model has, for variants that are not stopped early."""
        return self.growth.with_trees(int(np.median([member.num_trees() for member in self.members])))

    @cached_property
    def grid(self) -> Grid:
        """What the members read and learn."""
        return self._scaled("log1p")

    @cached_property
    def _fold(self) -> np.ndarray:
        measured = self.subject.measured
        return fold_of(measured, assign_folds(measured.groups, self.folds, seed=self.growth.seed))

    def _scaled(self, scale: str) -> Grid:
        return Grid.of(self.subject.spec, self.subject.measured, target=Target("throughput", scale))

    def _scores(self, grid: Grid, members: Sequence[lightgbm.Booster], folds: np.ndarray) -> np.ndarray:
        return -out_of_fold(grid, members, folds, threads=self.growth.threads)

    def _scales(self) -> Iterator[Arm]:
        yield "log1p", self._scores(self.grid, self.members, self._fold)
        for scale in ("raw", "log"):
            grid = self._scaled(scale)
            yield scale, self._scores(grid, cross_fit(grid, self.growth, self._fold), self._fold)

    def _random_rows(self) -> Iterator[Arm]:
        """Folds of single rows: a model knows other configurations of the problem that it is scored on."""
        folds = np.random.default_rng(self.growth.seed).integers(self.folds, size=self.grid.targets.shape)
        yield "random_rows", self._scores(self.grid, cross_fit(self.grid, self.growth, folds), folds)

    def _sizes(self) -> Iterator[Arm]:
        for name, growth in (("small", self.small), ("big", self.big)):
            yield name, self._scores(self.grid, grow_each(self.grid, growth, self._fold), self._fold)

    def _mined(self) -> Iterator[Arm]:
        """The first round, in which all problems weigh the same, is the model with a fixed number of trees."""
        reached = efficiencies(self.subject.measured.seconds)

        def judge(learned: np.ndarray) -> np.ndarray:
            return reached[np.arange(len(reached)), chosen(self.subject, -learned)]

        rounds = mine_hard_examples(self.grid, self.fixed, self._fold, mining=self.mining, judge=judge)
        for turn, learned in enumerate(rounds):
            yield f"mined_{turn}" if turn else "fixed", -learned

    def _fewer_features(self) -> Iterator[Arm]:
        spec = self.subject.spec
        interaction = {feature.name for feature in spec.features if feature.group == "interaction"}
        for name, left in (("without_dimensions", {"m", "n", "k"}), ("without_interaction", interaction)):
            grid = self.grid.only([feature for feature in self.grid.names if feature not in left])
            yield name, self._scores(grid, grow_each(grid, self.fixed, self._fold), self._fold)

    def _fewer_problems(self) -> Iterator[Arm]:
        rng = np.random.default_rng(self.growth.seed)
        kept = rng.permutation(len(self.subject))[:, None] < self.share * len(self.subject)
        base = grow_each(self.grid, self.fixed, self._fold, kept=kept)
        yield "part", self._scores(self.grid, base, self._fold)
        more = self.fixed.with_trees(self.more_trees)
        grown = [more.grow(self.grid.rows(self._fold != fold), self.grid.names, base=member)
                 for fold, member in enumerate(base)]
        yield "grown_further", self._scores(self.grid, grown, self._fold)
        tall = (self.subject.scene.about["slice"] != "m1").to_numpy()[:, None]
        others = grow_each(self.grid, self.fixed, self._fold, kept=tall)
        yield "without_m1", self._scores(self.grid, others, self._fold)
