"""Labelled configurations of one matrix as a model reads them.

Seconds of every configuration on every problem in every sweep, as one array.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from sparloom.data.inputs import MatrixInput, MatrixInputs
from sparloom.data.table import SampleTable
from sparloom.errors import SchemaError
from sparloom.space import Config, ConfigSpace

__all__ = ["MatrixSamples", "Problem", "Sweeps", "matrix_samples"]


@dataclass(frozen=True)
class MatrixSamples:
    """One matrix with n labelled configurations.

    Args:
        input: what the featurizer reads.
        keys: configuration keys.
        shared: float32 (n, 53), encoded shared schedules.
        heterogeneous: float32 (n, h), hardware-specific parameters.
        seconds: float64 (n,).
        spread: float64 (n,), relative differences below which a pair has no order.
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

    Values outside the space, as imported tables may hold, are encoded all the same if its maps can read them.

    Raises:
        SchemaError: a key has other parameters than the space, or a value that its codes do not know.
    """
    items = []
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


Problem = tuple[str, int]
"""Matrix and width: what a configuration is chosen for."""


@dataclass(frozen=True)
class Sweeps:
    """An exhaustive sample table, without its conditions.

    Args:
        problems: sorted.
        configs: keys, in the order of the space.
        seconds: least repetition; NaN where it failed or is missing. A sweep is a round: an independent measurement of
            everything.
    """

    problems: tuple[Problem, ...]
    configs: tuple[str, ...]
    seconds: Float[np.ndarray, "problems configs sweeps"]

    @classmethod
    def of(cls, table: SampleTable, configs: Sequence[str]) -> "Sweeps":
        """Arrange a table; rows of other configurations are left out.

        Raises:
            SchemaError: as `SampleTable.sweeps`, or the table holds none of the configurations.
        """
        frame = table.sweeps()
        frame = frame[frame["config"].isin(configs)]
        if not len(frame):
            raise SchemaError(f"no row is of one of the {len(configs)} configurations, such as {configs[0]}: the space "
                              "has changed since, collect again")
        pairs = sorted(set(zip(frame["matrix"].astype(str), frame["width"].tolist(), strict=True)))
        rows = {pair: place for place, pair in enumerate(pairs)}
        columns = {key: place for place, key in enumerate(configs)}
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
        """Whether every configuration that ran in one sweep ran in all of them, and at least one did."""
        ran = np.isfinite(self.seconds)
        return (ran.all(axis=2) == ran.any(axis=2)).all(axis=1) & ran.any(axis=(1, 2))

    def take(self, kept: np.ndarray) -> "Sweeps":
        """Keep some problems, given by a mask or by places."""
        places = np.arange(len(self))[kept]
        return replace(self, problems=tuple(self.problems[place] for place in places), seconds=self.seconds[places])
