"""Labelled configurations of one matrix as a model reads them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sparloom.data.inputs import MatrixInput, MatrixInputs
from sparloom.errors import SchemaError
from sparloom.space import Config, ConfigSpace

__all__ = ["MatrixSamples", "matrix_samples"]


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
