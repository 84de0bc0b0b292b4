"""Features and targets of every configuration on every problem, from which rows for training are taken."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from sparloom.models.performance.features import FeatureSpec
from sparloom.models.performance.growth import Rows
from sparloom.models.performance.target import Target
from sparloom.space import Config

__all__ = ["Grid", "Measured"]


@dataclass(frozen=True)
class Measured:
    """Seconds of configurations on problems, with what is known of the problems.

    Args:
        problems: what a specification wants to be given, (problems,) each.
        groups: of each problem; a model is never scored on a group that it has learned from.
        configs: candidates.
        seconds: NaN where a configuration did not run.
    """

    problems: Mapping[str, np.ndarray]
    groups: tuple[str, ...]
    configs: tuple[Config, ...]
    seconds: Float[np.ndarray, "problems configs"]

    def __len__(self) -> int:
        return len(self.groups)

    def take(self, kept: np.ndarray) -> "Measured":
        """Keep some problems, given by a mask or by places."""
        places = np.arange(len(self))[kept]
        columns = {name: column[places] for name, column in self.problems.items()}
        return replace(self, problems=columns, groups=tuple(self.groups[place] for place in places),
                       seconds=self.seconds[places])


@dataclass(frozen=True)
class Grid:
    """What trees learn from, problem by problem.

    Args:
        names: of the features.
        features: what they read.
        targets: what they learn; NaN where a configuration did not run.
    """

    names: tuple[str, ...]
    features: Float[np.ndarray, "problems configs features"]
    targets: Float[np.ndarray, "problems configs"]

    @classmethod
    def of(cls, spec: FeatureSpec, measured: Measured, *, target: Target, hardware: bool = False) -> "Grid":
        """Evaluate the features and turn seconds into targets.

        Args:
            hardware: whether the features of the hardware are read: they vary.
        """
        given = {name: np.asarray(column, np.float64)[:, None] for name, column in measured.problems.items()}
        names = spec.names(hardware=hardware)
        features = spec.matrix(given, spec.kernel(measured.configs), names=names)
        flops, traffic = spec.work(given)
        return cls(names, np.broadcast_to(features, (*measured.seconds.shape, len(names))),
                   target.of(measured.seconds, flops, traffic))

    @property
    def ran(self) -> Bool[np.ndarray, "problems configs"]:
        """Where there is something to learn."""
        return np.isfinite(self.targets)

    def rows(self, kept: np.ndarray, weights: np.ndarray | None = None) -> Rows:
        """Take the rows that ran, where `kept`; both arguments broadcast to (problems, configs)."""
        chosen = np.broadcast_to(kept, self.targets.shape) & self.ran
        given = None if weights is None else np.broadcast_to(weights, self.targets.shape)[chosen]
        return Rows(self.features[chosen], self.targets[chosen], given)

    def only(self, names: Sequence[str]) -> "Grid":
        """Read some features only."""
        places = [self.names.index(name) for name in names]
        return replace(self, names=tuple(names), features=self.features[..., places])

    def take(self, kept: np.ndarray) -> "Grid":
        """Keep some problems, given by a mask or by places."""
        return replace(self, features=self.features[kept], targets=self.targets[kept])
