"""Inputs of featurizers, the nonzeros of each matrix on a coarse enough grid, and the manifest of a corpus."""

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

from sparloom.data.windows import MEMBERS as WINDOW_MEMBERS
from sparloom.data.windows import PackedWindows, Window, cut_windows, pack_windows
from sparloom.errors import MissingArtifact, SchemaError
from sparloom.files import atomic_path, write_text
from sparloom.space import integer_of
from sparloom.sparse import Pattern

FORMAT = 1
MEMBERS = ("conditions", "names", "digests", "shapes", "nnz", "quantum", "lengths", "row_steps", "cols", "counts")
REMEDY = "run experiment=prepare_inputs"
READ_ERRORS = (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, LookupError, TypeError, MemoryError,
           NotImplementedError, RuntimeError, SyntaxError)
"""Errors of readers when a file without checksum is damaged."""

MAX_SITES = 4096
MAX_FLOPS = 8e9
"""Limits of one forward and backward pass, so that pre-training on two cores takes minutes."""

SIZES = ("rows", "cols", "nnz")
DIGEST = "pattern"


@dataclass(frozen=True)
class MatrixInput:
    """Nonzeros of one matrix on a grid.

    Args:
        name: "group/name".
        coords: int32 (n, 2), row and column of each occupied grid cell, in row-major order.
        counts: int32 (n,), nonzeros in each cell.
        shape: rows and columns of the matrix itself.
        quantum: rows and columns per grid cell, a power of two.
        statistics: `sparloom.sparse.STATISTICS` of the pattern in their order; None: not given.
        windows: of `cut_windows`; None: not given.
    """

    name: str
    coords: np.ndarray
    counts: np.ndarray
    shape: tuple[int, int]
    nnz: int
    quantum: int
    digest: str
    statistics: np.ndarray | None = None
    windows: tuple[Window, ...] | None = None


def coarsen(
    pattern: Pattern,
    *,
    name: str,
    cost: Callable[[np.ndarray], float],
    sites: int = MAX_SITES,
    flops: float = MAX_FLOPS,
) -> MatrixInput:
    """Coarsen a pattern by the smallest power of two for which a pass of the featurizer is within the limits.

    The result also has the windows of the pattern.

    Args:
        cost: coords (n, 2) -> floating-point operations of one forward and backward pass.
        sites: largest number of occupied cells.
        flops: largest number of operations.
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
    return MatrixInput(name, coords, counts.astype(np.int32), pattern.shape, pattern.nnz, 1 << power, pattern.digest(),
                       windows=cut_windows(pattern))


class MatrixInputs:
    """Inputs of many matrices by name; a file is opened at first access.

    Args:
        load: returns the arrays of a file; called once.
        statistics: by name, for `MatrixInput.statistics`.
    """

    def __init__(
        self, load: Callable[[], Mapping[str, np.ndarray]], statistics: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._load, self._statistics = load, statistics or {}

    def with_statistics(self, statistics: Mapping[str, np.ndarray]) -> "MatrixInputs":
        """Add the statistics of patterns by name, in the order of `sparloom.sparse.STATISTICS`."""
        return MatrixInputs(lambda: self._arrays, statistics)

    @classmethod
    def of(cls, inputs: Sequence[MatrixInput], conditions: Mapping[str, Any] | None = None) -> "MatrixInputs":
        """Collect inputs; `conditions` describe how they were made."""
        arrays = _pack(sorted(inputs, key=lambda item: item.name), conditions or {})
        return cls(lambda: arrays)

    @classmethod
    def read(cls, path: Path) -> "MatrixInputs":
        """Read a file that `write` wrote, at first access.

        Raises:
            SchemaError: at first access, if it is another file or damaged.
        """
        return cls(lambda: _open(path))

    def write(self, path: Path) -> None:
        """Write one compressed .npz file atomically."""
        with atomic_path(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **self._arrays)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._indices)

    @property
    def conditions(self) -> dict[str, Any]:
        """Limits and version with which the inputs were made."""
        return json.loads(str(self._arrays["conditions"]))

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[MatrixInput]:
        return (self[name] for name in self._indices)

    def __contains__(self, name: str) -> bool:
        return name in self._indices

    def __getitem__(self, name: str) -> MatrixInput:
        if name not in self._indices:
            raise MissingArtifact(f"no featurizer input of {name} among {len(self)}", experiment="prepare_inputs")
        index, arrays = self._indices[name], self._arrays
        begin, end = self._offsets[index], self._offsets[index + 1]
        rows = np.cumsum(arrays["row_steps"][begin:end], dtype=np.int64)
        return MatrixInput(
            name=name,
            coords=np.stack([rows, arrays["cols"][begin:end]], axis=1).astype(np.int32),
            counts=arrays["counts"][begin:end].astype(np.int32),
            shape=(int(arrays["shapes"][index, 0]), int(arrays["shapes"][index, 1])),
            nnz=int(arrays["nnz"][index]),
            quantum=int(arrays["quantum"][index]),
            digest=str(arrays["digests"][index]),
            statistics=self._statistics.get(name),
            windows=None if self._windows is None else self._windows[index],
        )

    @cached_property
    def _arrays(self) -> Mapping[str, np.ndarray]:
        return self._load()

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {str(name): index for index, name in enumerate(self._arrays["names"])}

    @cached_property
    def _windows(self) -> PackedWindows | None:
        return PackedWindows(self._arrays, len(self._indices)) if WINDOW_MEMBERS[0] in self._arrays else None

    @cached_property
    def _offsets(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self._arrays["lengths"], dtype=np.int64)])


def _pack(inputs: Sequence[MatrixInput], conditions: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Concatenate inputs, with rows as differences to the previous site, which compress well.

    Windows are stored if all inputs have them.
    """
    windows = [item.windows for item in inputs if item.windows is not None]
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
        **(pack_windows(windows) if len(windows) == len(inputs) else {}),
    }


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate nonnegative integers in the narrowest sufficient type."""
    joined = np.concatenate([np.zeros(0, np.int64), *parts])
    return joined.astype(np.min_scalar_type(int(joined.max(initial=0))))


def _open(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except READ_ERRORS as error:
        raise SchemaError(f"{path} does not contain featurizer inputs ({error}): {REMEDY}") from None
    if arrays.get("format") != FORMAT:
        raise SchemaError(f"{path} has format {arrays.get('format')}, this version reads {FORMAT}: {REMEDY}")
    fault = _fault(arrays)
    if fault is not None:
        raise SchemaError(f"{path} is damaged ({fault}): {REMEDY}")
    return arrays


def _fault(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return what is inconsistent in the arrays of a file whose list of members may be damaged, or None."""
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
    try:
        if WINDOW_MEMBERS[0] in arrays:
            PackedWindows(arrays, count)
    except (ValueError, LookupError) as error:
        return str(error)
    return None


