"""Seconds of every configuration on every problem in every sweep, as one array."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from sparloom.data.table import SampleTable
from sparloom.errors import SchemaError

__all__ = ["Problem", "Sweeps"]

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
