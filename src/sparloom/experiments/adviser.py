"""What recommendations come from: a model that ranks the configurations of a platform for any matrix."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sparloom.models import Familiarity, MatrixView
from sparloom.space import Config

__all__ = ["Advice", "Adviser"]


@dataclass(frozen=True)
class Advice:
    """What an adviser says of one matrix.

    Args:
        scores: (configs,), low = fast, no unit.
        familiarity: how near the matrix lies to those the adviser has learned from.
    """

    scores: np.ndarray
    familiarity: Familiarity


class Adviser(Protocol):
    """A model on its platform, made ready when it is first asked."""

    @property
    def origin(self) -> str:
        """Name what the model is, for records of its advice."""

    @property
    def learned_from(self) -> frozenset[str]:
        """Names of the matrices that it has learned from."""

    def prepare(self) -> None:
        """Make the model ready now.

        Raises:
            MissingArtifact: names the experiment that makes what it needs.
        """

    def advise(self, view: MatrixView, configs: Sequence[Config]) -> Advice: ...
