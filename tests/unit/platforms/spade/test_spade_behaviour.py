"""Consequences of the machine's parameters, exact or approximate."""

from dataclasses import replace

import numpy as np
import pytest
from spade_cases import banded, config_of, even_rows, grid, machine_of, shuffled, uniform

from sparloom.platforms.spade import simulate_counts, simulate_many
from sparloom.space import SpadeSpace

pytestmark = pytest.mark.cc


def times_of(pattern, op, configs, *machines, width=256):
    return simulate_many(pattern, op, width=width, configs=configs, machines=machines)


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("split", [32, 256])
def test_with_one_column_panel_a_barrier_costs_only_itself(machine, op, split):
    pattern = uniform(1000, 6)
    configs = [config_of(32, panel, split, barrier) for panel in (1024, 16384, "all") for barrier in (0, 1)]
    times = times_of(pattern, op, configs, machine)[0]
    assert len(set(times[::2])) == 1
    np.testing.assert_allclose(times[1::2] - times[::2], 256 // split * machine.barrier_ns * 1e-9, rtol=1e-6)


def test_work_is_conserved_over_any_number_of_elements(machine):
    pattern = uniform(4000, 6)
    compute = replace(machine, dram_gb_per_s=1e6, dram_ns=0, link_ns=0, llc_ns=0, l2_ns=0, l1_ns=0, tile_ns=0)
    alone = times_of(pattern, "sddmm", [config_of()], replace(compute, pes=1))[0, 0]
    for pes in (2, 8, 32):
        many = replace(compute, pes=pes)
        counts = simulate_counts(pattern, "sddmm", config_of(), width=256, machine=many)
        assert counts.work[..., 0].sum() == pattern.nnz
        assert times_of(pattern, "sddmm", [config_of()], many)[0, 0] >= alone / pes


def test_one_row_panel_keeps_one_element_busy(machine):
    pattern = uniform(2000, 6)
    counts = simulate_counts(pattern, "spmm", config_of(2048), width=256, machine=machine)
    assert np.count_nonzero(counts.work[..., 0].sum(axis=0)) == 1


def test_balance_alone_gains_what_the_paper_gained_at_most(machine):
    # 1500 even rows: 256 rows on the busiest of 6 elements, or 48 on that of 32.
    compute = replace(machine, dram_gb_per_s=1e6, dram_ns=0, link_ns=0, llc_ns=0, l2_ns=0, l1_ns=0, tile_ns=0,
                      instruction_ns=0)
    base, small = times_of(even_rows(1500, 20, 1500), "sddmm", [config_of(), config_of(4)], compute)[0]
    assert base / small == pytest.approx(256 / 48, rel=0.01)


@pytest.mark.slow
def test_a_band_in_few_panels_starves_the_elements(machine):
    # Column panel 1024 and row panel 2048 with barriers: one or two elements per phase.
    fast = replace(machine, dram_gb_per_s=2000)
    configs = [config for config in SpadeSpace("spmm") if not config["reorder"]]
    times = times_of(banded(60_000, 100, 8), "spmm", configs, fast)[0]
    worst = times[configs.index(config_of(2048, 1024, 256, 1))]
    assert worst >= 8 * times.min()
    assert worst >= np.quantile(times, 0.9)


def test_reordering_restores_a_scrambled_band(machine):
    natural = banded(40_000, 30, 6)
    plain, kept = times_of(natural, "spmm", [config_of(), config_of(reorder=1)], machine)[0]
    scrambled, restored = times_of(shuffled(natural), "spmm", [config_of(), config_of(reorder=1)], machine)[0]
    assert restored < 0.6 * scrambled
    assert restored == pytest.approx(plain, rel=0.15)
    assert kept == pytest.approx(plain, rel=0.10)


@pytest.mark.parametrize(("rows", "wins"), [(2000, False), (50_000, True), (90_000, True)])
def test_narrow_slices_win_where_they_make_columns_fit_the_llc(machine, rows, wins):
    wide, narrow = times_of(uniform(rows, 10), "spmm", [config_of(), config_of(split=32)], machine)[0]
    assert (wide > 1.5 * narrow) if wins else (wide < narrow)


@pytest.mark.slow
def test_a_larger_llc_is_never_much_slower(machine):
    for pattern in (uniform(60_000, 6), shuffled(grid(200, 200)), banded(30_000, 200, 5)):
        configs = [config_of(row, panel, split) for row in (32, 256) for panel in (1024, "all") for split in (32, 256)]
        machines = [replace(machine, llc_kib=kib) for kib in (384, 1536, 6144)]
        times = times_of(pattern, "spmm", configs, *machines)
        assert np.all(times[1:] <= 1.03 * times[:-1])


@pytest.mark.slow
def test_more_elements_are_never_much_slower():
    # With their shares of L2, LLC and bandwidth, and the same link latency.
    for pattern in (uniform(30_000, 6), banded(30_000, 200, 5)):
        machines = [machine_of("spade", pes=pes, dram_gb_per_s=58.6 * pes / 32) for pes in (8, 16, 32, 64)]
        configs = [config_of(row, "all", split) for row in (4, 32, 256) for split in (32, 256)]
        times = times_of(pattern, "spmm", configs, *machines)
        assert np.all(times[1:] <= 1.05 * times[:-1])
