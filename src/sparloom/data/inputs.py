"""What the featurizer reads of each matrix: sites on a grid coarse enough to be affordable, all in one file.

The manifest of a corpus: which matrices there are, how large, and a digest of each pattern; not their files.
"""

import csv
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sparloom.errors import MissingArtifact, SchemaError
from sparloom.files import atomic_path, read_checked, stamp_zip, write_text
from sparloom.sparse import Pattern

__all__ = ["Manifest", "ManifestEntry", "MatrixInput", "MatrixInputs", "coarsen"]

FORMAT = 1
MEMBERS = ("conditions", "names", "digests", "shapes", "nnz", "quantum", "lengths", "row_steps", "cols", "counts")
REMEDY = "run experiment=prepare_inputs"
DAMAGES = (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, LookupError, TypeError, MemoryError,
           NotImplementedError, RuntimeError, SyntaxError)
"""What readers of archives raise where a file without checksum is damaged."""

SITES = 4096
FLOPS = 8e9
"""Limits of one forward and backward pass, which keep pre-training on two cores within minutes."""


@dataclass(frozen=True)
class MatrixInput:
    """Nonzeros of one matrix on a grid.

    Args:
        name: "group/name".
        coords: int32 (n, 2), row and column of each occupied grid cell, in row-major order.
        counts: int32 (n,), nonzeros in each cell.
        shape: rows and columns of the matrix itself.
        nnz: nonzeros of the matrix itself.
        quantum: rows and columns per grid cell, a power of two.
        digest: of the pattern.
    """

    name: str
    coords: np.ndarray
    counts: np.ndarray
    shape: tuple[int, int]
    nnz: int
    quantum: int
    digest: str


def coarsen(
    pattern: Pattern,
    *,
    name: str,
    cost: Callable[[np.ndarray], float],
    sites: int = SITES,
    flops: float = FLOPS,
) -> MatrixInput:
    """Coarsen the grid, by the smallest power of two, until the featurizer's pass is affordable.

    Args:
        cost: coords (n, 2) -> floating-point operations of one forward and backward pass.
        sites: most occupied cells.
        flops: most operations.
    """
    rows, cols = pattern.row_ids().astype(np.int64), pattern.indices.astype(np.int64)
    power = 0
    while pattern.nnz > sites << 2 * power:  # a cell holds at most 4^power nonzeros
        power += 1
    while True:
        width = (pattern.cols >> power) + 1
        keys, counts = np.unique((rows >> power) * width + (cols >> power), return_counts=True)
        coords = np.stack([keys // width, keys % width], axis=1).astype(np.int32)
        if (len(keys) <= sites and cost(coords) <= flops) or len(keys) <= 1:
            break
        power += 1
    return MatrixInput(name, coords, counts.astype(np.int32), pattern.shape, pattern.nnz, 1 << power, pattern.digest())


class MatrixInputs:
    """Inputs of many matrices, by name; a file is opened at the first access.

    Args:
        load: gives the arrays of `pack`; called once.
    """

    def __init__(self, load: Callable[[], Mapping[str, np.ndarray]]) -> None:
        self._load = load

    @classmethod
    def of(cls, inputs: Sequence[MatrixInput], conditions: Mapping[str, Any] | None = None) -> "MatrixInputs":
        """Gather inputs; `conditions` say how they were made."""
        arrays = _pack(sorted(inputs, key=lambda item: item.name), conditions or {})
        return cls(lambda: arrays)

    @classmethod
    def read(cls, path: Path) -> "MatrixInputs":
        """Read a file that `write` wrote; nothing is opened before the first access.

        Raises:
            SchemaError: at the first access, when it is not such a file.
        """
        return cls(lambda: _open(path))

    def write(self, path: Path) -> None:
        """Write one compressed .npz file, atomically."""
        with atomic_path(path) as partial:
            with partial.open("wb") as file:
                np.savez_compressed(file, **self._arrays)
            stamp_zip(partial)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._places)

    @property
    def conditions(self) -> dict[str, Any]:
        """How the inputs were made: limits and version."""
        return json.loads(str(self._arrays["conditions"]))

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[MatrixInput]:
        return (self[name] for name in self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __getitem__(self, name: str) -> MatrixInput:
        if name not in self._places:
            raise MissingArtifact(
                f"no featurizer input of {name} among {len(self)}: run experiment=prepare_inputs",
                experiment="prepare_inputs",
            )
        place, arrays = self._places[name], self._arrays
        begin, end = self._offsets[place], self._offsets[place + 1]
        rows = np.cumsum(arrays["row_steps"][begin:end], dtype=np.int64)
        return MatrixInput(
            name=name,
            coords=np.stack([rows, arrays["cols"][begin:end]], axis=1).astype(np.int32),
            counts=arrays["counts"][begin:end].astype(np.int32),
            shape=(int(arrays["shapes"][place, 0]), int(arrays["shapes"][place, 1])),
            nnz=int(arrays["nnz"][place]),
            quantum=int(arrays["quantum"][place]),
            digest=str(arrays["digests"][place]),
        )

    @cached_property
    def _arrays(self) -> Mapping[str, np.ndarray]:
        return self._load()

    @cached_property
    def _places(self) -> dict[str, int]:
        return {str(name): place for place, name in enumerate(self._arrays["names"])}

    @cached_property
    def _offsets(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self._arrays["lengths"], dtype=np.int64)])


