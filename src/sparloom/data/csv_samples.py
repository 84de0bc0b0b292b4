"""A source of samples in CSV files, of SPADE or of a described accelerator, and of the matrices that they name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom import sparse
from sparloom.data.csv_file import CsvRules, matrices_in, read_csv, read_described, read_object, sidecar_path
from sparloom.data.inputs import MatrixInput, MatrixInputs, coarsen
from sparloom.data.sources import SampleSource
from sparloom.data.split import Split, split_by_family
from sparloom.data.table import SampleTable
from sparloom.errors import SchemaError
from sparloom.space import Description, read_description

SHARES: Mapping[sparse.Role, float] = {"train": 0.6, "validation": 0.1, "test": 0.3}
"""Shares of the matrices that have all configurations, where no manifest gives roles."""
PRESET = "csv"
"""Preset of a described accelerator."""


@dataclass(frozen=True)
class CsvSamples:
    """Samples from CSV files; everything else, such as samples of other platforms, comes from `base`.

    The files have samples of SPADE, or of the accelerator that `space` describes. The manifest is JSON: {"matrices":
    {id: {"path": file beside the manifest, "role": ..., "family": ...}}, "split": {"1": 32, "0": 256}}. Role defaults
    to test and family to the id; split may be omitted if the files give it in columns. An id without a group gets the
    group csv. Without a manifest, the matrices that the files name are looked up in a folder and roles are drawn: a
    matrix that `base` has too keeps its role there, and one that lacks configurations is for training.

    Args:
        files: CSV file by operation, or None.
        manifest: path of the manifest; None: look the matrices up in `matrices`.
        cost: number of the featurizer's operations on coordinates, see `coarsen`.
        base: source of everything that the files do not contain.
        space: path of the YAML file of a described accelerator; None: the files are of SPADE.
        matrices: folder of matrix files.
    """

    files: Mapping[str, str | None]
    manifest: str | None
    cost: Callable[[np.ndarray], float]
    base: SampleSource
    space: str | None = None
    matrices: str | None = None

    def table(self, platform: str, preset: str, op: str) -> SampleTable:
        """Read the samples: for SPADE those of the files, whose sidecar names the preset.

        Raises:
            ValueError: no file is given for the operation.
            SchemaError: a row is wrong, or a matrix is not found; names file and line.
        """
        if platform != (self._description.name if self._description else "spade"):
            return self.base.table(platform, preset, op)
        file = self._file(op)
        if (op, preset) not in self._read:
            self._read[op, preset] = self._parsed(file, op, preset)
        return self._read[op, preset]

    def split(self) -> Mapping[str, sparse.Role]:
        return self._split.roles

    def families(self) -> Mapping[str, str]:
        return self._split.families

    def statistics(self) -> pd.DataFrame:
        rows = {self._name(key): sparse.statistics(pattern) for key, pattern in self._patterns.items()}
        own = pd.DataFrame.from_dict(rows, orient="index").rename_axis("matrix")
        return pd.concat([self.base.statistics().drop(index=own.index, errors="ignore"), own])

    def walks(self) -> Mapping[str, sparse.WalkStatistics]:
        own = {self._name(key): sparse.walk_statistics(pattern) for key, pattern in self._patterns.items()}
        return {**self.base.walks(), **own}

    def inputs(self) -> MatrixInputs:
        own = {item.name for item in self._inputs}
        return MatrixInputs.of([*(item for item in self.base.inputs() if item.name not in own), *self._inputs])

    def origins(self, platform: str, op: str) -> list[Path]:
        own = [Path(name).expanduser() for name in (self.files.get(op), self.manifest, self.space) if name]
        if self.files.get(op):
            own.append(sidecar_path(own[0]))
        return [path for path in own if path.exists()] + self.base.origins(platform, op)

    @cached_property
    def _read(self) -> dict[tuple[str, str], SampleTable]:
        """Tables that were read, by operation and preset: drawing roles needs them before training does."""
        return {}

    @cached_property
    def _description(self) -> Description | None:
        return None if self.space is None else read_description(Path(self.space).expanduser())

    def _parsed(self, file: Path, op: str, preset: str) -> SampleTable:
        if self._description is None:
            return read_csv(file, op, self._rules)
        names = {key: self._name(key) for key in self._listed}
        return read_described(file, op, self._description, preset=preset, names=names)

    def _name(self, key: str) -> str:
        """Return the full name of a matrix; only a manifest may name matrices of `base`."""
        return key if "/" in key and self.manifest is not None else f"csv/{key}"

    def _file(self, op: str) -> Path:
        file = self.files.get(op)
        if file is None:
            raise ValueError(f"no CSV file for {op}: give samples.files.{op}=<path>")
        return _existing(Path(file).expanduser())

    @cached_property
    def _content(self) -> dict:
        path = _existing(self._manifest)
        content = read_object(path)
        if not isinstance(content.get("matrices"), dict):
            raise SchemaError(f"{path}: a manifest needs the entry \"matrices\", id -> {{\"path\": file}}")
        for key, entry in content["matrices"].items():
            if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
                raise SchemaError(f"{path}: matrix {key!r} needs the path of its file, {{\"path\": file}}")
        return content

    @property
    def _manifest(self) -> Path:
        assert self.manifest is not None
        return Path(self.manifest).expanduser()

    @cached_property
    def _listed(self) -> dict[str, Path]:
        """Files of the matrices by the names that the CSV files use."""
        if self.manifest is not None:
            folder = self._manifest.parent
            return {key: folder / entry["path"] for key, entry in self._content["matrices"].items()}
        if self.matrices is None:
            raise ValueError("where are the matrices? Give their folder, paths.mirror=<folder>, or a list of them, "
                             "samples.manifest=<file>")
        files = [self._file(op) for op, file in self.files.items() if file is not None]
        if not files:
            raise ValueError("no CSV file of samples: give samples.files.spmm=<path>")
        wanted = dict.fromkeys(name for file in files for name in matrices_in(file))
        return find_matrices(Path(self.matrices).expanduser(), wanted)

    @cached_property
    def _patterns(self) -> dict[str, sparse.Pattern]:
        return {key: sparse.read_matrix(path).pattern for key, path in self._listed.items()}

    @cached_property
    def _inputs(self) -> list[MatrixInput]:
        return [coarsen(pattern, name=self._name(key), cost=self.cost) for key, pattern in self._patterns.items()]

    @cached_property
    def _rules(self) -> CsvRules:
        cols = {key: pattern.cols for key, pattern in self._patterns.items()}
        codes = {} if self.manifest is None else self._content.get("split", {})
        return CsvRules(cols=cols.get, name=self._name, splits={int(code): int(size) for code, size in codes.items()})

    @cached_property
    def _split(self) -> Split:
        roles, families = dict(self.base.split()), dict(self.base.families())
        if self.manifest is None:
            drawn = self._drawn(Split(roles, families))
            return Split({**roles, **drawn.roles}, {**families, **drawn.families})
        for key, entry in self._content["matrices"].items():
            roles[self._name(key)] = entry.get("role", "test")
            families[self._name(key)] = entry.get("family", self._name(key))
        return Split(roles, families)

    def _drawn(self, base: Split) -> Split:
        """Draw roles; a matrix whose pattern `base` has is another version of that one."""
        known = {item.digest: item.name for item in self.base.inputs() if item.name in base.roles}
        same = {item.name: known[item.digest] for item in self._inputs if item.digest in known}
        roles = {name: base.roles[other] for name, other in same.items()}
        families = {name: base.families.get(other, other) for name, other in same.items()}
        seen: dict[str, str] = {}  # pattern -> family, for one matrix under two names
        own = {item.name: seen.setdefault(item.digest, item.name) for item in self._inputs if item.name not in same}
        complete = self._complete()
        whole = {name: family for name, family in own.items() if family in complete}
        drawn = split_by_family(whole, strata=dict.fromkeys(whole, ""), shares=SHARES, seed=0).roles
        return Split({**dict.fromkeys(own, "train"), **drawn, **roles}, {**own, **families})

    def _complete(self) -> set[str]:
        """Matrices that may judge: those with all configurations of a described accelerator, all those of SPADE."""
        if self._description is None:
            return {item.name for item in self._inputs}
        found: set[str] = set()
        for op in (op for op, file in self.files.items() if file is not None):
            counts = self.table(self._description.name, PRESET, op).labels().groupby("matrix").size()
            found |= set(counts.index[counts == len(self._description.space(op))])
        return found


def find_matrices(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Find the files of matrices, by their paths in a folder or by their names, with or without endings.

    Raises:
        NotADirectoryError: there is no such folder.
        SchemaError: a name fits no file, or several.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder}: no such folder of matrices: give paths.mirror=<folder>")
    found: dict[str, list[Path]] = {}
    for path in sorted(path for path in folder.rglob("*") if sparse.is_matrix_file(path)):
        inner = path.relative_to(folder)
        stem = sparse.matrix_stem(path)
        for key in {inner.as_posix(), (inner.parent / stem).as_posix(), path.name, stem}:
            found.setdefault(key, []).append(path)
    for name in names:
        fitting = found.get(name, [])
        if not fitting:
            near = get_close_matches(name, found, 3) or sorted(found)[:3] or [
                f"nothing that ends in {', '.join(sparse.MATRIX_ENDINGS)}"]
            raise SchemaError(f"no file of matrix {name!r} in {folder}, which has {', '.join(near)}: add it, or "
                              "correct the name")
        if len(fitting) > 1:
            raise SchemaError(f"matrix {name!r} fits {fitting[0]} and {fitting[1]}: name it by its path in "
                              f"{folder}")
    return {name: found[name][0] for name in names}


def _existing(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give samples.files and samples.manifest")
    return path