@dataclass(frozen=True)
class ManifestEntry:
    """Size of a matrix, and a digest of its pattern if known."""

    rows: int
    cols: int
    nnz: int
    digest: str | None

    def mismatch(self, item: MatrixInput) -> str | None:
        """Say how a matrix differs from the entry, or return None."""
        rows, cols, nnz = *item.shape, item.nnz
        if (rows, cols, nnz) != (self.rows, self.cols, self.nnz):
            return f"{rows} x {cols} with {nnz} nonzeros, not {self.rows} x {self.cols} with {self.nnz}"
        if self.digest not in (None, item.digest):
            return "another pattern"
        return None


@dataclass(frozen=True)
class Manifest:
    """Sizes and digests of the matrices of a corpus, by name; without their files."""

    matrices: Mapping[str, ManifestEntry]

    @classmethod
    def of(cls, inputs: MatrixInputs) -> "Manifest":
        return cls({item.name: ManifestEntry(*item.shape, item.nnz, item.digest) for item in inputs})

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Read a CSV file with the columns name, rows, cols, nnz and optionally pattern, the digest.

        Raises:
            SchemaError: a column is missing, a size is not a count, or a matrix is listed twice.
        """
        matrices: dict[str, ManifestEntry] = {}
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if not {"name", *SIZES} <= set(rows.fieldnames or ()):
                raise SchemaError(f"{path}: a manifest has the columns name, {', '.join(SIZES)}, not {rows.fieldnames}")
            for row in rows:
                where = f"{path}, line {rows.line_num}"
                if row["name"] in matrices:
                    raise SchemaError(f"{where}: {row['name']} is listed twice")
                counts = [integer_of(row[size] or "") for size in SIZES]
                if any(count is None or count < 0 for count in counts):
                    raise SchemaError(f"{where}: rows, cols and nnz are counts, not {[row[size] for size in SIZES]}")
                matrices[row["name"]] = ManifestEntry(*counts, row.get(DIGEST) or None)
        return cls(matrices)

    def write(self, path: Path) -> None:
        lines = [f"{name},{facts.rows},{facts.cols},{facts.nnz},{facts.digest or ''}"
                 for name, facts in sorted(self.matrices.items())]
        write_text(path, "\n".join([",".join(("name", *SIZES, DIGEST)), *lines]) + "\n")

    def check(self, inputs: MatrixInputs) -> None:
        """Check that inputs were made from these matrices; there may be inputs of further matrices.

        Raises:
            SchemaError: names the first matrix that is missing or differs.
        """
        absent = [name for name in self.matrices if name not in inputs]
        if absent:
            raise SchemaError(f"{len(absent)} of {len(self.matrices)} matrices of the manifest have no featurizer "
                              f"inputs ({', '.join(absent[:3])}): run experiment=prepare_inputs, or list fewer")
        for name, entry in self.matrices.items():
            mismatch = entry.mismatch(inputs[name])
            if mismatch:
                raise SchemaError(f"{name} differs from the manifest ({mismatch}): collect the samples of this matrix "
                                  "again, or correct the manifest")
