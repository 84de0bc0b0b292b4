"""Rank the configurations of a platform for a matrix file: fit or load a model, calibrate its choices, rank."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from sparloom import models
from sparloom.data import SampleSource
from sparloom.errors import Unsupported
from sparloom.experiments.cognate.calibration import Calibration, ExpectedLoss, Recommendation, calibrate
from sparloom.experiments.cognate.evaluation_data import EvaluationData
from sparloom.experiments.cognate.transfer import LearnerConfig
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


@dataclass(frozen=True)
class Fitted:
    """A cost model, its name in records, and the names of the matrices that it has learned from."""

    model: models.CostModel
    name: str
    matrices: frozenset[str]


@dataclass(frozen=True)
class Recommender:
    """Rank the configurations of a platform for matrix files.

    The model is fitted or loaded, and its choices are calibrated, when they are first needed: see `fitted` and
    `calibration`. On matrices that neither has seen, the first choice of a fitted model is nearer to the best than that
    of the fine-tuned network.

    Args:
        kind: "sparloom", a model without a network that is fitted to stored labels within seconds; "finetuned", the
            network that was fine-tuned last; "default", the first where the space says how configurations walk over a
            matrix, else the second.
        samples: sample source that the model has learned from, and whose checkpoint folder is used.
        learning: of the model without a network.
        calibration_roles: of the matrices on which the choices are calibrated.
        net: with the settings of the fine-tuned network; None: the network of any settings that was fine-tuned last.
        seed: of the labels that are drawn, and of fitting.
    """

    kind: Literal["default", "sparloom", "finetuned"]
    op: Op
    platform: "Platform"
    samples: SampleSource
    learning: LearnerConfig
    net: models.Network | None
    calibration_roles: Sequence[Role]
    checkpoints: Checkpoints
    seed: int

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
    def fitted(self) -> Fitted:
        """The model; raises MissingArtifact, which names the experiment that makes what it needs."""
        return self._load() if self.loads else self._fit()

    @cached_property
    def calibration(self) -> Calibration | None:
        """What is known about its choices on other matrices; None: there are too few. See `calibrate`."""
        return calibrate(self.study, self.recommend, self.fitted.matrices, roles=self.calibration_roles,
                         folder=Path(self.checkpoints.artifacts) / "calibrations")

    @property
    def loads(self) -> bool:
        """Whether the model is the fine-tuned network."""
        if self.kind == "default":
            return getattr(self.platform.space(self.op), "walks", None) is None
        return self.kind == "finetuned"

    def recommend(self, view: models.MatrixFeatures, configs: Sequence[Config]) -> Recommendation:
        """Score configurations by the model and, if it has learned its errors, by the formula of the platform."""
        model = self.fitted.model
        if isinstance(model, models.Ensemble):
            scores, opinions = model.score_with_opinions(view, configs)
        else:
            scores = models.scale_scores(model.score(view, configs))
            opinions = scores[None]
        estimator = self.study.estimator if self.learning.estimate and not self.loads else None
        if estimator is None:
            return Recommendation(scores, opinions)
        logs = np.log(estimator(view, configs))
        return Recommendation(scores, opinions, models.scale_scores(logs), float(logs.std()) or 1.0)

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
        _ = self.fitted, self.calibration
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

    def _fit(self) -> Fitted:
        """Fit a model to labels of the target; matrices of a source network that votes are known, too."""
        learner, beginning = self.learning.begin(self.study)
        labels, model = self.learning.learn(self.study, learner, self.seed)
        known = beginning.notes.get("matrices", ()) if beginning else ()
        name = f"sparloom, {len(labels)} labels of {labels['matrix'].nunique()} matrices, seed {self.seed}"
        return Fitted(model, name, frozenset((*labels["matrix"], *known)))

    def _load(self) -> Fitted:
        """Load the network; it knows matrices of the target and of the source."""
        made = {"experiment": experiment_for("finetune", self.platform),
                "overrides": self.checkpoints.overrides(self.platform, self.op, "target")}
        if self.net is None:
            path = self.checkpoints.find_finetuned(self.platform, self.op, self.samples, **made)
        else:
            path = self.checkpoints.find(self.checkpoints.finetuned(self.platform, self.op, self.net), self.samples,
                                         **made)
        notes = models.load_checkpoint(path, kind="cognate").notes
        model = models.CognateModel.load(path, net=self.net, space=self.platform.space(self.op))
        return Fitted(model, path.name, frozenset((*notes["matrices"], *notes["anchors"])))


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
