"""A user's own simulator as a target: CSV files, a manifest of the matrices, everything else from another source."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.data.csv_file import CsvRules, read_csv
from sparloom.data.inputs import MatrixInputs, cap
from sparloom.data.sources import SampleSource
from sparloom.data.split import Split
from sparloom.data.table import SampleTable
from sparloom.errors import SchemaError
from sparloom.sparse import Pattern, Role, WalkStatistics, read_matrix, statistics, walk_statistics

__all__ = ["CsvSamples"]


@dataclass(frozen=True)
class CsvSamples:
    """SPADE samples from CSV files; samples of other platforms come from `base`.

    The manifest is JSON: {"matrices": {id: {"path": file beside the manifest, "role": ..., "family": ...}},
    "split": {"1": 32, "0": 256}}. Role and family may be left out (test; the id itself), and so may split when the
    files give it in columns. An id without a group gets the group csv.

    Args:
        files: CSV file by operation, or None.
        manifest: path of the manifest.
        cost: operations of the featurizer on given coordinates, as `cap` wants them.
        base: source of everything that the files do not hold.
    """

    files: Mapping[str, str | None]
    manifest: str
    cost: Callable[[np.ndarray], float]
    base: SampleSource

    def table(self, platform: str, preset: str, op: str) -> SampleTable:
        """Read the samples; for SPADE those of the files, whose preset is what their sidecar says."""
        if platform != "spade":
            return self.base.table(platform, preset, op)
        file = self.files.get(op)
        if file is None:
            raise ValueError(f"no CSV file for {op}: give samples.files.{op}=<path>")
        return read_csv(_existing(Path(file)), op, self._rules)

    def split(self) -> Mapping[str, Role]:
        """Role by matrix, those of `base` included."""
        return self._split.roles

    def families(self) -> Mapping[str, str]:
        """Family by matrix, those of `base` included."""
        return self._split.families

    def statistics(self) -> pd.DataFrame:
        """Pattern statistics, those of `base` included."""
        rows = {_name(key): statistics(pattern) for key, pattern in self._patterns.items()}
        own = pd.DataFrame.from_dict(rows, orient="index").rename_axis("matrix")
        return pd.concat([self.base.statistics(), own])

    def walks(self) -> Mapping[str, WalkStatistics]:
        """Statistics of tiled walks, those of `base` included."""
        own = {_name(key): walk_statistics(pattern) for key, pattern in self._patterns.items()}
        return {**self.base.walks(), **own}

    def inputs(self) -> MatrixInputs:
        """Featurizer inputs, those of `base` included."""
        own = [cap(pattern, name=_name(key), cost=self.cost) for key, pattern in self._patterns.items()]
        return MatrixInputs.of([*self.base.inputs(), *own])

    @cached_property
    def _content(self) -> dict:
        path = _existing(Path(self.manifest))
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content.get("matrices"), dict):
            raise SchemaError(f"{path}: a manifest has the entry \"matrices\", id -> {{\"path\": file}}")
        return content

    @cached_property
    def _patterns(self) -> dict[str, Pattern]:
        folder = Path(self.manifest).parent
        return {key: read_matrix(folder / entry["path"]).pattern for key, entry in self._content["matrices"].items()}

    @cached_property
    def _rules(self) -> CsvRules:
        cols = {key: pattern.cols for key, pattern in self._patterns.items()}
        splits = {int(code): int(size) for code, size in self._content.get("split", {}).items()}
        return CsvRules(cols=cols.get, name=_name, splits=splits)

    @cached_property
    def _split(self) -> Split:
        roles, families = dict(self.base.split()), dict(self.base.families())
        for key, entry in self._content["matrices"].items():
            roles[_name(key)] = entry.get("role", "test")
            families[_name(key)] = entry.get("family", _name(key))
        return Split(roles, families)


def _name(key: str) -> str:
    return key if "/" in key else f"csv/{key}"


def _existing(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give samples.files and samples.manifest")
    return path
