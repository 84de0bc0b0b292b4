"""Properties of every space, operation, shape and seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparloom.space import Config, CpuSpace, CudaSpace, GemmSpace, GridSpace, SddmmSpace, SpadeSpace, SpmmSpace, encode

SPACES = [make(op) for make in (SpadeSpace, CpuSpace, CudaSpace) for op in ("spmm", "sddmm")]
PLAIN = [GemmSpace(), SpmmSpace(32), SpmmSpace(128), SddmmSpace(128)]  # without a map onto shared loops
spaces = pytest.mark.parametrize("space", SPACES, ids=lambda space: f"{space.name}-{space.op}")
all_spaces = pytest.mark.parametrize("space", SPACES + PLAIN, ids=lambda space: f"{space.name}-{space.op}")
seeds = st.integers(0, 2**32 - 1)
shapes = st.tuples(st.integers(0, 300_000), st.integers(0, 300_000))


@all_spaces
@given(seed=seeds, count=st.integers(0, 54))
def test_samples_are_valid_and_distinct(space: GridSpace, seed: int, count: int) -> None:
    drawn = space.sample(count, np.random.default_rng(seed))
    assert len(set(drawn)) == count
    for config in drawn:
        space.validate(config)


@all_spaces
@given(seed=seeds)
def test_keys_read_back(space: GridSpace, seed: int) -> None:
    for config in space.sample(10, np.random.default_rng(seed)):
        assert space.parse(config.key) == config == Config.parse(space.name, config.key)


@spaces
@given(seed=seeds, shape=shapes)
def test_bound_schedules_fit_the_matrix_and_encode(space: GridSpace, seed: int, shape: tuple[int, int]) -> None:
    bound = space.bind(shape)
    for config in space.sample(5, np.random.default_rng(seed)):
        shared = bound.shared(config)
        if space.name != "cuda":
            rows, cols = shared.I, shared.J
            assert rows <= max(1, shape[0])
            assert cols <= max(1, shape[1])
        vector = encode(shared)
        assert np.isfinite(vector).all()
        assert vector[:49].reshape(7, 7).sum(axis=0).tolist() == [1.0] * 7
        assert vector[:49].reshape(7, 7).sum(axis=1).tolist() == [1.0] * 7


@spaces
@given(seed=seeds, shape=shapes)
def test_canonical_is_idempotent_and_valid(space: GridSpace, seed: int, shape: tuple[int, int]) -> None:
    bound = space.bind(shape)
    for config in space.sample(5, np.random.default_rng(seed)):
        once = bound.canonical(config)
        bound.validate(once)
        assert bound.canonical(once) == once


@spaces
@given(seed=seeds)
def test_hardware_vectors_are_among_the_codes(space: GridSpace, seed: int) -> None:
    codes = {tuple(row) for row in space.heterogeneous_codes()}
    for config in space.sample(5, np.random.default_rng(seed)):
        assert tuple(space.heterogeneous(config)) in codes
