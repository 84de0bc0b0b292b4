"""Let a cost model without a network learn from few labels of the target, and judge it as fine-tuning is judged."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparloom.data import SampleSource, Selection
from sparloom.experiments.checkpoints import Checkpoints
from sparloom.experiments.comparison import Comparison
from sparloom.experiments.learning import Learning
from sparloom.experiments.study import Study
from sparloom.models import Learner, Network
from sparloom.ops import Op
from sparloom.report import judge, optimum, random_choice
from sparloom.sparse import Role

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["Fit"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fit:
    """Draw labels and learn from them, once per seed.

    Args:
        name: of the row in tables.
        model, source, net, source_votes: see `Learning`.
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
        study.refuse_other_widths()
        learning = Learning(self.selection, self.model, self.source, self.net, self.checkpoints, self.source_votes)
        beginning = learning.begin(study)
        if beginning is not None:
            beginning.write(out, self.checkpoints, self.samples)
        learner = learning.learner(study, beginning)
        comparison = Comparison(study, beginning.notes if beginning else {})
        comparison.add(random_choice(study.truth))
        for seed in self.seeds:
            start = time.monotonic()
            labels, model = learning.learn(study, learner, seed)
            comparison.drawn[seed] = labels
            comparison.add(judge(self.name, seed, study.truth, study.score(model)))
            logger.info("%s, seed %d: %.1f s on %d labels of %d matrices", self.name, seed, time.monotonic() - start,
                        len(labels), labels["matrix"].nunique())
        comparison.add(optimum(study.truth))
        return comparison.write(out) | {"seconds": time.monotonic() - began}
