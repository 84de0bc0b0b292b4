"""Other ways to decide, which a bench compares with the usual one: other policies, other sources of shortlists."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparloom.errors import MissingArtifact
from sparloom.models import load_checkpoint
from sparloom.models.performance import load_performance
from sparloom.sparse import MatrixEntry
from sparloom.tuning.sparse import CsrPolicy, Proposals

__all__ = ["DecisionWay", "ready_ways"]

UNSEEN = "task.roles=[train,validation]"  # of fit_trees, whose models learn from all roles otherwise

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DecisionWay:
    """Another way to decide.

    Args:
        policy: of the decision.
        shortlist, model: what shortlists are made by, as in `sparloom.tuning.sparse.Prepared`.
    """

    policy: CsrPolicy
    shortlist: str = "estimate"
    model: Sequence[str] | None = None

    def learned_from(self) -> frozenset[str]:
        """Name the matrices, or their families, that the model has learned from.

        Raises:
            MissingArtifact: a file is not there; names the command that makes it.
            SchemaError: a file holds something else.
        """
        source = Proposals.of(self.shortlist, self.model)
        if source.kind == "trees":
            return frozenset(name for folder in source.files for name in load_performance(folder).folds)
        notes = [load_checkpoint(path, kind="cognate").notes for path in source.files]
        return frozenset(name for each in notes for part in ("matrices", "anchors") for name in each.get(part, ()))


def ready_ways(ways: Mapping[str, DecisionWay], entries: Sequence[MatrixEntry]) -> dict[str, DecisionWay]:
    """Leave out ways whose model is not there, or has learned from what it is judged on; a warning says what to run.

    Args:
        entries: matrices that the ways are judged on.
    """
    ready = {}
    for name, way in ways.items():
        try:
            learned = way.learned_from()
        except MissingArtifact as missing:
            besides = f", for this comparison with {UNSEEN}" if way.shortlist == "trees" else ""
            logger.warning("the way %s is left out: %s%s", name, missing, besides)
            continue
        seen = [entry.name for entry in entries if {entry.name, entry.family} & learned]
        if seen:
            remedy = f"python run.py experiment=fit_trees {UNSEEN}" if way.shortlist == "trees" else (
                "choose another corpus.role")
            logger.warning("the way %s is left out: its model has learned from %d of %d matrices (%s, ...): %s", name,
                           len(seen), len(entries), seen[0], remedy)
            continue
        ready[name] = way
    return ready
