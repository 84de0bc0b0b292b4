"""What methods choose, against seconds of every configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sparloom.measure import kendall_tau, ordered_pair_accuracy
from sparloom.space import Config, ConfigSpace

__all__ = ["Choices", "Truth", "judge", "optimum", "random_choice", "rival_choice"]


@dataclass(frozen=True)
class Truth:
    """Seconds of every configuration of a space on every matrix of an evaluation.

    Args:
        seconds: (matrices, configs), all finite.
        baseline: column of the configuration that speedups are relative to.
        programs: (matrices, configs) integers; configurations with equal numbers are one program on that matrix.
    """

    matrices: tuple[str, ...]
    configs: tuple[Config, ...]
    seconds: np.ndarray
    baseline: int
    programs: np.ndarray

    @classmethod
    def of(
        cls, labels: pd.DataFrame, space: ConfigSpace, shapes: Mapping[str, tuple[int, int]]
    ) -> "Truth":
        """Arrange labels of a sample table.

        Args:
            shapes: rows and columns of the matrices to judge by.

        Raises:
            ValueError: a configuration of a matrix has no seconds, so there is no optimum to compare with.
        """
        matrices, configs = list(shapes), list(space)
        keys = [config.key for config in configs]
        table = labels.pivot(index="matrix", columns="config", values="seconds").reindex(index=matrices, columns=keys)
        gaps = table.isna().sum(axis=1)
        if gaps.any():
            raise ValueError(f"{int((gaps > 0).sum())} of {len(matrices)} matrices lack seconds, {gaps.idxmax()} for "
                             f"{int(gaps.max())} of {len(keys)} configurations: collect them, the optimum needs all")
        programs = np.stack([_programs(space.bind(shape), configs) for shape in shapes.values()])
        baseline = keys.index(space.default().key)
        return cls(tuple(matrices), tuple(configs), table.to_numpy(np.float64), baseline, programs)

    @property
    def best(self) -> np.ndarray:
        """Least seconds of each matrix, (matrices,)."""
        return self.seconds.min(axis=1)

    @property
    def default(self) -> np.ndarray:
        """Seconds of the baseline, (matrices,)."""
        return self.seconds[:, self.baseline]


@dataclass(frozen=True)
class Choices:
    """What one method, trained with one seed, chose for every matrix.

    Args:
        first: column of the first choice, (matrices,); -1 where there is none (an average over choices).
        top1, top5: true seconds of the first choice, and the least among the first five, (matrices,).
        opa, tau: ordered pair accuracy and Kendall tau of its scores on each matrix, NaN without scores.
    """

    method: str
    seed: int
    first: np.ndarray
    top1: np.ndarray
    top5: np.ndarray
    opa: np.ndarray
    tau: np.ndarray


def judge(method: str, seed: int, truth: Truth, scores: np.ndarray, *, tolerance: float = 0.0) -> Choices:
    """Let scores (matrices, configs), low = fast, choose; ties go to the earlier configuration.

    The first five are five different programs: to run one program twice would try nothing new.
    """
    if scores.shape != truth.seconds.shape:
        raise ValueError(f"scores of {method} have shape {scores.shape}, the truth {truth.seconds.shape}")
    order = np.argsort(scores, axis=1, kind="stable")
    rows = range(len(truth.matrices))
    best = [min(truth.seconds[row, place] for place in _first(order[row], truth.programs[row], 5)) for row in rows]
    return Choices(
        method, seed, order[:, 0], truth.seconds[rows, order[:, 0]], np.array(best),
        np.array([ordered_pair_accuracy(scores[row], truth.seconds[row], tolerance=tolerance) for row in rows]),
        np.array([kendall_tau(scores[row], truth.seconds[row]) for row in rows]),
    )


def optimum(truth: Truth) -> Choices:
    """Choose the best configuration of each matrix, found by trying all."""
    nothing = np.full(len(truth.matrices), np.nan)
    return Choices("optimum", 0, truth.seconds.argmin(axis=1), truth.best, truth.best, nothing, nothing)


def random_choice(truth: Truth) -> Choices:
    """Average over uniformly random choices: the geometric mean over all, exactly; of five, by their order."""
    nothing = np.full(len(truth.matrices), np.nan)
    ascending = np.sort(truth.seconds, axis=1)
    count = ascending.shape[1]
    first = np.exp(np.log(ascending).mean(axis=1))
    weights = _least_of(min(5, count), count)
    nowhere = np.full(len(truth.matrices), -1)
    return Choices("random", 0, nowhere, first, np.exp(np.log(ascending) @ weights), nothing, nothing)


def rival_choice(method: str, seconds: np.ndarray) -> Choices:
    """Take what somebody else's kernels need, (matrices,), for a choice."""
    nothing, nowhere = np.full(len(seconds), np.nan), np.full(len(seconds), -1)
    return Choices(method, 0, nowhere, seconds, seconds, nothing, nothing)


def _programs(space: ConfigSpace, configs: Sequence[Config]) -> np.ndarray:
    """Number the programs that the configurations are on the bound shape."""
    numbers: dict[Config, int] = {}
    return np.array([numbers.setdefault(space.canonical(config), len(numbers)) for config in configs])


def _first(order: np.ndarray, programs: np.ndarray, count: int) -> list[int]:
    """The first `count` places of `order` that are different programs."""
    _, earliest = np.unique(programs[order], return_index=True)
    return order[np.sort(earliest)[:count]].tolist()


def _least_of(picked: int, count: int) -> np.ndarray:
    """Probability that the i-th smallest of `count` is the least of `picked` drawn without replacement, (count,)."""
    beyond = np.ones(count + 1)
    for step in range(picked):
        beyond *= np.maximum(0, count - np.arange(count + 1) - step) / (count - step)
    return beyond[:-1] - beyond[1:]
