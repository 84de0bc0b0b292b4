"""A custom space, from values alone."""

import pickle

import pytest

from sparloom.errors import IllegalSchedule
from sparloom.space import (
    Config,
    CpuSpace,
    CudaSpace,
    GridSpace,
    Parameter,
    Shape,
    SharedSchedule,
    SpadeSpace,
    logarithm,
    one_hot,
)


def toy_mapping(config: Config, shape: Shape | None) -> SharedSchedule:
    cols = 1 if shape is None else shape[1]
    return SharedSchedule(I=config["rows"], J=cols, K=256, K_inner=1, order=(2, 4, 6, 7, 1, 3, 5))


def too_deep(config: Config) -> str | None:
    return "prefetching 4 rows needs tiles of 64" if config["prefetch"] == 4 and config["rows"] < 64 else None


TOY = GridSpace(
    name="toy",
    op="spmm",
    parameters=(
        Parameter("rows", (16, 64)), Parameter("prefetch", (1, 4)), Parameter("mode", ("slow", "fast", "safe")),
    ),
    defaults=(64, 1, "slow"),
    mapping=toy_mapping,
    latent=(logarithm("prefetch", (1, 4), 2), one_hot("mode", ("slow", "fast", "safe"))),
    refuse=too_deep,
    coupled=("rows", "prefetch"),
)


def test_points_are_listed_in_order_without_the_illegal_ones() -> None:
    keys = [config.key for config in TOY]
    assert keys[0] == "rows=16,prefetch=1,mode=slow"
    assert len(keys) == len(TOY) == 9


def test_illegal_combination_is_refused_with_the_reason() -> None:
    with pytest.raises(IllegalSchedule, match=r"toy \(spmm\) cannot run .*: prefetching 4 rows needs tiles of 64"):
        TOY.config(rows=16, prefetch=4)


def test_codes_are_all_vectors_of_the_space() -> None:
    codes = {tuple(row) for row in TOY.heterogeneous_codes()}
    assert codes == {tuple(TOY.heterogeneous(config)) for config in TOY}


@pytest.mark.parametrize("space", [SpadeSpace("spmm"), CpuSpace("sddmm"), CudaSpace("spmm"), TOY])
def test_spaces_can_be_pickled(space: GridSpace) -> None:
    copy = pickle.loads(pickle.dumps(space.bind((7, 8))))
    assert copy.digest() == space.digest()
    assert copy.shape == (7, 8)
