"""Rank tuners by the speed of what they choose, at equal numbers of labels, and count the labels that they use.

Two groups take labels in different places. Learned tuners take them on training matrices, once for all matrices to
come. Searches take them on each judged matrix. Both numbers are reported: labels on a judged matrix, and labels in all.
Learned tuners read what the models of this package read of a matrix, so they are bound to loaded samples before they
run.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sparloom.data import LabelsOn, SampleSource, Selection, Tuner, TuningProblem
from sparloom.experiments.cognate import EvaluationData
from sparloom.experiments.harness import finish
from sparloom.experiments.spade.measured_spaces import RankOnSpaces
from sparloom.files import scratch_folder
from sparloom.models import CostModel, Learner, Static, with_estimate
from sparloom.ops import Op
from sparloom.report import draw_tuners, op_title, tuner_metrics
from sparloom.sparse import Role

if TYPE_CHECKING:
    from sparloom.experiments.cognate import Recipe
    from sparloom.experiments.harness import Checkpoints
    from sparloom.platforms import Platform

SEEDS = (0, 1, 2)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TunerEntry:
    """A tuner of the ranking.

    Args:
        label: as tables call it.
        tuner: a function (problem, seed) -> configuration of every judged matrix, or an object with `bind(study, out)`
            that returns one.
        labels_on: where it takes labels.
        budgets: numbers of labels; 0 for a tuner that needs none.
        anytime: its choice is the best configuration that it has tried, so one run with the largest budget gives the
            choices for all.
        seeds: how many of the task's seeds run.
        source_labels: labels of another platform that it has learned from.
    """

    label: str
    tuner: Any
    labels_on: LabelsOn
    budgets: Sequence[int]
    anytime: bool
    seeds: int
    source_labels: int = 0


@dataclass(frozen=True)
class RankTuners:
    """Run every tuner at every budget on the same matrices.

    Args:
        target: platform whose configurations are chosen.
        tuners: name -> tuner, null to leave it out.
        seeds: of tuners and of drawn labels.
        eval_role: role of the judged matrices; "validation" while anything is being chosen by the result.
    """

    op: Op
    target: "Platform"
    samples: SampleSource
    tuners: Mapping[str, TunerEntry | None]
    seeds: Sequence[int]
    eval_role: Role

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet and a plot, and print the table; return metrics."""
        began = time.monotonic()
        if self.eval_role == "train":
            raise ValueError("task.eval_role=train: tuners learn from train matrices, so validation or test must judge")
        study = EvaluationData(self.target, self.op, self.samples, self.eval_role)
        study.refuse_other_widths()
        chosen = {name: entry for name, entry in self.tuners.items() if entry is not None}
        if not chosen:
            raise ValueError("task.tuners is empty: give at least one tuner")
        parts, took = [], {}
        for name, entry in chosen.items():
            start = time.process_time()
            parts += [rows.assign(tuner=name, label=entry.label, labels_on=entry.labels_on,
                                  source_labels=entry.source_labels) for rows in self._run(entry, study, out)]
            took[f"{name}/processor_seconds"] = time.process_time() - start
            logger.info("%s: %.0f s of processors", entry.label, took[f"{name}/processor_seconds"])
        frame = pd.concat(parts, ignore_index=True)
        title = (f"{op_title(self.op.name)} on {self.target.name} {self.target.preset}, "
                 f"{len(study.truth.matrices)} {self.eval_role} matrices")
        metrics = {f"{self.eval_role}/{name}": value for name, value in (tuner_metrics(frame) | took).items()}
        return finish(out, None, metrics | {"seconds": time.monotonic() - began},
                      lambda out: draw_tuners(frame, out / "tuners", title=title), per_matrix=frame)

    def problem(self, study: EvaluationData, budget: int, labels_on: LabelsOn) -> TuningProblem:
        """Make the problem of choosing for the judged matrices of a study."""
        truth, known = study.truth, study.times("train")
        train = () if known is None else known.matrices
        labels = dict(zip(truth.matrices, truth.seconds, strict=True))
        labels |= {} if known is None else dict(zip(known.matrices, known.seconds, strict=True))
        table = pd.DataFrame([{name: 0 if value == "all" else value for name, value in config.values}
                              for config in truth.configs]).rename_axis("config")
        return TuningProblem(configs=table, default=truth.baseline, labels=labels, train=train, judged=truth.matrices,
                             statistics=study.statistics.loc[[*train, *truth.matrices]], budget=budget,
                             labels_on=labels_on)

    def _run(self, entry: TunerEntry, study: EvaluationData, out: Path) -> Iterator[pd.DataFrame]:
        """Yield one frame per seed and budget."""
        tuner: Tuner = entry.tuner.bind(study, out) if hasattr(entry.tuner, "bind") else entry.tuner
        for seed in self.seeds[:entry.seeds]:
            if entry.anytime:
                problem = self.problem(study, max(entry.budgets), entry.labels_on)
                tuner(problem, seed)
                for budget in entry.budgets:
                    yield rows_of(problem, {name: problem.best_evaluated(name, budget) for name in problem.judged},
                                  budget=budget, seed=seed)
                continue
            for budget in entry.budgets:
                problem = self.problem(study, budget, entry.labels_on)
                yield rows_of(problem, tuner(problem, seed), budget=budget, seed=seed)


