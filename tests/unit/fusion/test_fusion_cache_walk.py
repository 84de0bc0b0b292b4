"""Simulated caches under schedules whose misses can be counted by hand."""


import numpy as np
import pytest

from sparloom.errors import Unsupported
from sparloom.fusion import (
    CacheLevel,
    Reads,
    Variant,
    access_cycles,
    gemm_spmm_loops,
    schedule_tiles,
    unfused_schedule,
)
from sparloom.ops import GemmSpmm, SpmmGemm, SpmmSpmm
from sparloom.sparse import Pattern

PLAIN = Variant()
NONE = CacheLevel(64, 1, 1.0)  # holds one line
LARGE = CacheLevel(1 << 20, 16, 10.0)


def diagonal(rows):
    return Pattern.identity(rows)


def band(rows):
    row = np.repeat(np.arange(rows), 3)
    return Pattern.from_coo(row, np.clip(row + np.tile([-1, 0, 1], rows), 0, rows - 1), (rows, rows))


def cycles(op, pattern, schedule, *, levels, variant=PLAIN, threads=1):
    return access_cycles(op, pattern, schedule, inner=16, width=16, threads=threads, variant=variant, levels=levels)


def fused(pattern, threads=1):
    loops = gemm_spmm_loops(Reads.of(pattern), inner=16, width=16, element_bytes=4)
    return schedule_tiles(loops, threads=threads, cache_bytes=1 << 30, ct_size=64)


@pytest.mark.cc
def test_first_reads_miss_and_written_rows_hit_a_cache():
    pattern = diagonal(64)
    found = cycles(GemmSpmm(), pattern, unfused_schedule(pattern, threads=1), levels=(NONE, LARGE, LARGE))
    rows, lines = 64, 64 / 8  # of B from memory, of D1 from level two; index lines: first from memory, then level one
    index_reads = 64
    expected = (rows * 300 + rows * 10 + lines * 300 + (index_reads - lines) * 10) / (2 * rows + index_reads)
    assert found == pytest.approx(expected)


@pytest.mark.cc
def test_fused_tiles_hit_d1_in_cache_where_unfused_loops_miss():
    pattern = band(4096)
    small = (CacheLevel(4 << 10, 4, 1.0), CacheLevel(16 << 10, 8, 10.0), CacheLevel(32 << 10, 8, 20.0))
    for variant in (PLAIN, Variant(local=True, stream=True)):
        together = cycles(GemmSpmm(), pattern, fused(pattern), levels=small, variant=variant)
        assert together < 0.8 * cycles(GemmSpmm(), pattern, unfused_schedule(pattern, threads=1), levels=small)


@pytest.mark.cc
def test_walks_cover_threads_and_sparse_operands():
    pattern = band(512)
    for threads in (1, 2):
        found = cycles(SpmmSpmm(), pattern, fused(pattern, threads), levels=(NONE, LARGE, LARGE), threads=threads)
        assert 1 < found < 100


def test_spmm_gemm_is_rejected():
    pattern = diagonal(4)
    with pytest.raises(Unsupported, match="access_cycles of spmm_gemm"):
        cycles(SpmmGemm(), pattern, unfused_schedule(pattern, threads=1), levels=(NONE, NONE, NONE))
