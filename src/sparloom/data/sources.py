"""Sources of samples: stored tables, and generated samples for trying things out; csv_samples has CSV files."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, get_args

import numpy as np
import pandas as pd

from sparloom import sparse
from sparloom.data.files import ensure_data, read_frame, verify_stored, write_frame
from sparloom.data.inputs import MatrixInputs, coarsen
from sparloom.data.sample import Sample
from sparloom.data.split import Split, split_by_family
from sparloom.data.table import SampleTable
from sparloom.errors import MissingArtifact, SchemaError
from sparloom.space import EXTENT_SCALE, ORDER_WIDTH, ConfigSpace, CpuSpace, CudaSpace, SpadeSpace

REMEDY = "restore it with `dvc pull --force`, or make it again (experiment=prepare_inputs)"
SPACES: Mapping[str, Callable[[str], ConfigSpace]] = {
    "cpu": CpuSpace, "cpu_many": CpuSpace, "cuda": CudaSpace, "spade": SpadeSpace}
WIDTH = 256  # of tiny samples


class SampleSource(Protocol):
    """Samples of several platforms and operations on the same matrices; conf/options has one option per source."""

    def table(self, platform: str, preset: str, op: str) -> SampleTable: ...
    def split(self) -> Mapping[str, sparse.Role]: ...  # by matrix, as all the following
    def families(self) -> Mapping[str, str]: ...
    def statistics(self) -> pd.DataFrame: ...
    def walks(self) -> Mapping[str, sparse.WalkStatistics]: ...
    def inputs(self) -> MatrixInputs: ...

    def origins(self, platform: str, op: str) -> list[Path]:
        """List the existing files that training on a platform reads."""


@dataclass(frozen=True)
class StoredSamples:
    """Samples of one corpus in a data folder, which is fetched from the data store if it is missing.

    Layout: samples/<platform>_<op>.parquet with all presets, inputs/inputs.npz, statistics/statistics.parquet,
    statistics/walks.parquet and split.csv.

    Args:
        data: folder that data.dvc points to.
        folder: folder of the corpus inside it; "" for the real matrices.
        corpus: option that collects these samples, named if a file is missing; further options follow after spaces.
    """

    data: str
    folder: str
    corpus: str

    @property
    def name(self) -> str:
        """Name of the folder of what is learned from these samples."""
        return self.folder or "real"

    def table(self, platform: str, preset: str, op: str) -> SampleTable:
        """Read the samples of one platform, preset and operation.

        Raises:
            MissingArtifact: not collected, or not for this preset.
        """
        experiment, overrides = self._collection(platform, op)
        path = self._path(f"samples/{platform}_{op}.parquet", experiment=experiment, overrides=overrides)
        whole = SampleTable.read(path)
        table = whole.filter(op=op, platform=platform, preset=preset)
        if not len(table):
            raise MissingArtifact(
                f"{path} has no samples of preset {preset!r}; presets: {', '.join(map(repr, whole.presets()))}",
                experiment=experiment, overrides=overrides)
        return table

    def split(self) -> Mapping[str, sparse.Role]:
        return self._split().roles

    def families(self) -> Mapping[str, str]:
        return self._split().families

    def statistics(self) -> pd.DataFrame:
        return read_statistics(self._path("statistics/statistics.parquet", experiment="prepare_inputs"))

    def walks(self) -> Mapping[str, sparse.WalkStatistics]:
        return read_walks(self._path("statistics/walks.parquet", experiment="prepare_inputs"))

    def inputs(self) -> MatrixInputs:
        return MatrixInputs.read(self._path("inputs/inputs.npz", experiment="prepare_inputs"))

    def origins(self, platform: str, op: str) -> list[Path]:
        names = (f"samples/{platform}_{op}.parquet", "split.csv", "inputs/inputs.npz", "statistics/statistics.parquet",
                 "statistics/walks.parquet")
        return [path for name in names if (path := Path(self.data) / self.folder / name).exists()]

    def _collection(self, platform: str, op: str) -> tuple[str, tuple[str, ...]]:
        """Return the experiment that collects samples, and its overrides."""
        if op == "gemm":
            return ("collect_gemm_cuda" if platform == "triton" else "collect_gemm"), ()
        overrides = (f"op={op}", *self._corpus)
        if platform == "cuda_kernels":
            return "collect_cuda", (*overrides, "platform@target=cuda_kernels")
        return f"collect_{platform}", overrides

    @property
    def _corpus(self) -> tuple[str, ...]:
        return tuple(f"corpus={self.corpus}".split())

    def _split(self) -> Split:
        return Split.read(self._path("split.csv", experiment="prepare_inputs"))

    def _path(self, relative: str, *, experiment: str, overrides: tuple[str, ...] | None = None) -> Path:
        ensure_data(Path(self.data))
        path = Path(self.data) / self.folder / relative
        if not path.exists():
            raise MissingArtifact(f"{path} does not exist", experiment=experiment,
                                  overrides=self._corpus if overrides is None else overrides)
        verify_stored(Path(self.data), path)
        return path


@dataclass(frozen=True)
class JoinedSamples:
    """Samples of both parts of the real matrices, each role from one part or from both.

    Designs were made and judged on one part, so final figures are made on the test matrices of the other. A
    platform that has no samples of that one has those of the first part alone.

    Args:
        development, final: samples of each part; no matrix is in both.
        training: part whose training and validation matrices are taken; None: both.
        test: part whose test matrices are taken; None: both.
    """

    development: StoredSamples
    final: StoredSamples
    training: sparse.Part | None
    test: sparse.Part | None

    @property
    def name(self) -> str:
        """Name of the folder of what is learned from these samples: the same for the same training matrices."""
        return self.development.name if self.training == "development" else self.training or "joined"

    @property
    def base(self) -> StoredSamples:
        """Source whose pre-trained networks serve too."""
        return self.development

    def table(self, platform: str, preset: str, op: str) -> SampleTable:
        """Join the samples of one platform, preset and operation.

        Raises:
            MissingArtifact: those of the first part are not collected, or not for this preset.
        """
        tables = [self.development.table(platform, preset, op)]
        with suppress(MissingArtifact):
            tables.append(self.final.table(platform, preset, op))
        return SampleTable.concat(tables).filter(matrices=self._split.roles.keys())

    def split(self) -> Mapping[str, sparse.Role]:
        """Map the matrices that are taken to their roles.

        Raises:
            ValueError: `training` or `test` is no part.
            SchemaError: a matrix is in both parts.
        """
        return self._split.roles

    def families(self) -> Mapping[str, str]:
        return self._split.families

    def statistics(self) -> pd.DataFrame:
        joined = pd.concat([source.statistics() for source in self._parts.values()])
        return joined[joined.index.isin(self._split.roles)].sort_index()

    def walks(self) -> Mapping[str, sparse.WalkStatistics]:
        joined = {**self.development.walks(), **self.final.walks()}
        return {name: joined[name] for name in sorted(self._split.roles) if name in joined}

    def inputs(self) -> MatrixInputs:
        sources = [source.inputs() for source in self._parts.values()]
        return MatrixInputs.of([item for source in sources for item in source if item.name in self._split.roles],
                               sources[0].conditions)

    def origins(self, platform: str, op: str) -> list[Path]:
        return [path for source in self._parts.values() for path in source.origins(platform, op)]

    @property
    def _parts(self) -> Mapping[sparse.Part, StoredSamples]:
        return {"development": self.development, "final": self.final}

    @cached_property
    def _split(self) -> Split:
        for key, part in (("training", self.training), ("test", self.test)):
            if part not in (None, *get_args(sparse.Part)):
                raise ValueError(f"part {part!r} is not one of {', '.join(get_args(sparse.Part))}: samples.{key}=null "
                                 "for both")
        splits = {part: (source.split(), source.families()) for part, source in self._parts.items()}
        twice = sorted(splits["development"][0].keys() & splits["final"][0].keys())
        if twice:
            raise SchemaError(f"{len(twice)} matrices are in both parts ({', '.join(twice[:3])}): collect each in one, "
                              "corpus.part=development or final")
        roles = {name: role for part, (split, _) in splits.items() for name, role in split.items()
                 if (self.test if role == "test" else self.training) in (None, part)}
        families = {name: family for _, known in splits.values() for name, family in known.items()}
        return Split(roles, {name: families[name] for name in roles})


def read_statistics(path: Path) -> pd.DataFrame:
    """Read what `write_statistics` wrote."""
    frame = read_frame(path, REMEDY)
    if frame.index.name != "matrix":
        raise SchemaError(f"{path}: pattern statistics have the index matrix, not {frame.index.name}")
    return frame


def write_statistics(path: Path, frame: pd.DataFrame) -> None:
    """Write pattern statistics, one row per matrix and one column per statistic, atomically."""
    if frame.index.name != "matrix" or not frame.index.is_unique:
        raise SchemaError(f"pattern statistics need a unique index named matrix, not {frame.index.name}")
    write_frame(path, frame.sort_index())


def read_walks(path: Path) -> dict[str, sparse.WalkStatistics]:
    """Read what `write_walks` wrote.

    Raises:
        SchemaError: the file has other statistics than this version.
    """
    frame = read_frame(path, REMEDY)
    if list(frame.columns) != ["matrix", *sparse.WALK, *sparse.WALK_STATISTICS]:
        raise SchemaError(f"{path} has other statistics of walks than this version: run experiment=prepare_inputs")
    keys = list(zip(*(frame[name].tolist() for name in sparse.WALK), strict=True))
    numbers = frame[list(sparse.WALK_STATISTICS)].to_numpy(np.float32)
    walks: dict[str, dict] = {}
    for name, key, row in zip(frame["matrix"], keys, numbers, strict=True):
        walks.setdefault(str(name), {})[key] = row
    return walks


def write_walks(path: Path, walks: Mapping[str, sparse.WalkStatistics]) -> None:
    """Write statistics of walks, one row per matrix and walk, atomically."""
    names = [name for name in sorted(walks) for _ in walks[name]]
    keys = np.array([key for name in sorted(walks) for key in walks[name]], np.int32).reshape(-1, len(sparse.WALK))
    numbers = np.array([row for name in sorted(walks) for row in walks[name].values()], np.float32)
    frame = pd.concat([
        pd.DataFrame({"matrix": names}), pd.DataFrame(keys, columns=sparse.WALK),
        pd.DataFrame(numbers.reshape(-1, len(sparse.WALK_STATISTICS)), columns=sparse.WALK_STATISTICS),
    ], axis=1)
    write_frame(path, frame)


@dataclass(frozen=True)
class TinySamples:
    """Generated samples of small matrices.

    Seconds follow a formula: they grow with the distance of the tile from one that suits the matrix, so that rankings
    differ between matrices, can be learned and transfer between platforms. They do not describe any machine.

    Args:
        matrices: number of matrices, from four families of patterns.
        configs: number of configurations per matrix; smaller spaces are listed completely.
    """

    matrices: int
    configs: int
    seed: int

    def table(self, platform: str, preset: str, op: str) -> SampleTable:
        """Generate the samples of a platform; the preset is only recorded."""
        if platform not in SPACES:
            raise ValueError(f"tiny samples support the platforms {', '.join(SPACES)}, not {platform}: "
                             "use samples=real")
        space = SPACES[platform](op)
        samples = []
        for index, (name, pattern) in enumerate(self._patterns.items()):
            bound = space.bind(pattern.shape)
            configs = list(bound) if len(bound) <= self.configs else bound.sample(self.configs, self._rng(index))
            for config, seconds in zip(configs, _seconds(bound.vectors(configs), pattern), strict=True):
                samples.append(Sample(
                    op=op, platform=platform, preset=preset, matrix=name, width=WIDTH, config=config.key, round=0,
                    seconds=(float(seconds),), cpu_seconds=(), kind="simulated", failure=None, stolen=False,
                    machine="formula", commit="", started="2000-01-01T00:00:00Z",
                ))
        return SampleTable.of(samples, [{"origin": "formula of sparloom.data.TinySamples"}])

    def origins(self, platform: str, op: str) -> list[Path]:
        return []

    def split(self) -> Mapping[str, sparse.Role]:
        names = list(self._patterns)
        shares: Mapping[sparse.Role, float] = {"train": 0.5, "validation": 0.2, "test": 0.3}
        strata = {name: sparse.row_bin(pattern.rows) for name, pattern in self._patterns.items()}
        return split_by_family(self.families(), strata=strata, shares=shares, seed=self.seed).roles if names else {}

    def families(self) -> Mapping[str, str]:
        """Family by matrix: every matrix is its own family."""
        return {name: name for name in self._patterns}

    def statistics(self) -> pd.DataFrame:
        rows = {name: sparse.statistics(pattern) for name, pattern in self._patterns.items()}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("matrix")

    def walks(self) -> Mapping[str, sparse.WalkStatistics]:
        return {name: sparse.walk_statistics(pattern) for name, pattern in self._patterns.items()}

    def inputs(self) -> MatrixInputs:
        return MatrixInputs.of([coarsen(pattern, name=name, cost=lambda coords: 0.0, sites=256)
                                for name, pattern in self._patterns.items()])

    @cached_property
    def _patterns(self) -> dict[str, sparse.Pattern]:
        kinds = (_banded, _scattered, _blocked, _hubs)
        return {
            f"tiny/{kinds[index % 4].__name__.strip('_')}{index // 4}": kinds[index % 4](self._rng(index))
            for index in range(self.matrices)
        }

    def _rng(self, index: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, index])


def _seconds(vectors: tuple[np.ndarray, np.ndarray], pattern: sparse.Pattern) -> np.ndarray:
    """Time of the work, multiplied by penalties for extents and flags that do not suit the pattern."""
    shared, heterogeneous = vectors
    reach = np.abs(pattern.row_ids() - pattern.indices).mean() / max(1, pattern.cols)
    crowd = pattern.row_lengths().max() / max(1.0, pattern.row_lengths().mean())
    suits = np.array([4 + 4 * reach, 10 - 4 * reach, 6.0, 0.0]) / EXTENT_SCALE
    tiles = np.abs(shared[:, ORDER_WIDTH:] - suits).sum(axis=1)
    order = shared[:, :ORDER_WIDTH] @ np.linspace(0.0, 0.3, ORDER_WIDTH)
    flags = heterogeneous @ np.linspace(0.1, 0.3, heterogeneous.shape[1]) * (1 if crowd > 4 else -0.5)
    return pattern.nnz * WIDTH * 1e-9 * np.exp(tiles + order + flags)


def _banded(rng: np.random.Generator) -> sparse.Pattern:
    size = int(rng.integers(100, 400))
    near = np.arange(size)[:, None] + np.arange(-2, 3)
    rows = np.broadcast_to(np.arange(size)[:, None], near.shape)
    inside = (near >= 0) & (near < size)
    return sparse.Pattern.from_coo(rows[inside], near[inside], (size, size))


def _scattered(rng: np.random.Generator) -> sparse.Pattern:
    rows, cols = (int(size) for size in rng.integers(100, 400, 2))
    return sparse.Pattern.from_coo(rng.integers(0, rows, 1500), rng.integers(0, cols, 1500), (rows, cols))


def _blocked(rng: np.random.Generator) -> sparse.Pattern:
    size, block = 8 * int(rng.integers(12, 50)), 8
    inside = np.arange(size) // block * block
    cols = inside[:, None] + np.arange(block)
    return sparse.Pattern.from_coo(np.repeat(np.arange(size), block), cols.ravel(), (size, size))


def _hubs(rng: np.random.Generator) -> sparse.Pattern:
    size = int(rng.integers(100, 400))
    rows = np.minimum(rng.geometric(0.05, 2000) - 1, size - 1)
    return sparse.Pattern.from_coo(rows, rng.integers(0, size, 2000), (size, size))
