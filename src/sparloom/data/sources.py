"""Where training and evaluation find their samples: a folder of stored tables, inputs and statistics."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd

from sparloom.data.frames import read_frame, write_frame
from sparloom.data.inputs import MatrixInputs
from sparloom.data.split import Split
from sparloom.data.store import check_stored, ensure_data
from sparloom.data.table import SampleTable
from sparloom.errors import MissingArtifact, SchemaError
from sparloom.sparse import WALK, WALK_STATISTICS, Role, WalkStatistics

__all__ = ["SampleSource", "StoredSamples", "read_statistics", "read_walks", "write_statistics", "write_walks"]

COLLECTED_BY: Mapping[str, str] = {"gemm": "collect_gemm"}
"""Operations whose problems are no sparse matrices have an experiment of their own."""

REMEDY = "bring it back by `dvc pull --force`, or make it again (experiment=prepare_inputs)"


class SampleSource(Protocol):
    """Samples of several platforms and operations on the same matrices; conf/samples has one file per kind."""

    def table(self, platform: str, preset: str, op: str) -> SampleTable: ...
    def split(self) -> Mapping[str, Role]: ...
    def families(self) -> Mapping[str, str]: ...
    def statistics(self) -> pd.DataFrame: ...
    def walks(self) -> Mapping[str, WalkStatistics]: ...
    def inputs(self) -> MatrixInputs: ...


@dataclass(frozen=True)
class StoredSamples:
    """Samples of one corpus under a data folder, which is fetched from the data store when it is absent.

    Layout: samples/<platform>_<op>.parquet with all presets, inputs/inputs.npz, statistics/statistics.parquet,
    statistics/walks.parquet and split.csv.

    Args:
        data: the folder that data.dvc points to.
        folder: of this corpus inside it: "" for the real matrices.
        corpus: option that collects these samples, named when a file is missing.
    """

    data: str
    folder: str
    corpus: str

    def table(self, platform: str, preset: str, op: str) -> SampleTable:
        """Read the samples of one platform, preset and operation.

        Raises:
            MissingArtifact: not collected, or not for this preset.
        """
        experiment = COLLECTED_BY.get(op, f"collect_{platform}")
        path = self._path(f"samples/{platform}_{op}.parquet", experiment=experiment, op=op)
        whole = SampleTable.read(path)
        table = whole.filter(op=op, platform=platform, preset=preset)
        if not len(table):
            raise MissingArtifact(
                f"{path} has no samples of preset {preset!r}; presets: {', '.join(map(repr, whole.presets()))}",
                experiment=experiment,
                overrides=(f"op={op}", f"corpus={self.corpus}"),
            )
        return table

    def split(self) -> Mapping[str, Role]:
        """Role by matrix."""
        return self._split().roles

    def families(self) -> Mapping[str, str]:
        """Family by matrix."""
        return self._split().families

    def statistics(self) -> pd.DataFrame:
        """Pattern statistics, one row per matrix."""
        return read_statistics(self._path("statistics/statistics.parquet", experiment="prepare_inputs"))

    def walks(self) -> Mapping[str, WalkStatistics]:
        """Statistics of tiled walks by matrix."""
        return read_walks(self._path("statistics/walks.parquet", experiment="prepare_inputs"))

    def inputs(self) -> MatrixInputs:
        """Featurizer inputs by matrix."""
        return MatrixInputs.read(self._path("inputs/inputs.npz", experiment="prepare_inputs"))

    def origins(self, platform: str, op: str) -> list[Path]:
        """List the files that learning on a platform reads."""
        names = (f"samples/{platform}_{op}.parquet", "split.csv", "inputs/inputs.npz", "statistics/statistics.parquet",
                 "statistics/walks.parquet")
        return [path for name in names if (path := Path(self.data) / self.folder / name).exists()]

    def _split(self) -> Split:
        return Split.read(self._path("split.csv", experiment="prepare_inputs"))

    def _path(self, relative: str, *, experiment: str, op: str | None = None) -> Path:
        ensure_data(Path(self.data))
        path = Path(self.data) / self.folder / relative
        if not path.exists():
            overrides = (f"corpus={self.corpus}",) if op is None else (f"op={op}", f"corpus={self.corpus}")
            raise MissingArtifact(
                f"{path} does not exist: run `python run.py experiment={experiment} {' '.join(overrides)}`",
                experiment=experiment,
                overrides=overrides,
            )
        check_stored(Path(self.data), path)
        return path


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


def read_walks(path: Path) -> dict[str, WalkStatistics]:
    """Read what `write_walks` wrote.

    Raises:
        SchemaError: written for other statistics.
    """
    frame = read_frame(path, REMEDY)
    if list(frame.columns) != ["matrix", *WALK, *WALK_STATISTICS]:
        raise SchemaError(f"{path} has other statistics of walks than this version: run experiment=prepare_inputs")
    keys = list(zip(*(frame[name].tolist() for name in WALK), strict=True))
    numbers = frame[list(WALK_STATISTICS)].to_numpy(np.float32)
    found: dict[str, dict] = {}
    for name, key, row in zip(frame["matrix"], keys, numbers, strict=True):
        found.setdefault(str(name), {})[key] = row
    return found


def write_walks(path: Path, walks: Mapping[str, WalkStatistics]) -> None:
    """Write statistics of walks, one row per matrix and walk, atomically."""
    names = [name for name in sorted(walks) for _ in walks[name]]
    keys = np.array([key for name in sorted(walks) for key in walks[name]], np.int32).reshape(-1, len(WALK))
    numbers = np.array([row for name in sorted(walks) for row in walks[name].values()], np.float32)
    frame = pd.concat([
        pd.DataFrame({"matrix": names}), pd.DataFrame(keys, columns=WALK),
        pd.DataFrame(numbers.reshape(-1, len(WALK_STATISTICS)), columns=WALK_STATISTICS),
    ], axis=1)
    write_frame(path, frame)
