"""Featurizer inputs: the cap, the file, errors."""

from pathlib import Path

import numpy as np
import pytest

from sparloom.data import MatrixInputs, coarsen
from sparloom.errors import MissingArtifact, SchemaError
from sparloom.sparse import Pattern


def free(coords: np.ndarray) -> float:
    return 0.0


def diagonal(size: int) -> Pattern:
    return Pattern.from_coo(np.arange(size), np.arange(size), (size, size))


def scattered(seed: int, rows: int = 5000, cols: int = 9000, nnz: int = 20_000) -> Pattern:
    rng = np.random.default_rng(seed)
    return Pattern.from_coo(rng.integers(0, rows, nnz), rng.integers(0, cols, nnz), (rows, cols))


def test_small_pattern_is_not_coarsened() -> None:
    pattern = scattered(0, nnz=1000)
    item = coarsen(pattern, name="g/a", cost=free)
    assert item.quantum == 1
    assert np.array_equal(item.coords, np.stack([pattern.row_ids(), pattern.indices], axis=1))
    assert (item.counts == 1).all()


@pytest.mark.parametrize(("size", "quantum"), [(4096, 1), (4097, 2), (8192, 2), (8193, 4), (100_000, 32)])
def test_grid_is_the_finest_power_of_two_within_the_sites(size: int, quantum: int) -> None:
    item = coarsen(diagonal(size), name="g/a", cost=free)
    assert item.quantum == quantum
    assert len(item.coords) == -(-size // quantum)


def test_counts_add_up_to_the_nonzeros() -> None:
    pattern = scattered(1)
    item = coarsen(pattern, name="g/a", cost=free, sites=500)
    assert len(item.coords) <= 500
    assert item.counts.sum() == item.nnz == pattern.nnz
    assert item.shape == pattern.shape
    assert item.digest == pattern.digest()
    finer = np.unique(np.stack([pattern.row_ids(), pattern.indices], axis=1) // (item.quantum // 2), axis=0)
    assert len(finer) > 500


def test_sites_are_in_row_major_order_and_match_the_pattern() -> None:
    pattern = scattered(2)
    item = coarsen(pattern, name="g/a", cost=free, sites=700)
    expected = np.unique(np.stack([pattern.row_ids(), pattern.indices], axis=1) // item.quantum, axis=0)
    assert np.array_equal(item.coords, expected)


def test_dear_patterns_are_coarsened_further() -> None:
    dear = coarsen(diagonal(1000), name="g/a", cost=lambda coords: 1e7 * len(coords), flops=1e9)
    assert (dear.quantum, len(dear.coords)) == (16, 63)


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (3, 4)])
def test_pattern_without_nonzeros_has_no_sites(shape: tuple[int, int], tmp_path: Path) -> None:
    item = coarsen(Pattern.from_coo(np.zeros(0, int), np.zeros(0, int), shape), name="g/a", cost=free)
    assert item.coords.shape == (0, 2)
    MatrixInputs.of([item]).write(tmp_path / "i.npz")
    assert MatrixInputs.read(tmp_path / "i.npz")["g/a"].coords.shape == (0, 2)


def test_file_reads_back(tmp_path: Path) -> None:
    patterns = {"g/b": scattered(3), "g/a": diagonal(70_000), "h/wide": scattered(4, rows=3, cols=2_000_000, nnz=900)}
    items = {name: coarsen(pattern, name=name, cost=free) for name, pattern in patterns.items()}
    MatrixInputs.of(list(items.values()), {"sites": 4096}).write(tmp_path / "i.npz")
    back = MatrixInputs.read(tmp_path / "i.npz")
    assert back.names == ("g/a", "g/b", "h/wide")
    assert back.conditions == {"sites": 4096}
    assert len(back) == 3
    assert "g/c" not in back
    for item in back:
        same = items[item.name]
        assert np.array_equal(item.coords, same.coords)
        assert item.coords.dtype == item.counts.dtype == np.int32
        assert np.array_equal(item.counts, same.counts)
        assert (item.shape, item.nnz, item.quantum, item.digest) == (same.shape, same.nnz, same.quantum, same.digest)


def test_absent_matrix_names_the_experiment() -> None:
    inputs = MatrixInputs.of([coarsen(diagonal(3), name="g/a", cost=free)])
    with pytest.raises(MissingArtifact, match="no featurizer input of g/b among 1") as caught:
        inputs["g/b"]
    assert caught.value.experiment == "prepare_inputs"


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "i.npz", format=np.array(1), names=np.array([{"a": 1}], dtype=object))
    with pytest.raises(SchemaError, match=r"does not contain featurizer inputs \(Object arrays cannot be loaded"):
        len(MatrixInputs.read(tmp_path / "i.npz"))