def make_ranking(
    spaces: str | None, kernels: Sequence[str] | None, devices: Sequence[str] | None, methods: Sequence[str] | None,
    seeds: Sequence[int] | None, workers: int, journals: str, **on_spade: Any,
) -> RankOnSpaces | RankTuners:
    """Make the task that ranks tuners on measured spaces, or on SPADE if there are none.

    Args:
        on_spade: of `RankTuners`; the others are those of `RankOnSpaces`.

    Raises:
        ValueError: an option needs spaces.
    """
    if spaces is not None:
        return RankOnSpaces(spaces, kernels, devices, methods, seeds, workers, journals)
    for name, value in (("kernels", kernels), ("devices", devices), ("methods", methods)):
        if value is not None:
            raise ValueError(f"task.{name} chooses among measured spaces: give spaces=<folder of T1 and T4 files>")
    return RankTuners(seeds=SEEDS if seeds is None else seeds, **on_spade)


def rows_of(problem: TuningProblem, choices: Mapping[str, int], *, budget: int, seed: int) -> pd.DataFrame:
    """Make one row per judged matrix: what was chosen, its seconds, and the labels that were taken.

    Returns:
        Columns matrix, seed, budget, config (number), seconds, best_seconds, default_seconds, labels_on_matrix, and
        labels_in_all: those of all matrices together.

    Raises:
        ValueError: a matrix has no choice, or one that is no configuration.
    """
    absent = [name for name in problem.judged if not 0 <= choices.get(name, -1) < len(problem.configs)]
    if absent:
        raise ValueError(f"the tuner chose no configuration for {len(absent)} matrices, first {absent[0]}: return a "
                         f"number from 0 to {len(problem.configs) - 1} for every judged matrix")
    judged = problem.labels_on == "judged"
    own = {name: min(budget, len(problem.evaluated[name])) if judged else 0 for name in problem.judged}
    spent = sum(own.values()) if judged else problem.spent()
    return pd.DataFrame([{
        "matrix": name, "seed": seed, "budget": budget, "config": int(choices[name]),
        "seconds": float(problem.labels[name][choices[name]]), "best_seconds": float(problem.labels[name].min()),
        "default_seconds": float(problem.labels[name][problem.default]), "labels_on_matrix": own[name],
        "labels_in_all": spent,
    } for name in problem.judged])


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
        learner = self.learner and with_estimate(self.learner, study.estimator if self.estimate else None)

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
    recipe: "Recipe"
    checkpoints: "Checkpoints"
    labels: LabelSplit

    def bind(self, study: EvaluationData, out: Path) -> Tuner:
        """Make a tuner of the matrices of a study.

        Raises:
            MissingArtifact: the pre-trained network or the encoder of the target is missing.
        """
        from sparloom.experiments.cognate.training import train, with_anchors
        from sparloom.experiments.cognate.transfer import load_transfer

        beginning = load_transfer(study, source=self.source, net=self.recipe.module.net, checkpoints=self.checkpoints,
                                  pretrained=None)

        def tune(problem: TuningProblem, seed: int) -> dict[str, int]:
            items = study.items(self.labels.evaluate(study, problem, seed))
            recipe = replace(self.recipe, logger=None)
            with scratch_folder("cognate") as folder:
                # it must be validated on something; nothing is chosen by it, so no more labels are taken
                trained = train(recipe, start=beginning.source, encoder=beginning.encoder, train=items,
                                validation=items[:1], keep="last", seed=seed,
                                out=folder)
            known = [name for name in beginning.notes.get("matrices", ()) if name in study.inputs]
            anchors = [item.input for item in items] + [study.inputs[name] for name in known]
            return choose(with_anchors(trained.module.net, study.space, anchors), study, problem.judged)

        return tune


def choose(model: CostModel, study: EvaluationData, names: Sequence[str]) -> dict[str, int]:
    """Return the number of the configuration with the least score on each matrix."""
    configs = list(study.space)
    return {name: int(np.argmin(model.score(study.views[name], configs))) for name in names}