def _pack(inputs: Sequence[MatrixInput], conditions: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Concatenate; rows as steps from the previous site, which compress to almost nothing."""
    steps = [np.diff(item.coords[:, 0], prepend=0) for item in inputs]
    return {
        "format": np.array(FORMAT),
        "conditions": np.array(json.dumps(dict(conditions), sort_keys=True)),
        "names": np.array([item.name for item in inputs], dtype=np.str_),
        "digests": np.array([item.digest for item in inputs], dtype=np.str_),
        "shapes": np.array([item.shape for item in inputs], np.int64).reshape(-1, 2),
        "nnz": np.array([item.nnz for item in inputs], np.int64),
        "quantum": np.array([item.quantum for item in inputs], np.int32),
        "lengths": np.array([len(item.counts) for item in inputs], np.int32),
        "row_steps": _join(steps),
        "cols": _join([item.coords[:, 1] for item in inputs]),
        "counts": _join([item.counts for item in inputs]),
    }


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate nonnegative integers in the narrowest type that holds them."""
    joined = np.concatenate([np.zeros(0, np.int64), *parts])
    return joined.astype(np.min_scalar_type(int(joined.max(initial=0))))


def _open(path: Path) -> dict[str, np.ndarray]:
    try:
        content, checked = read_checked(path)
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except DAMAGES as error:
        raise SchemaError(f"{path} does not hold featurizer inputs ({error}): {REMEDY}") from None
    if arrays.get("format") != FORMAT:
        raise SchemaError(f"{path} has format {arrays.get('format')}, this version reads {FORMAT}: {REMEDY}")
    fault = None if checked else _fault(arrays)
    if fault is not None:
        raise SchemaError(f"{path} is damaged ({fault}): {REMEDY}")
    return arrays


def _fault(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Say what is impossible in the arrays of a file without checksum; None: nothing."""
    missing = [name for name in MEMBERS if name not in arrays]
    if missing:
        return f"{missing[0]} is missing"
    count, sites = len(arrays["names"]), int(arrays["lengths"].sum(dtype=np.int64))
    for name in ("digests", "shapes", "nnz", "quantum", "lengths"):
        if len(arrays[name]) != count:
            return f"{name} of {len(arrays[name])} matrices, names of {count}"
    for name in ("row_steps", "cols", "counts"):
        if arrays[name].shape != (sites,):
            return f"{name} has shape {arrays[name].shape} for {sites} sites"
    return None


SIZES = ("rows", "cols", "nnz")
DIGEST = "pattern"


@dataclass(frozen=True)
class ManifestEntry:
    """What a manifest says of one matrix; without a digest only its size is known."""

    rows: int
    cols: int
    nnz: int
    digest: str | None

    def fault(self, item: MatrixInput) -> str | None:
        """Say in what a matrix differs; None: in nothing."""
        found = (*item.shape, item.nnz)
        if found != (self.rows, self.cols, self.nnz):
            return f"is {found[0]} x {found[1]} with {found[2]} nonzeros, not {self.rows} x {self.cols} with {self.nnz}"
        if self.digest not in (None, item.digest):
            return "has another pattern"
        return None


@dataclass(frozen=True)
class Manifest:
    """Facts by name of matrix."""

    matrices: Mapping[str, ManifestEntry]

    @classmethod
    def of(cls, inputs: MatrixInputs) -> "Manifest":
        """List the matrices of featurizer inputs."""
        return cls({item.name: ManifestEntry(*item.shape, item.nnz, item.digest) for item in inputs})

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Read a CSV file with the columns name, rows, cols, nnz and, if there are digests, pattern.

        Raises:
            SchemaError: a column is missing, a size is no count, or a matrix is listed twice.
        """
        matrices: dict[str, ManifestEntry] = {}
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if not {"name", *SIZES} <= set(rows.fieldnames or ()):
                raise SchemaError(f"{path}: a manifest has the columns name, {', '.join(SIZES)}, not {rows.fieldnames}")
            for row in rows:
                place = f"{path}, line {rows.line_num}"
                if row["name"] in matrices:
                    raise SchemaError(f"{place}: {row['name']} is listed twice")
                if not all((row[size] or "").isdigit() for size in SIZES):
                    raise SchemaError(f"{place}: rows, cols and nnz are counts, not {[row[size] for size in SIZES]}")
                matrices[row["name"]] = ManifestEntry(*(int(row[size]) for size in SIZES), row.get(DIGEST) or None)
        return cls(matrices)

    def write(self, path: Path) -> None:
        """Write what `read` reads."""
        lines = [f"{name},{facts.rows},{facts.cols},{facts.nnz},{facts.digest or ''}"
                 for name, facts in sorted(self.matrices.items())]
        write_text(path, "\n".join([",".join(("name", *SIZES, DIGEST)), *lines]) + "\n")

    def check(self, inputs: MatrixInputs) -> None:
        """Refuse inputs that were not made of these matrices; further inputs do not matter.

        Raises:
            SchemaError: names the first matrix that is missing or another.
        """
        absent = [name for name in self.matrices if name not in inputs]
        if absent:
            raise SchemaError(f"{len(absent)} of {len(self.matrices)} matrices of the manifest have no featurizer "
                              f"inputs ({', '.join(absent[:3])}): run experiment=prepare_inputs, or list fewer")
        for name, facts in self.matrices.items():
            fault = facts.fault(inputs[name])
            if fault:
                raise SchemaError(f"{name} {fault}, as the manifest says: collect the samples of this matrix again, or "
                                  "correct the manifest")
