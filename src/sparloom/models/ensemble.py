"""Several cost models that learn from the same labels and vote."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import pandas as pd
from jaxtyping import Float

from sparloom.models.cost_model import CostModel, view_of
from sparloom.models.view import MatrixView
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern

__all__ = ["Ensemble", "Learner"]


class Learner(Protocol):
    """A cost model that learns from labels; both methods return a copy and leave it as it is."""

    def seeded(self, seed: int) -> "Learner": ...
    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace, views: Mapping[str, MatrixView]) -> CostModel: ...


class Ensemble:
    """Average the members' scores of a matrix, each scaled to unit variance over the configurations that are asked for.

    A member that scores all of them equally says nothing and counts nothing.

    Args:
        members: learn from the same labels; each has one vote.
        guest: has learned elsewhere; has `votes`, which may be a fraction.
    """

    def __init__(self, *, members: Sequence[Learner], guest: CostModel | None = None, votes: float = 0.0) -> None:
        self.members, self.guest, self.votes = tuple(members), guest, votes

    def joined_by(self, guest: CostModel, votes: float) -> "Ensemble":
        """Let a model vote that has learned elsewhere."""
        return Ensemble(members=self.members, guest=guest, votes=votes)

    def seeded(self, seed: int) -> "Ensemble":
        """Fix what is random in learning."""
        return self._with([member.seeded(seed) for member in self.members])

    def fit(self, labels: pd.DataFrame, *, space: ConfigSpace, views: Mapping[str, MatrixView]) -> "Ensemble":
        """Let every member learn; returns a new model."""
        return self._with([member.fit(labels, space=space, views=views) for member in self.members])

    def _with(self, members: Sequence[Learner]) -> "Ensemble":
        return Ensemble(members=members, guest=self.guest, votes=self.votes)

    def score(self, matrix: Pattern | MatrixView, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast, no unit; relative to the others that are asked for."""
        opinions = self.opinions(matrix, configs)
        if self.guest is None:
            return opinions.mean(axis=0)
        foreign = _scaled(self.guest.score(matrix, configs))
        return (opinions.sum(axis=0) + self.votes * foreign) / (len(opinions) + self.votes)

    def opinions(
        self, matrix: Pattern | MatrixView, configs: Sequence[Config]
    ) -> Float[np.ndarray, "members configs"]:
        """Scores of every member, scaled; the guest is not asked."""
        view = view_of(matrix)
        return np.stack([_scaled(member.score(view, configs)) for member in self.members])


def _scaled(scores: np.ndarray) -> np.ndarray:
    spread = scores.std()
    return (scores - scores.mean()) / spread if spread > 0 else np.zeros(len(scores))
