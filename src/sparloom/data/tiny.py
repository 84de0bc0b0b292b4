"""Samples without file or measurement: small patterns and a formula in place of a machine, to try things out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from sparloom.data.inputs import MatrixInputs, cap
from sparloom.data.sample import Sample
from sparloom.data.split import split_by_family
from sparloom.data.table import SampleTable
from sparloom.space import ConfigSpace, CpuSpace, CudaSpace, SpadeSpace
from sparloom.sparse import Pattern, Role, WalkStatistics, row_bin, statistics, walk_statistics

__all__ = ["TinySamples"]

SPACES: Mapping[str, Callable[[str], ConfigSpace]] = {"cpu": CpuSpace, "cuda": CudaSpace, "spade": SpadeSpace}
WIDTH = 256


@dataclass(frozen=True)
class TinySamples:
    """Made-up samples of small matrices.

    The seconds are a formula: they grow with the distance of the tile from one that suits the matrix, so that rankings
    differ between matrices, can be learned and carry over between platforms. They say nothing about any machine.

    Args:
        matrices: how many, of four families of patterns.
        configs: how many per matrix; a smaller space is listed whole.
        seed: of the patterns and the choice of configurations.
    """

    matrices: int
    configs: int
    seed: int

    def table(self, platform: str, preset: str, op: str) -> SampleTable:
        """Make up the samples of any platform with a space; the preset is only written down."""
        if platform not in SPACES:
            raise ValueError(f"tiny samples know the platforms {', '.join(SPACES)}, not {platform}; use samples=real")
        space = SPACES[platform](op)
        samples = []
        for place, (name, pattern) in enumerate(self._patterns.items()):
            bound = space.bind(pattern.shape)
            configs = list(bound) if len(bound) <= self.configs else bound.sample(self.configs, self._rng(place))
            for config, seconds in zip(configs, _seconds(bound.vectors(configs), pattern), strict=True):
                samples.append(Sample(
                    op=op, platform=platform, preset=preset, matrix=name, width=WIDTH, config=config.key, round=0,
                    seconds=(float(seconds),), cpu_seconds=(), kind="simulated", failure=None, stolen=False,
                    machine="formula", commit="", started="2000-01-01T00:00:00Z",
                ))
        return SampleTable.of(samples, [{"origin": "formula of sparloom.data.TinySamples"}])

    def split(self) -> Mapping[str, Role]:
        """Role by matrix; every matrix is its own family."""
        names = list(self._patterns)
        shares: Mapping[Role, float] = {"train": 0.5, "validation": 0.2, "test": 0.3}
        strata = {name: row_bin(pattern.rows) for name, pattern in self._patterns.items()}
        return split_by_family(self.families(), strata=strata, shares=shares, seed=self.seed).roles if names else {}

    def families(self) -> Mapping[str, str]:
        """Family by matrix."""
        return {name: name for name in self._patterns}

    def statistics(self) -> pd.DataFrame:
        """Pattern statistics, one row per matrix."""
        rows = {name: statistics(pattern) for name, pattern in self._patterns.items()}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("matrix")

    def walks(self) -> Mapping[str, WalkStatistics]:
        """Statistics of tiled walks by matrix."""
        return {name: walk_statistics(pattern) for name, pattern in self._patterns.items()}

    def inputs(self) -> MatrixInputs:
        """Featurizer inputs by matrix."""
        return MatrixInputs.of([
            cap(pattern, name=name, cost=lambda coords: 0.0, sites=256) for name, pattern in self._patterns.items()])

    @cached_property
    def _patterns(self) -> dict[str, Pattern]:
        kinds = (_banded, _scattered, _blocked, _hubs)
        return {
            f"tiny/{kinds[place % 4].__name__.strip('_')}{place // 4}": kinds[place % 4](self._rng(place))
            for place in range(self.matrices)
        }

    def _rng(self, place: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, place])


def _seconds(vectors: tuple[np.ndarray, np.ndarray], pattern: Pattern) -> np.ndarray:
    """Least work time, times one plus penalties for extents and flags that do not suit the pattern."""
    shared, heterogeneous = vectors
    reach = np.abs(pattern.row_ids() - pattern.indices).mean() / max(1, pattern.cols)
    crowd = pattern.row_lengths().max() / max(1.0, pattern.row_lengths().mean())
    suits = np.array([4 + 4 * reach, 10 - 4 * reach, 6.0, 0.0]) / 16
    tiles = np.abs(shared[:, 49:53] - suits).sum(axis=1)
    order = shared[:, :49] @ np.linspace(0.0, 0.3, 49)
    flags = heterogeneous @ np.linspace(0.1, 0.3, heterogeneous.shape[1]) * (1 if crowd > 4 else -0.5)
    return pattern.nnz * WIDTH * 1e-9 * np.exp(tiles + order + flags)


def _banded(rng: np.random.Generator) -> Pattern:
    size = int(rng.integers(100, 400))
    near = np.arange(size)[:, None] + np.arange(-2, 3)
    rows = np.broadcast_to(np.arange(size)[:, None], near.shape)
    inside = (near >= 0) & (near < size)
    return Pattern.from_coo(rows[inside], near[inside], (size, size))


def _scattered(rng: np.random.Generator) -> Pattern:
    rows, cols = (int(size) for size in rng.integers(100, 400, 2))
    return Pattern.from_coo(rng.integers(0, rows, 1500), rng.integers(0, cols, 1500), (rows, cols))


def _blocked(rng: np.random.Generator) -> Pattern:
    size, block = 8 * int(rng.integers(12, 50)), 8
    inside = np.arange(size) // block * block
    cols = inside[:, None] + np.arange(block)
    return Pattern.from_coo(np.repeat(np.arange(size), block), cols.ravel(), (size, size))


def _hubs(rng: np.random.Generator) -> Pattern:
    size = int(rng.integers(100, 400))
    rows = np.minimum(rng.geometric(0.05, 2000) - 1, size - 1)
    return Pattern.from_coo(rows, rng.integers(0, size, 2000), (size, size))
