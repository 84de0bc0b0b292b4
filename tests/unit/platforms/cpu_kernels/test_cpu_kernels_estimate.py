"""The formula of sparse kernels on a CPU: what it says of patterns and parameters whose effect is known."""

import numpy as np
import pytest

from sparloom.models import MatrixFeatures
from sparloom.ops import SDDMM, SpMM
from sparloom.platforms import CpuKernels
from sparloom.space import SddmmSpace, SpmmSpace
from sparloom.sparse import Pattern

OPS = {"spmm": SpMM(), "sddmm": SDDMM()}
SPACES = {"spmm": SpmmSpace, "sddmm": SddmmSpace}


def features(rows: int = 4000, cols: int = 4000, per_row: int = 8, hub: int = 0, band: int | None = None):
    rng = np.random.default_rng(0)
    lengths = np.full(rows, per_row)
    lengths[0] += hub
    row = np.repeat(np.arange(rows), lengths)
    near = row * cols // rows + rng.integers(0, band or 1, row.size)
    col = rng.integers(0, cols, row.size) if band is None else near % cols
    return MatrixFeatures.from_pattern(Pattern.from_coo(row, col, (rows, cols)))


def seconds(matrix, op="spmm", width=128, threads=2, **changes):
    config = SPACES[op](width).config(**{"order": "natural", "balance": "nonzeros"} | changes)
    return float(CpuKernels(threads, width).estimate(OPS[op], matrix, [config])[0])


@pytest.mark.parametrize("op", OPS)
def test_every_configuration_has_positive_seconds_that_grow_with_the_work(op):
    configs = list(SPACES[op](128))
    small, large = (CpuKernels(2, 128).estimate(OPS[op], features(per_row=each), configs) for each in (4, 32))
    assert small.shape == (len(configs),)
    assert (small > 0).all()
    assert (large > small).all()
    assert seconds(features(), op, width=64) < seconds(features(), op, width=128)


def test_two_threads_take_half_of_the_time():
    matrix = features()
    assert seconds(matrix, threads=2) == pytest.approx(seconds(matrix, threads=1) / 2, rel=0.2)


def test_a_long_row_holds_up_equal_shares_of_rows_but_not_of_nonzeros():
    even, uneven = features(), features(hub=3000, cols=200_000)
    assert seconds(even, balance="rows") == pytest.approx(seconds(even, balance="nonzeros"), rel=0.1)
    assert seconds(uneven, balance="rows") > 1.1 * seconds(uneven, balance="nonzeros")


def test_prefetching_helps_where_dense_rows_exceed_the_caches():
    near, distant = features(rows=2000, cols=2000), features(rows=300_000, cols=300_000, per_row=4)
    assert seconds(near, prefetch=8) > seconds(near, prefetch=0)
    assert seconds(distant, prefetch=8) < seconds(distant, prefetch=0)
    assert seconds(distant, stream=1) < seconds(distant, stream=0)
