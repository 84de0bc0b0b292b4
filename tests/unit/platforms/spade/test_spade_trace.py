"""Counts of the row-granular trace against plain Python, by hand, and against each other."""

from dataclasses import astuple, replace

import numpy as np
import pytest
import spade_oracle
from spade_cases import machine_of, uniform
from test_spade_tiling import HAND

from sparloom.jit import compile_cpp
from sparloom.platforms.spade import SERVED, WORK, deal, tile, trace
from sparloom.platforms.spade import simulate as native
from sparloom.sparse import Pattern

pytestmark = pytest.mark.cc


def draw(seed: int):
    """A random case: pattern, tiling, schedule and geometry of a machine with small caches."""
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(1, 80, 2)
    pattern = Pattern.from_coo(rng.integers(0, rows, 400), rng.integers(0, cols, 400), (rows, cols))
    machine = machine_of(
        "spade", pes=int(rng.integers(1, 7)), pes_per_l2=int(rng.integers(1, 4)), quantum=int(rng.choice([1, 4, 16])),
        l1_kib=float(rng.choice([0, 2, 4])), l1_ways=int(rng.choice([2, 4, 8])),
        l2_kib=float(rng.choice([0, 8, 20])), l2_ways=int(rng.choice([4, 20])),
        llc_kib=float(rng.choice([0, 16, 32])), llc_ways=int(rng.choice([5, 16, 40])),
        victim_kib=float(rng.choice([0, 4])), vector_registers=int(rng.choice([64, 32, 20])),
        reservation_stations=int(rng.choice([32, 8])), dense_loads=int(rng.choice([32, 16])),
    )
    geometry = machine.geometry(int(rng.choice([16, 32, 64, 128])))
    op = ("spmm", "sddmm")[seed % 2]
    tiling = tile(pattern, int(rng.integers(1, 40)), int(rng.integers(1, 90)))
    return pattern, tiling, deal(tiling, op, pes=machine.pes, barrier=bool(rng.integers(2))), geometry, op


@pytest.mark.parametrize("seed", range(60))
def test_every_count_agrees_with_ordered_dictionaries(seed):
    pattern, tiling, schedule, geometry, op = draw(seed)
    tiles = spade_oracle.tiles_of(pattern, tiling.row_panel, tiling.column_panel)
    first = {tile_[:2]: int(begin) for tile_, begin in zip(tiles, tiling.begin, strict=False)}
    phases = spade_oracle.deal(tiles, op, geometry.pes, schedule.phases > 1)
    for bypass, counts in trace(tiling, schedule, geometry, bypass=(0, 1)).items():
        oracle = spade_oracle.Trace(geometry, pattern.cols, bypass)
        expected = oracle.play(phases, lambda tile_, first=first: first[tile_[:2]])
        for names, found in ((WORK, counts.work), (SERVED, counts.served)):
            for (phase, pe, column), value in np.ndenumerate(found):
                assert value == expected[phase, pe, names[column]], (phase, pe, names[column], bypass)
        assert counts.flush == oracle.flush()


@pytest.mark.parametrize("seed", range(8))
def test_tracing_one_setting_gives_the_same_counts_as_tracing_both(seed):
    _, tiling, schedule, geometry, _ = draw(seed)
    both = trace(tiling, schedule, geometry, bypass=(0, 1))
    for bypass in (0, 1):
        alone = trace(tiling, schedule, geometry, bypass=(bypass,))[bypass]
        np.testing.assert_array_equal(alone.work, both[bypass].work)
        np.testing.assert_array_equal(alone.served, both[bypass].served)
        assert alone.flush == both[bypass].flush


def test_caches_without_vector_instructions_count_the_same(monkeypatch):
    cases = [draw(seed)[1:4] for seed in range(20)]
    cases.append((tiling := tile(uniform(3000, 8), 32, 512), deal(tiling, "spmm", pes=32, barrier=True),
                  machine_of("spade").geometry(32)))
    vector = [trace(*case, bypass=(0, 1)) for case in cases]
    scalar = compile_cpp(native.SOURCES, flags=("-O2", "-march=x86-64"))
    monkeypatch.setattr(native, "library", lambda: scalar)
    for case, expected in zip(cases, vector, strict=True):
        for bypass, counts in trace(*case, bypass=(0, 1)).items():
            np.testing.assert_array_equal(counts.served, expected[bypass].served)
            assert counts.flush == expected[bypass].flush


