"""Tuners that learn from labels of training matrices and choose for others without any label of theirs.

Both read what the models of this package read of a matrix, so they are bound to loaded samples before they run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom.data import Selection, Tuner, TuningProblem
from sparloom.experiments.cognate import EvaluationData, Recipe
from sparloom.files import scratch_folder
from sparloom.models import CostModel, Learner, Static

if TYPE_CHECKING:
    from sparloom.experiments.harness import Checkpoints
    from sparloom.platforms import Platform


@dataclass(frozen=True)
class LabelSplit:
    """Divide a number of labels over training matrices and configurations of each.

    Args:
        select: keyword arguments matrices and configs_per_matrix -> selection.
        splits: labels -> matrices, configurations of each.
    """

    select: Callable[..., Selection]
    splits: Mapping[int, Sequence[int]]

    def evaluate(self, study: EvaluationData, problem: TuningProblem, seed: int) -> pd.DataFrame:
        """Draw labels and take them; rows as `SampleTable.labels`.

        Raises:
            ValueError: there is no split for this budget, or it needs more labels.
        """
        if problem.budget not in self.splits:
            raise ValueError(f"no split of {problem.budget} labels: splits has {', '.join(map(str, self.splits))}; add "
                             f"{problem.budget}: [matrices, configurations of each]")
        matrices, each = self.splits[problem.budget]
        drawn = study.draw(self.select(matrices=matrices, configs_per_matrix=each), seed)
        numbers = {config.key: number for number, config in enumerate(study.space)}
        seconds = [problem.evaluate(name, numbers[key])
                   for name, key in zip(drawn["matrix"], drawn["config"], strict=True)]
        return drawn.assign(seconds=seconds)


@dataclass(frozen=True)
class LearnedTuner:
    """Fit a model without a network, and choose the configuration with the least score.

    Args:
        learner: the model; None: the configuration that is best on average over the training matrices, for all.
        labels: how the budget is divided.
        estimate: the model learns what the formula of the platform leaves unexplained, where it can.
    """

    learner: Learner | None
    labels: LabelSplit
    estimate: bool

    def bind(self, study: EvaluationData, out: Path) -> Tuner:
        """Make a tuner of the matrices of a study."""
        from sparloom.experiments.cognate.evaluation_data import estimator_of

        learner = self.learner
        estimator = estimator_of(study.platform, study.op) if self.estimate else None
        if learner is not None and estimator is not None and hasattr(learner, "with_estimate"):
            learner = learner.with_estimate(estimator)

        def tune(problem: TuningProblem, seed: int) -> dict[str, int]:
            evaluated = self.labels.evaluate(study, problem, seed) if problem.budget else pd.DataFrame()
            if learner is None:
                model: CostModel = Static().fit(evaluated, space=study.space)
            else:
                model = learner.with_seed(seed).fit(evaluated, space=study.space, matrices=study.views)
            return choose(model, study, problem.judged)

        return tune


@dataclass(frozen=True)
class CognateTuner:
    """Fine-tune COGNATE's network, pre-trained on samples of another platform.

    Args:
        source: platform of the pre-training.
        labels: how the budget is divided.
    """

    source: "Platform"
    recipe: Recipe
    checkpoints: "Checkpoints"
    labels: LabelSplit

    def bind(self, study: EvaluationData, out: Path) -> Tuner:
        """Make a tuner of the matrices of a study.

        Raises:
            MissingArtifact: the pre-trained network or the encoder of the target is missing.
        """
        from sparloom.experiments.cognate.training import Reports, train, with_anchors
        from sparloom.experiments.cognate.transfer import load_transfer

        beginning = load_transfer(study, source=self.source, net=self.recipe.module.net, checkpoints=self.checkpoints,
                                  pretrained=None)

        def tune(problem: TuningProblem, seed: int) -> dict[str, int]:
            items = study.items(self.labels.evaluate(study, problem, seed))
            recipe = replace(self.recipe, logger=None)
            with scratch_folder("cognate") as folder:
                # it must be validated on something; nothing is chosen by it, so no more labels are taken
                trained = train(recipe, start=beginning.source, encoder=beginning.encoder, train=items,
                                validation=items[:1], keep="last", seed=seed, reports=Reports(folder, None),
                                out=folder)
            known = [name for name in beginning.notes.get("matrices", ()) if name in study.inputs]
            anchors = [item.input for item in items] + [study.inputs[name] for name in known]
            return choose(with_anchors(trained.module.net, study.space, anchors), study, problem.judged)

        return tune


def choose(model: CostModel, study: EvaluationData, names: Sequence[str]) -> dict[str, int]:
    """Return the number of the configuration with the least score on each matrix."""
    configs = list(study.space)
    return {name: int(np.argmin(model.score(study.views[name], configs))) for name in names}
