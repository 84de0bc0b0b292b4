"""Advice of a model that learns from stored labels of the platform when it is first asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom.data import SampleSource
from sparloom.experiments.adviser import Advice
from sparloom.experiments.beginning import Beginning
from sparloom.experiments.learning import Learning
from sparloom.experiments.study import Study
from sparloom.models import CostModel, MatrixView, how_familiar
from sparloom.ops import Op
from sparloom.space import Config
from sparloom.sparse import STATISTICS, signed_logarithm

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["Fitted"]


@dataclass(frozen=True)
class Fitted:
    """A model without a network, which learns in seconds and so is kept nowhere.

    Args:
        samples: hold the labels.
        name: of the model, in records.
        seed: of the drawn labels and of everything random in learning.
    """

    op: Op
    platform: "Platform"
    samples: SampleSource
    learning: Learning
    name: str
    seed: int

    @property
    def origin(self) -> str:
        labels, _ = self._learned
        return f"{self.name}, {len(labels)} labels of {labels['matrix'].nunique()} matrices, seed {self.seed}"

    @cached_property
    def learned_from(self) -> frozenset[str]:
        """Matrices of the target, and those of the source's network where it votes."""
        known = self._beginning.notes.get("matrices", ()) if self._beginning else ()
        return frozenset((*self._learned[0]["matrix"], *known))

    def prepare(self) -> None:
        _ = self._learned

    def advise(self, view: MatrixView, configs: Sequence[Config]) -> Advice:
        """Score configurations; familiarity compares statistics, as signed logarithms scaled to unit variance."""
        _, model = self._learned
        return Advice(model.score(view, configs), how_familiar(self._place(view.statistics), self._anchors))

    @cached_property
    def _study(self) -> Study:
        return Study(self.platform, self.op, self.samples, "validation")

    @cached_property
    def _beginning(self) -> Beginning | None:
        self._study.refuse_other_widths()
        return self.learning.begin(self._study)

    @cached_property
    def _learned(self) -> tuple[pd.DataFrame, CostModel]:
        learner = self.learning.learner(self._study, self._beginning)
        return self.learning.learn(self._study, learner, self.seed)

    @cached_property
    def _scale(self) -> tuple[np.ndarray, np.ndarray]:
        names = sorted(set(self._learned[0]["matrix"]))
        values = signed_logarithm(self._study.statistics.loc[names, list(STATISTICS)].to_numpy(np.float64))
        spread = values.std(axis=0)
        return values.mean(axis=0), np.where(spread > 0, spread, 1)

    @cached_property
    def _anchors(self) -> Mapping[str, np.ndarray]:
        rows = self._study.statistics.to_dict(orient="index")
        return {name: self._place(rows[name]) for name in sorted(set(self._learned[0]["matrix"]))}

    def _place(self, statistics: Mapping[str, float]) -> np.ndarray:
        mean, spread = self._scale
        return (signed_logarithm(np.array([statistics[name] for name in STATISTICS])) - mean) / spread
