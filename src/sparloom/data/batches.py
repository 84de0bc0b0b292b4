"""Labels in the form that models and evaluations read: per matrix with encoded configurations, or as one array."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from sparloom.data.inputs import MatrixInput, MatrixInputs
from sparloom.data.sample import label_seconds
from sparloom.data.table import SampleTable
from sparloom.errors import SchemaError
from sparloom.space import Config, ConfigSpace

Problem = tuple[str, int]
"""Matrix and width, for which a configuration is chosen."""


@dataclass(frozen=True)
class MatrixSamples:
    """One matrix with n labelled configurations.

    Args:
        shared: float32 (n, 53), encoded shared schedules.
        heterogeneous: float32 (n, h), hardware-specific parameters.
        seconds: float64 (n,).
        spread: float64 (n,), relative differences below which a pair is a tie.
    """

    input: MatrixInput
    keys: tuple[str, ...]
    shared: np.ndarray
    heterogeneous: np.ndarray
    seconds: np.ndarray
    spread: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)


def matrix_samples(labels: pd.DataFrame, inputs: MatrixInputs, space: ConfigSpace) -> list[MatrixSamples]:
    """Join labels with featurizer inputs and encode the configurations: one item per matrix, in label order.

    Values outside the space, which imported tables may have, are encoded if the encoding allows them.

    Raises:
        SchemaError: a key has other parameters than the space, or a value without a code.
        ValueError: seconds are not positive and finite.
    """
    items, labels = [], labels.assign(seconds=label_seconds(labels))
    for name, rows in labels.groupby("matrix", sort=False, observed=True):
        item = inputs[str(name)]
        bound = space.bind(item.shape)
        keys = tuple(rows["config"])
        shared, heterogeneous = bound.vectors(_parsed(keys, bound))
        items.append(MatrixSamples(
            input=item, keys=keys, shared=shared, heterogeneous=heterogeneous,
            seconds=rows["seconds"].to_numpy(np.float64), spread=rows["spread"].to_numpy(np.float64),
        ))
    return items


def _parsed(keys: Sequence[str], space: ConfigSpace) -> list[Config]:
    names = tuple(parameter.name for parameter in space.parameters)
    configs = [Config.parse(space.name, key) for key in keys]
    for config in configs:
        if config.names != names:
            raise SchemaError(f"configuration {config} does not have the parameters {', '.join(names)} of {space.name}")
    return configs


@dataclass(frozen=True)
class Sweeps:
    """Seconds of every configuration on every problem in every sweep, from an exhaustive sample table.

    Args:
        configs: keys in the order of the space.
        seconds: fastest repetition; NaN if it failed or is missing. A sweep is one round over all configurations.
    """

    problems: tuple[Problem, ...]
    configs: tuple[str, ...]
    seconds: Float[np.ndarray, "problems configs sweeps"]

    @classmethod
    def of(cls, table: SampleTable, configs: Sequence[str]) -> "Sweeps":
        """Arrange a table as an array; rows of other configurations are dropped.

        Raises:
            SchemaError: as `SampleTable.sweeps`, or the table has none of the configurations.
        """
        frame = table.sweeps()
        frame = frame[frame["config"].isin(configs)]
        if not len(frame):
            raise SchemaError("the samples have none of the configurations of the space: collect them again")
        pairs = sorted(set(zip(frame["matrix"].astype(str), frame["width"].tolist(), strict=True)))
        rows = {pair: index for index, pair in enumerate(pairs)}
        columns = {key: index for index, key in enumerate(configs)}
        row = [rows[pair] for pair in zip(frame["matrix"].astype(str), frame["width"].tolist(), strict=True)]
        column = frame["config"].astype(str).map(columns).to_numpy()
        sweep = frame["round"].to_numpy()
        seconds = np.full((len(pairs), len(configs), int(sweep.max()) + 1), np.nan)
        seconds[row, column, sweep] = frame["seconds"].to_numpy()
        return cls(tuple(pairs), tuple(configs), seconds)

    def __len__(self) -> int:
        return len(self.problems)

    @property
    def complete(self) -> Bool[np.ndarray, " problems"]:
        """Return for each problem whether some configuration ran, and every one that ran did so in all sweeps."""
        ran = np.isfinite(self.seconds)
        return (ran.all(axis=2) == ran.any(axis=2)).all(axis=1) & ran.any(axis=(1, 2))

    def take(self, selected: np.ndarray) -> "Sweeps":
        """Select problems by a mask or by indices."""
        indices = np.arange(len(self))[selected]
        return replace(self, problems=tuple(self.problems[index] for index in indices), seconds=self.seconds[indices])
