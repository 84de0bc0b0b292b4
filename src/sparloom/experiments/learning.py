"""How a model without a network learns on a target: who votes, which labels are drawn."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from sparloom.data import Selection, Uncertainty, draw_more
from sparloom.experiments.beginning import Beginning, begin
from sparloom.experiments.checkpoints import Checkpoints
from sparloom.experiments.study import Study
from sparloom.models import CostModel, Ensemble, Learner, Network

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["Learning"]

REFERENCE = 25  # labels for which source_votes is meant


@dataclass(frozen=True)
class Learning:
    """What learns, from which labels, and who else votes.

    Args:
        model: what learns.
        source: platform of the network that votes with the model, as it was pre-trained there.
        net: made as that network was.
        source_votes: votes of that network, times 25 / labels: it counts while there is little else to go by; 0: it is
            not asked.
    """

    selection: Selection
    model: Learner
    source: "Platform"
    net: Network
    checkpoints: Checkpoints
    source_votes: float

    def begin(self, study: Study) -> Beginning | None:
        """Find the network that votes.

        Raises:
            MissingArtifact: names the experiment that trains it.
            ValueError: the model has no members to vote with.
        """
        if not self.source_votes:
            return None
        if not isinstance(self.model, Ensemble):
            raise ValueError("task.source_votes lets the source vote with the members of a model, and this model "
                             "has none: take model=sparloom, or task.source_votes=0")
        return begin(study, source=self.source, net=self.net, checkpoints=self.checkpoints, pretrained=None)

    def learner(self, study: Study, beginning: Beginning | None) -> Learner:
        """The model, joined by the network that votes."""
        if beginning is None:
            return self.model
        budget = self.selection.matrices * self.selection.configs_per_matrix
        return self.model.joined_by(beginning.zero_shot(self.net, study.space), self.source_votes * REFERENCE / budget)

    def learn(self, study: Study, learner: Learner, seed: int) -> tuple[pd.DataFrame, CostModel]:
        """Draw labels, in rounds if the selection asks the model, and learn from all of them."""
        learner = learner.seeded(seed)
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
