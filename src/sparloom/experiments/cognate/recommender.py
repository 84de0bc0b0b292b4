"""Rank the configurations of a platform for a matrix file, by a model fine-tuned before or fitted on first use."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom import models
from sparloom.data import SampleSource
from sparloom.errors import Unsupported
from sparloom.experiments.cognate.calibration import Calibration, ExpectedLoss, Recommendation, calibrate
from sparloom.experiments.cognate.evaluation_data import EvaluationData
from sparloom.experiments.cognate.transfer import LearnerConfig, TransferInit
from sparloom.experiments.harness import Checkpoints, experiment_for
from sparloom.ops import Op
from sparloom.report import draw_spy
from sparloom.space import MAX_LISTED, Config, ConfigSpace
from sparloom.sparse import MATRIX_ENDINGS, Role, SparseMatrix, locality_order, read_matrix, reorder

if TYPE_CHECKING:
    from sparloom.platforms import Platform

TOP_K = 5


@dataclass(frozen=True)
class Ranking:
    """Programs of a platform for one matrix, best first.

    Args:
        view: model inputs of the matrix, named by the file.
        programs: one configuration of each program that differs on this matrix.
        behind: (programs,) distance of each score from the first, in standard deviations of the scores of all
            configurations.
        loss: expected of the first; None: the recommender is not calibrated.
        read_seconds, rank_seconds: wall time of reading the file, and of everything after it.
    """

    matrix: SparseMatrix
    view: models.MatrixFeatures
    programs: tuple[Config, ...]
    behind: np.ndarray
    loss: ExpectedLoss | None
    read_seconds: float
    rank_seconds: float


@dataclass(frozen=True, kw_only=True)
class Recommender(ABC):
    """Rank the configurations of a platform for matrix files, by a model that is loaded or fitted on first use.

    Args:
        samples: sample source that the model has learned from, and whose checkpoint folder is used.
        calibration_roles: of the matrices on which the choices are calibrated.
    """

    op: Op
    platform: "Platform"
    samples: SampleSource
    calibration_roles: Sequence[Role]
    checkpoints: Checkpoints

    @property
    @abstractmethod
    def origin(self) -> str:
        """Name of the model, for records of its recommendations."""

    @property
    @abstractmethod
    def learned_from(self) -> frozenset[str]:
        """Names of the matrices that the model has learned from."""

    @property
    @abstractmethod
    def model(self) -> models.CostModel:
        """The model; raises MissingArtifact, which names the experiment that makes what it needs."""

    @abstractmethod
    def recommend(self, view: models.MatrixFeatures, configs: Sequence[Config]) -> Recommendation: ...

    @property
    def chosen(self) -> "Recommender":
        """The recommender itself, see `DefaultRecommender`."""
        return self

    @cached_property
    def space(self) -> ConfigSpace:
        """All configurations.

        Raises:
            Unsupported: there are too many to score every one.
        """
        space = self.platform.space(self.op)
        if len(space) > MAX_LISTED:
            raise Unsupported(f"platform {self.platform.name} has {len(space):,} configurations, and at most "
                              f"{MAX_LISTED:,} are scored one by one: choose a target such as platform@target=spade")
        return space

    @cached_property
    def study(self) -> EvaluationData:
        """Samples of the platform."""
        return EvaluationData(self.platform, self.op, self.samples, "validation")

    @cached_property
    def calibration(self) -> Calibration | None:
        """What is known about its choices on other matrices; None: there are too few. See `calibrate`."""
        return calibrate(self.study, self.recommend, self.learned_from, roles=self.calibration_roles,
                         folder=Path(self.checkpoints.artifacts) / "calibrations")

    def prepare(self) -> None:
        """Load or fit the model now, and calibrate it."""
        _ = self.model, self.calibration

    def rank(self, file: Path | str | None) -> Ranking:
        """Read a matrix, score all configurations, and drop equal programs.

        Raises:
            Unsupported: the space is too large.
            ValueError: no file is given, or it holds no matrix or no nonzeros.
            MissingArtifact: the model is missing.
        """
        space = self.space
        began = time.perf_counter()
        matrix = _read(file)
        read_seconds = time.perf_counter() - began
        self.prepare()
        began = time.perf_counter()
        view = models.MatrixFeatures.from_pattern(matrix.pattern, Path(str(file)).name)
        bound = space.bind(view.shape)
        configs = list(bound)
        recommendation, calibration = self.recommend(view, configs), self.calibration
        scores = recommendation.scores if calibration is None else calibration.scores(recommendation, configs)
        programs = [bound.canonical(config) for config in configs]
        order = _distinct(np.argsort(scores, kind="stable"), programs)
        behind = (scores[order] - scores[order[0]]) / (scores.std() or 1.0)
        loss = None if calibration is None else calibration.loss(recommendation, order[0])
        return Ranking(matrix, view, tuple(programs[index] for index in order), behind, loss, read_seconds,
                       time.perf_counter() - began)


def draw_ranking(ranking: Ranking, space: ConfigSpace, stem: Path) -> None:
    """Draw the tiles of the first choice, with rows and columns in its order."""
    pattern, config = ranking.matrix.pattern, ranking.programs[0]
    shared = space.bind(pattern.shape).shared(config)
    if "reorder" in config.names and config["reorder"] == 1:
        pattern = reorder(pattern, *locality_order(pattern))
    draw_spy(pattern, stem, rows_step=shared.I, cols_step=shared.J, title=f"{ranking.view.input.name}\n{config}")


def _read(file: Path | str | None) -> SparseMatrix:
    if not file:
        raise ValueError(f"no matrix given: add matrix=<path of a file that ends in {', '.join(MATRIX_ENDINGS)}>")
    matrix = read_matrix(Path(file).expanduser())
    if matrix.pattern.nnz == 0:
        raise ValueError(f"{file} has no nonzeros, so every configuration is as good: choose another matrix")
    return matrix


def _distinct(order: np.ndarray, programs: Sequence[Config]) -> list[int]:
    """Drop configurations that are the same program on this matrix as an earlier one; returns their indices."""
    seen: dict[Config, int] = {}
    for index in order.tolist():
        seen.setdefault(programs[index], index)
    return list(seen.values())


@dataclass(frozen=True, kw_only=True)
class FineTunedRecommender(Recommender):
    """Recommend by the checkpoint of a network that was fine-tuned on the platform.

    Args:
        net: network with the settings of the fine-tuned one; None: the network that was fine-tuned last.
    """

    net: models.Network | None

    @property
    def origin(self) -> str:
        return self._checkpoint.name

    @cached_property
    def learned_from(self) -> frozenset[str]:
        """Matrices of the target and of the source."""
        notes = models.load_checkpoint(self._checkpoint, kind="cognate").notes
        return frozenset((*notes["matrices"], *notes["anchors"]))

    @cached_property
    def model(self) -> models.CognateModel:
        return models.CognateModel.load(self._checkpoint, net=self.net, space=self.platform.space(self.op))

    def recommend(self, view: models.MatrixFeatures, configs: Sequence[Config]) -> Recommendation:
        scores = models.scale_scores(self.model.score(view, configs))
        return Recommendation(scores, scores[None])

    @cached_property
    def _checkpoint(self) -> Path:
        made = {"experiment": experiment_for("finetune", self.platform),
                "overrides": self.checkpoints.overrides(self.platform, self.op, "target")}
        if self.net is None:
            return self.checkpoints.find_finetuned(self.platform, self.op, self.samples, **made)
        return self.checkpoints.find(self.checkpoints.finetuned(self.platform, self.op, self.net), self.samples, **made)


@dataclass(frozen=True, kw_only=True)
class FittedRecommender(Recommender):
    """Recommend by a model without a network, which is fitted in seconds on first use and not stored."""

    learning: LearnerConfig
    name: str
    seed: int

    @property
    def origin(self) -> str:
        labels, _ = self._learned
        return f"{self.name}, {len(labels)} labels of {labels['matrix'].nunique()} matrices, seed {self.seed}"

    @cached_property
    def learned_from(self) -> frozenset[str]:
        """Matrices of the target, and those of the source network if it votes."""
        known = self._beginning.notes.get("matrices", ()) if self._beginning else ()
        return frozenset((*self._learned[0]["matrix"], *known))

    @property
    def model(self) -> models.CostModel:
        return self._learned[1]

    def recommend(self, view: models.MatrixFeatures, configs: Sequence[Config]) -> Recommendation:
        """Score configurations; the formula of the platform tells how far their seconds are apart."""
        if isinstance(self.model, models.Ensemble):
            scores, opinions = self.model.score_with_opinions(view, configs)
        else:
            scores = models.scale_scores(self.model.score(view, configs))
            opinions = scores[None]
        estimator = self.study.estimator if self.learning.estimate else None
        spread = 1.0 if estimator is None else float(np.log(estimator(view, configs)).std())
        return Recommendation(scores, opinions, spread or 1.0)

    @cached_property
    def _beginning(self) -> TransferInit | None:
        self.study.refuse_other_widths()
        return self.learning.begin(self.study)

    @cached_property
    def _learned(self) -> tuple[pd.DataFrame, models.CostModel]:
        learner = self.learning.learner(self.study, self._beginning)
        return self.learning.learn(self.study, learner, self.seed)


@dataclass(frozen=True)
class DefaultRecommender:
    """Choose the fitted model where a space says how configurations walk a matrix, else the fine-tuned network.

    Rationale: on matrices that neither has seen, the first choice of the fitted model is nearer to the best.
    """

    op: Op
    platform: "Platform"
    fitted: FittedRecommender
    finetuned: FineTunedRecommender

    @property
    def chosen(self) -> Recommender:
        """The recommender of this platform and operation."""
        walks = getattr(self.platform.space(self.op), "walks", None)
        return self.finetuned if walks is None else self.fitted
