"""The manifest of a corpus: which matrices there are, how large, and a digest of each pattern; not their files."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparloom.data.inputs import MatrixInput, MatrixInputs
from sparloom.errors import SchemaError
from sparloom.files import write_text

__all__ = ["Facts", "Manifest"]

SIZES = ("rows", "cols", "nnz")
DIGEST = "pattern"


@dataclass(frozen=True)
class Facts:
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

    matrices: Mapping[str, Facts]

    @classmethod
    def of(cls, inputs: MatrixInputs) -> "Manifest":
        """List the matrices of featurizer inputs."""
        return cls({item.name: Facts(*item.shape, item.nnz, item.digest) for item in inputs})

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Read a CSV file with the columns name, rows, cols, nnz and, if there are digests, pattern.

        Raises:
            SchemaError: a column is missing, a size is no count, or a matrix is listed twice.
        """
        matrices: dict[str, Facts] = {}
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
                matrices[row["name"]] = Facts(*(int(row[size]) for size in SIZES), row.get(DIGEST) or None)
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
