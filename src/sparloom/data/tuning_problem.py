"""Tuning problems: a tuner chooses a configuration for every judged matrix and pays for each label that it takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

from sparloom.data.sample import checked_seconds

LabelsOn = Literal["train", "judged"]
"""Where a tuner may take labels: on training matrices, counted in total, or on each judged matrix."""


@dataclass
class TuningProblem:
    """Choose a configuration for every judged matrix; evaluations, which give labels, are counted.

    Repeating one costs nothing. `budget` counts labels on all training matrices together, or on each judged matrix, as
    `labels_on` says; other matrices may not be evaluated.

    Args:
        configs: (configs, parameters), numbers, one row per configuration, index 0, 1, ...
        default: the configuration that speedups are relative to.
        statistics: (matrices, statistics) of training and judged matrices.
        labels: matrix -> (configs,), what `evaluate` returns; NaN: the configuration fails.
        train, judged: names of the matrices to learn from and to choose for.
    """

    configs: pd.DataFrame
    default: int
    statistics: pd.DataFrame
    labels: Mapping[str, np.ndarray] = field(repr=False)
    train: tuple[str, ...]
    judged: tuple[str, ...]
    budget: int
    labels_on: LabelsOn
    evaluated: dict[str, list[int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.labels_on not in ("train", "judged"):
            raise ValueError(f"labels_on={self.labels_on!r} is unknown: use train or judged")
        if self.budget < 0:
            raise ValueError(f"budget={self.budget} is negative: give a number of labels")
        self.evaluated = {name: [] for name in (self.train if self.labels_on == "train" else self.judged)}

    def evaluate(self, matrix: str, config: int) -> float:
        """Evaluate a configuration: the seconds of a configuration, by number, on a matrix.

        Raises:
            ValueError: the budget is spent, there is no such configuration, this matrix may not be evaluated, or the
                label is not positive and finite, or NaN.
        """
        if not 0 <= config < len(self.configs):
            raise ValueError(f"there is no configuration {config}: give a number from 0 to {len(self.configs) - 1}")
        if matrix not in self.evaluated:
            raise ValueError(f"{matrix} may not be evaluated: with labels_on={self.labels_on} these may: "
                             f"{len(self.evaluated)} matrices, such as {', '.join(list(self.evaluated)[:3])}")
        if config not in self.evaluated[matrix]:
            if self.left(matrix) < 1:
                where = "training matrices" if self.labels_on == "train" else matrix
                raise ValueError(f"all {self.budget} labels on {where} are spent: return what was chosen with them")
            self.evaluated[matrix].append(config)
        return float(checked_seconds(self.labels[matrix][config], lambda _: f"{matrix}, configuration {config}",
                                     gaps=True))

    def spent(self) -> int:
        """Count the labels that were taken, on all matrices together."""
        return sum(map(len, self.evaluated.values()))

    def left(self, matrix: str) -> int:
        """Count the labels that may still be taken on a matrix."""
        own = len(self.evaluated[matrix])
        return min(self.budget - (self.spent() if self.labels_on == "train" else own), len(self.configs) - own)

    def best_evaluated(self, matrix: str, first: int | None = None) -> int:
        """Return the configuration with the least label among the first that were evaluated on a matrix.

        Without a label it is the default.
        """
        ran = [config for config in self.evaluated[matrix][:first] if not np.isnan(self.labels[matrix][config])]
        return min(ran, key=lambda config: self.labels[matrix][config], default=self.default)


Tuner = Callable[[TuningProblem, int], Mapping[str, int]]
"""Solves a problem with a seed: judged matrix -> number of the chosen configuration."""
