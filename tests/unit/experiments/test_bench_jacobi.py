"""The benchmark of Jacobi's method on small systems of every part: one run, then a resumed one."""

import csv

import numpy as np
import pandas as pd
import pytest

from sparloom import files
from sparloom.errors import Unsupported
from sparloom.experiments.fusion import jacobi_set, system
from sparloom.sparse import AnchorCorpus, Pattern, SparseMatrix, SuiteSparseCorpus, write_matrix

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("processes_loaded")]

COLUMNS = ("group", "name", "family", "rows", "cols", "nnz", "symmetric", "spd_likely", "kind", "sha256")
SIDE = 20


def plane(values: str) -> SparseMatrix:
    """Make a five-point stencil without values, or with arbitrary values."""
    place = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    dense = np.eye(SIDE * SIDE)
    for one, other in ((place[1:], place[:-1]), (place[:, 1:], place[:, :-1])):
        dense[one.ravel(), other.ravel()] = dense[other.ravel(), one.ravel()] = 1 if values == "lost" else -0.7
    return of_dense(dense)


def definite() -> SparseMatrix:
    """Blocks of five unknowns, positive definite, on which Jacobi's method itself diverges."""
    return of_dense(np.kron(np.eye(SIDE * SIDE // 5), np.full((5, 5), 0.6) + 0.4 * np.eye(5)))


def of_dense(dense: np.ndarray) -> SparseMatrix:
    where = np.nonzero(dense)
    return SparseMatrix(Pattern.from_coo(*where, dense.shape), dense[where])


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    home, rows = tmp_path_factory.mktemp("mirror"), []
    for name, matrix, spd, kind in (("a/definite", definite(), 1, "2D problem"),
                                    ("a/lost", plane("lost"), 0, "2D problem"),
                                    ("a/unknown", plane("unknown"), 0, "2D problem"),
                                    ("a/web", plane("lost"), 0, "web graph")):
        path = home / f"{name}.tar.gz"
        write_matrix(path, matrix)
        pattern = matrix.pattern
        rows.append((*name.split("/"), name, *pattern.shape, pattern.nnz, 1, spd, kind, files.sha256(path)))
    with (home / "index.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return home


@pytest.fixture(scope="module")
def finished(build, mirror, processes_loaded, tmp_path_factory):
    folder, out = tmp_path_factory.mktemp("bench"), tmp_path_factory.mktemp("out")
    task = build("bench_jacobi", f"paths.mirror={mirror}", "timing=quick", "anchors.scale=0.004",
                 "task.least_nonzeros=1500", "task.columns=8", "task.threads=1", "task.most_steps=500", folder=folder)
    return out, task.run(out), folder


def test_every_system_has_all_its_methods(finished):
    out, metrics, folder = finished
    frame = pd.read_parquet(out / "per_matrix.parquet")
    assert metrics["matrices"] == metrics["pattern/matrices"] == 1
    assert metrics["anchors/matrices"] == 8
    assert (out / "jacobi.png").exists()
    for _, rows in frame.groupby(["part", "matrix"]):
        timed = rows.dropna(subset="seconds")
        assert {"unfused", "auto", "fused", "torch", "scipy"} <= set(timed["method"])
        assert (timed["seconds"] > 0).all()
    assert not list((folder / "artifacts" / "bench_jacobi").iterdir())


def test_systems_are_solved_in_the_same_steps_fused_or_not(finished):
    out, metrics, _ = finished
    frame = pd.read_parquet(out / "per_matrix.parquet").set_index(["part", "method"])
    assert (frame.loc["definite"]["relaxation"] < 1).all()
    assert (frame.loc["pattern"]["relaxation"] == 1).all()
    for part in ("definite", "pattern", "anchors"):
        auto, unfused = (frame.loc[(part, method)] for method in ("auto", "unfused"))
        np.testing.assert_array_equal(auto["steps_most"], unfused["steps_most"])
        assert (auto["converged"] == 8).all()
    assert metrics["converged"] == metrics["anchors/converged"] == 1


def test_sets_of_systems(mirror):
    corpus = SuiteSparseCorpus(str(mirror), "", count=None, role=None, seed=0)
    names = {part: [entry.name for entry in jacobi_set(corpus, part, least_nonzeros=100)]
             for part in ("definite", "pattern")}
    assert names == {"definite": ["a/definite"], "pattern": ["a/lost", "a/unknown"]}
    assert not jacobi_set(corpus, "definite", least_nonzeros=10**6)
    assert len(jacobi_set(AnchorCorpus(0.004, reordered=True), "anchors", least_nonzeros=0)) == 8
    with pytest.raises(Unsupported, match="it has values"):
        system(plane("unknown"), "pattern")
    loose = Pattern.from_coo(np.array([0, 1]), np.array([1, 0]), (2, 2))
    with pytest.raises(Unsupported, match="its diagonal is not stored"):
        system(SparseMatrix(loose, np.ones(2)), "pattern")
