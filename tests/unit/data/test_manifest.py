"""The manifest of a corpus: files and refusals."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from sparloom.data import Manifest, MatrixInputs, TinySamples
from sparloom.errors import SchemaError

PACKAGE = Path(__file__).parents[3] / "src" / "sparloom" / "sparse"
MANIFESTS = {"development": PACKAGE / "suitesparse.csv", "final": PACKAGE / "suitesparse_final.csv"}
HEADER = "name,rows,cols,nnz"


@pytest.fixture(scope="module")
def inputs() -> MatrixInputs:
    return TinySamples(matrices=4, configs=4, seed=0).inputs()


def changed(inputs: MatrixInputs, **values: object) -> Manifest:
    """Make the manifest of these inputs with changed facts of the first matrix."""
    matrices = dict(Manifest.of(inputs).matrices)
    first = inputs.names[0]
    return Manifest({**matrices, first: replace(matrices[first], **values)})


def test_a_manifest_reads_back_and_fits_what_it_was_made_of(inputs, tmp_path):
    Manifest.of(inputs).write(tmp_path / "manifest.csv")
    again = Manifest.read(tmp_path / "manifest.csv")
    assert again == Manifest.of(inputs)
    again.check(inputs)


@pytest.mark.parametrize(("values", "message"), [
    ({"rows": 1}, "tiny/banded0 differs .* nonzeros, not 1 x .*: collect the samples of this matrix again"),
    ({"nnz": 0}, "tiny/banded0 differs from the manifest .* with 0"),
    ({"digest": "0" * 64}, "tiny/banded0 differs from the manifest .another pattern"),
])
def test_another_matrix_of_that_name_is_refused(inputs, values, message):
    with pytest.raises(SchemaError, match=message):
        changed(inputs, **values).check(inputs)


def test_a_listed_matrix_without_inputs_is_named(inputs):
    facts = next(iter(Manifest.of(inputs).matrices.values()))
    with pytest.raises(SchemaError, match=r"1 of 1 matrices of the manifest have no featurizer inputs \(a/b\)"):
        Manifest({"a/b": facts}).check(inputs)


@pytest.mark.parametrize(("text", "message"), [
    ("name,rows\na/b,1\n", "has the columns name, rows, cols, nnz, not"),
    (f"{HEADER}\na/b,1,1,one\n", "line 2: rows, cols and nnz are counts"),
    (f"{HEADER}\na/b,1,1\n", "line 2: rows, cols and nnz are counts"),
    (f"{HEADER}\na/b,1,1,1_0\n", "line 2: rows, cols and nnz are counts"),
    (f"{HEADER}\na/b,²,1,1\n", "line 2: rows, cols and nnz are counts"),
    (f"{HEADER}\na/b,1,-1,1\n", "line 2: rows, cols and nnz are counts"),
    (f"{HEADER}\na/b,1,1,1\na/b,1,1,1\n", "line 3: a/b is listed twice"),
])
def test_errors_name_the_line_of_a_file(tmp_path, text, message):
    (tmp_path / "manifest.csv").write_text(text)
    with pytest.raises(SchemaError, match=message):
        Manifest.read(tmp_path / "manifest.csv")


@pytest.mark.parametrize(("part", "count"), [("development", 356), ("final", 77)])
def test_the_real_matrices_of_each_part_have_a_manifest(part, count):
    with (PACKAGE / "suitesparse_split.csv").open(encoding="utf-8", newline="") as file:
        frozen = {f"{row['group']}/{row['name']}" for row in csv.DictReader(file) if row["part"] == part}
    listed = Manifest.read(MANIFESTS[part]).matrices
    assert set(listed) == frozen
    assert len(listed) == count
    assert all(facts.digest for facts in listed.values())


def test_sizes_of_the_real_matrices_are_those_of_the_catalogue(mirror):
    index = Path(mirror) / "index.csv"
    if not index.is_file():
        pytest.skip("the mirror is an address: its catalogue is not fetched for this")
    with index.open(encoding="utf-8", newline="") as file:
        sizes = {f"{row['group']}/{row['name']}": tuple(int(row[key]) for key in ("rows", "cols", "nnz"))
                 for row in csv.DictReader(file)}
    for path in MANIFESTS.values():
        for name, facts in Manifest.read(path).matrices.items():
            assert sizes[name] == (facts.rows, facts.cols, facts.nnz)