def test_hand_computed_registers_hit_on_the_row_and_on_repeated_columns(machine):
    # Two elements, slices of 16 values: rows 0, 2 use column 0 in tile 0, so PE 0 finds it in a register once; every
    # other access of a tile is new. 12 nonzeros: 11 c misses and 12 - 1 changes of row, of which those of rows 0 and 2
    # (tile 1 after tile 0), 5 and 7 (tile 3 after tile 2) find their row in a register.
    geometry = replace(machine, pes=2).geometry(16)
    tiling = tile(HAND, 4, 4)
    counts = trace(tiling, deal(tiling, "spmm", pes=2, barrier=False), geometry, bypass=(0,))[0]
    assert counts.total("nonzeros") * geometry.row_lines == 12
    assert counts.work[0, :, WORK.index("runs")].tolist() == [6, 6]
    c_misses, r_misses = 11, 8
    assert sum(counts.total(name) for name in ("l1", "l2", "llc", "dram")) == c_misses + r_misses
    assert counts.total("dram") == 8 + 8  # all columns and rows once: the elements share the L2
    assert counts.total("l2") == 3  # columns 0, 6, 7 again, by the other element
    assert counts.flush == 8  # every row is written


@pytest.mark.parametrize("bypass", [0, 1])
@pytest.mark.parametrize("slice_width", [32, 256])
def test_counts_reconcile(machine, bypass, slice_width):
    pattern = uniform(2000, 9)
    geometry = machine.geometry(slice_width)
    tiling = tile(pattern, 32, 300)
    counts = trace(tiling, deal(tiling, "spmm", pes=machine.pes, barrier=True), geometry, bypass=(bypass,))[bypass]
    assert counts.total("nonzeros") == pattern.nnz
    assert counts.total("tiles") == tiling.count
    asked = sum(counts.total(name) for name in ("l1", "l2", "llc", "dram", "victim"))
    assert asked <= counts.total("nonzeros") + counts.total("runs")
    assert asked >= len(np.unique(pattern.indices)) + np.count_nonzero(pattern.row_lengths())
    written = counts.total("writes") + counts.flush
    assert np.count_nonzero(pattern.row_lengths()) <= written <= counts.total("runs")
    assert (counts.total("victim") > 0) == bool(bypass)


@pytest.mark.parametrize("bypass", [0, 1])
@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_traffic_is_compulsory_where_everything_fits(machine, op, bypass):
    pattern = uniform(700, 5)
    geometry = machine.geometry(256)
    tiling = tile(pattern, 4, 700)
    counts = trace(tiling, deal(tiling, op, pes=machine.pes, barrier=False), geometry, bypass=(bypass,))[bypass]
    rows, cols = np.count_nonzero(pattern.row_lengths()), len(np.unique(pattern.indices))
    dense = 1024 * (cols + rows * (2 if op == "spmm" else 1))
    streamed = pattern.nnz * (12 if op == "spmm" else 16)
    arrays = 3 if op == "spmm" else 4
    assert dense + streamed <= counts.dram_bytes(op) <= dense + streamed + tiling.count * arrays * 64


def test_traffic_is_never_below_compulsory(machine):
    pattern = uniform(30_000, 3)
    geometry = machine.geometry(256)
    for column_panel in (1024, 30_000):
        tiling = tile(pattern, 256, column_panel)
        counts = trace(tiling, deal(tiling, "spmm", pes=machine.pes, barrier=True), geometry, bypass=(0, 1))
        rows, cols = np.count_nonzero(pattern.row_lengths()), len(np.unique(pattern.indices))
        for each in counts.values():
            assert each.dram_bytes("spmm") >= 12 * pattern.nnz + 1024 * (cols + 2 * rows)


def test_columns_that_fit_the_l2_miss_there_once_per_tile_and_cluster(machine):
    # One tile per PE and phase; each cluster of four loads each column it touches once.
    pattern = uniform(32 * 64, 20, cols=1000)
    tiling = tile(pattern, 64, 1000)
    counts = trace(tiling, deal(tiling, "spmm", pes=32, barrier=False), machine.geometry(256), bypass=(1,))[1]
    expected = sum(len(np.unique(pattern.indices[pattern.indptr[256 * k]:pattern.indptr[256 * (k + 1)]]))
                   for k in range(8))
    rows = np.count_nonzero(pattern.row_lengths())
    assert counts.total("llc") + counts.total("dram") == expected + rows


def test_geometry_is_the_order_of_the_c_structure(machine):
    assert len(astuple(machine.geometry(256))) == 15
