"""Let a cost model without a network learn from few labels of the target, and judge it as fine-tuning is judged."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from sparloom.data import SampleSource, Selection, Uncertainty, draw_more
from sparloom.models import CostModel, Ensemble, Learner, Network
from sparloom.ops import Op
from sparloom.report import judge, optimum, random_choice
from sparloom.sparse import Role
from sparloom.tasks.beginning import begin
from sparloom.tasks.checkpoints import Checkpoints
from sparloom.tasks.comparison import Comparison
from sparloom.tasks.study import Study

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["Fit"]

REFERENCE = 25  # labels for which source_votes is meant
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fit:
    """Draw labels and learn from them, once per seed.

    Args:
        model: what learns.
        name: of its row in tables.
        source: platform of the network that votes with the model, as it was pre-trained there.
        net: made as that network was.
        source_votes: votes of that network, times 25 / labels: it counts while there is little else to go by; 0: it is
            not asked.
        seeds: of the drawn labels and of everything random in learning.
        eval_role: role of the matrices that judge; "validation" while anything is being chosen by the result.
    """

    op: Op
    target: "Platform"
    samples: SampleSource
    selection: Selection
    model: Learner
    name: str
    source: "Platform"
    net: Network
    checkpoints: Checkpoints
    source_votes: float
    seeds: Sequence[int]
    eval_role: Role

    def run(self, out: Path) -> Mapping[str, float]:
        """Learn, print and draw how well the choices are."""
        began = time.monotonic()
        study = Study(self.target, self.op, self.samples, self.eval_role)
        learner, beginning = self.model, None
        if self.source_votes:
            if not isinstance(learner, Ensemble):
                raise ValueError("task.source_votes lets the source vote with the members of a model, and this model "
                                 "has none: take model=sparloom, or task.source_votes=0")
            beginning = begin(study, source=self.source, net=self.net, checkpoints=self.checkpoints, pretrained=None)
            beginning.write(out, self.checkpoints, self.samples)
            budget = self.selection.matrices * self.selection.configs_per_matrix
            guest = beginning.zero_shot(self.net, study.space)
            learner = learner.joined_by(guest, self.source_votes * REFERENCE / budget)
        comparison = Comparison(study, beginning.notes if beginning else {})
        comparison.add(random_choice(study.truth))
        for seed in self.seeds:
            start = time.monotonic()
            labels, model = self._learned(study, learner.seeded(seed), seed)
            comparison.drawn[seed] = labels
            comparison.add(judge(self.name, seed, study.truth, study.score(model)))
            logger.info("%s, seed %d: %.1f s on %d labels of %d matrices", self.name, seed, time.monotonic() - start,
                        len(labels), labels["matrix"].nunique())
        comparison.add(optimum(study.truth))
        return comparison.write(out) | {"seconds": time.monotonic() - began}

    def _learned(self, study: Study, learner: Learner, seed: int) -> tuple[pd.DataFrame, CostModel]:
        """Draw labels, in rounds if the selection asks the model, and learn from all of them."""
        if not isinstance(self.selection, Uncertainty):
            labels = study.draw(self.selection, seed)
            return labels, learner.fit(labels, space=study.space, views=study.views)
        if not isinstance(learner, Ensemble):
            raise ValueError("selection=uncertainty asks where members of a model disagree, and this model has none: "
                             "take model=sparloom, or selection=spread")
        configs = list(study.space)
        labels = study.draw(self.selection.begin(), seed)
        model = learner.fit(labels, space=study.space, views=study.views)
        for count in self.selection.quotas():
            fresh = sorted(set(study.names("train")) - set(labels["matrix"]))
            opinions = {name: model.opinions(study.views[name], configs) for name in fresh}
            chosen = self.selection.doubtful(opinions, count)
            keys = {name: [configs[place].key for place in places] for name, places in chosen.items()}
            labels = pd.concat([labels, draw_more(study.labels, keys)], ignore_index=True)
            model = learner.fit(labels, space=study.space, views=study.views)
        return labels, model
