"""Constants of machines, shapes near others, and features of sparse problems."""

import numpy as np
import pandas as pd
import pytest
from gemm_cases import MACHINE, shapes

from sparloom.models.performance import (
    SDDMM_FEATURES,
    SPMM_FEATURES,
    FeatureSpec,
    machine_constants,
    nearby_shapes,
    sparse_problems,
)
from sparloom.ops import SDDMM, GemmShape, SpMM
from sparloom.sparse import Pattern, statistics


def random_pattern(seed: int) -> Pattern:
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(1, 60, 2)
    return Pattern.from_coo(rng.integers(0, rows, 90), rng.integers(0, cols, 90), (int(rows), int(cols)))


def test_caches_are_read_from_the_description_of_a_machine():
    assert machine_constants({"cache_l1d": "32K", "cache_l2": "1M", "cache_l3": "33554432"}, threads=2) == {
        "l1_bytes": 2.0**15, "l2_bytes": 2.0**20, "l3_bytes": 2.0**25, "threads": 2.0}


def test_nearby_shapes_resemble_the_given_ones():
    given = shapes(30)
    near = nearby_shapes(given, 400, seed=1)
    assert near == nearby_shapes(given, 400, seed=1)
    assert len(set(near)) > 350
    assert max(shape.flops for shape in near) <= max(shape.flops for shape in given)
    assert np.mean([shape.m == 1 for shape in near]) == pytest.approx(np.mean([s.m == 1 for s in given]), abs=0.1)
    assert all(shape.n > 1 for shape in nearby_shapes([GemmShape(1, 8, 8)], 50, seed=0))


@pytest.mark.parametrize(("op", "spec"), [(SpMM(), SPMM_FEATURES), (SDDMM(), SDDMM_FEATURES)])
def test_work_of_sparse_problems_is_that_of_the_operation(op, spec: FeatureSpec):
    patterns = {f"m{seed}": random_pattern(seed) for seed in range(4)} | {"empty": Pattern.from_coo([], [], (3, 5))}
    numbers = pd.DataFrame.from_dict({name: statistics(pattern) for name, pattern in patterns.items()}, orient="index")
    flops, moved = spec.work(sparse_problems([(name, 40) for name in patterns], numbers) | MACHINE | {"threads": 2.0})
    counted = [op.work(pattern, 40) for pattern in patterns.values()]
    assert flops.tolist() == [work.flops for work in counted]
    assert moved.tolist() == [work.bytes for work in counted]
