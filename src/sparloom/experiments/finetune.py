"""Fine-tune on a few matrices of the target and compare with everything that learned from the same labels."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from sparloom.data import SampleSource, Selection
from sparloom.experiments.beginning import Beginning, begin
from sparloom.experiments.checkpoints import Checkpoints, samples_name
from sparloom.experiments.comparison import Comparison
from sparloom.experiments.reports import Reports
from sparloom.experiments.study import Study
from sparloom.experiments.training import Recipe, Trained, train, with_anchors
from sparloom.models import CognateModel, CostModel, Static, Trees
from sparloom.ops import Op
from sparloom.report import Choices, judge, optimum, random_choice, rival_choice
from sparloom.sparse import Role

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["Finetune"]

METHODS = ("static", "trees", "trees_source", "zero_shot", "no_transfer", "cognate")
SOURCED = METHODS[2:]  # need the source's network or the target's encoder
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finetune:
    """COGNATE's main experiment: few target labels, judged on matrices that no method has seen.

    For every seed a few training matrices and configurations are drawn; all methods learn from exactly these labels.
    On a GPU cuSPARSE is judged beside them, as the method vendor, where the samples have it.
    Networks keep their last epoch: to choose one by validation on the target would cost further labels.

    Args:
        trees: the baseline without deep learning.
        seeds: of the drawn labels and of everything random in training.
        methods: which to run, of static, trees, trees_source (with the source network's score as a feature),
            zero_shot, no_transfer, cognate.
        eval_role: role of the matrices that judge; "validation" while anything is being chosen by the result.
        watched: how many validation matrices are drawn in the training curves; nothing is chosen by them.
        pretrained: path of the pre-trained network, made from whatever samples; None: the one of these samples.
        recommends: whether the first fine-tuned network becomes the one that recommendations are made with.
    """

    op: Op
    source: "Platform"
    target: "Platform"
    samples: SampleSource
    selection: Selection
    recipe: Recipe
    trees: Trees
    checkpoints: Checkpoints
    seeds: Sequence[int]
    methods: Sequence[str]
    eval_role: Role
    watched: int
    pretrained: str | None
    recommends: bool

    def run(self, out: Path) -> Mapping[str, float]:
        """Train all methods, print and draw the comparison, save the fine-tuned networks.

        Without the method cognate no metric is without the name of a method, and no method is compared with it.
        """
        began = time.monotonic()
        unknown = sorted(set(self.methods) - set(METHODS))
        if unknown:
            raise ValueError(f"no method {', '.join(unknown)}: task.methods knows {', '.join(METHODS)}")
        if not self.methods:
            raise ValueError(f"task.methods is empty: choose from {', '.join(METHODS)}")
        study = Study(self.target, self.op, self.samples, self.eval_role)
        study.refuse_other_widths()
        beginning = None
        if set(self.methods) & set(SOURCED):
            beginning = begin(study, source=self.source, net=self.recipe.module.net, checkpoints=self.checkpoints,
                              pretrained=self.pretrained)
        logger.info("%s on %s %s: %d %s matrices, seeds %s", self.op.name, self.target.name, self.target.preset,
                    len(study.truth.matrices), self.eval_role, ", ".join(map(str, self.seeds)))
        if beginning is not None:
            beginning.write(out, self.checkpoints, self.samples)
        comparison = Comparison(study, beginning.notes if beginning else {})
        reports = Reports(out, self.recipe.reported)
        comparison.add(random_choice(study.truth))
        if study.vendor is not None:
            comparison.add(rival_choice("vendor", study.vendor))
        if "zero_shot" in self.methods:
            comparison.add(_judged("zero_shot", 0, study, beginning.zero_shot(self.recipe.module.net, study.space)))
        for seed in self.seeds:
            labels = study.draw(self.selection, seed)
            comparison.drawn[seed] = labels
            for method, model in self._simple(study, labels, seed, beginning):
                comparison.add(_judged(method, seed, study, model))
            for method in ("no_transfer", "cognate"):
                if method in self.methods:
                    model, trained = self._trained(method, study, labels, seed=seed, beginning=beginning,
                                                   reports=reports)
                    comparison.add(_judged(method, seed, study, model), trained)
        comparison.add(optimum(study.truth))
        return comparison.write(out) | {"seconds": time.monotonic() - began}

    def _simple(
        self, study: Study, labels: pd.DataFrame, seed: int, beginning: Beginning | None
    ) -> Iterator[tuple[str, CostModel]]:
        """Methods that train no network."""
        if "static" in self.methods:
            yield "static", Static().fit(labels, space=study.space)
        if "trees" in self.methods:
            yield "trees", self.trees.seeded(seed).fit(labels, space=study.space, views=study.views)
        if "trees_source" in self.methods:
            prior = beginning.zero_shot(self.recipe.module.net, study.space)
            yield "trees_source", self.trees.informed_by(prior).seeded(seed).fit(labels, space=study.space,
                                                                                 views=study.views)

    def _trained(
        self, method: str, study: Study, labels: pd.DataFrame, *, seed: int, beginning: Beginning, reports: Reports
    ) -> tuple[CognateModel, Trained]:
        """Train a network from the source's weights or from none, and save it."""
        items = study.items(labels)
        watched = study.items(study.labels[study.labels["matrix"].isin(study.names("validation")[:self.watched])])
        transfer = method == "cognate"
        trained = train(self.recipe, start=beginning.source if transfer else None, encoder=beginning.encoder,
                        train=items, validation=watched, keep="last", seed=seed,
                        reports=reports, out=reports.out / "training" / f"{method}_{seed}")
        logger.info("%s, seed %d: %.0f s on %d labels of %d matrices", method, seed, trained.seconds, len(labels),
                    len(items))
        known = beginning.notes.get("matrices", ()) if transfer else ()
        anchors = [item.input for item in items] + [study.inputs[name] for name in known if name in study.inputs]
        model = with_anchors(trained.module.net, study.space, anchors)
        notes = {"method": method, "seed": seed, "matrices": [item.input.name for item in items], "labels": len(labels),
                 "preset": self.target.preset, "samples": samples_name(self.samples),
                 "width": getattr(self.target, "width", None)}
        model.save(reports.out / "checkpoints" / f"{method}_{seed}.pt", notes=notes, precision="float16")
        if transfer and self.recommends and seed == self.seeds[0]:
            name = self.checkpoints.finetuned(self.target, self.op, self.recipe.module.net)
            model.save(self.checkpoints.path(name, self.samples), notes=notes, precision="float16")
        return model, trained


def _judged(method: str, seed: int, study: Study, model: CostModel) -> Choices:
    return judge(method, seed, study.truth, study.score(model))
