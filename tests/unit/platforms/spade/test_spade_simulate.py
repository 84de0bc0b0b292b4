"""One trace for many configurations and machines: the results are those of each alone; exact consequences."""

from dataclasses import replace

import numpy as np
import pytest
from spade_cases import config_of, even_rows, machine_of, uniform

from sparloom.platforms.spade import simulate_many, simulate_ops
from sparloom.space import SpadeSpace
from sparloom.sparse import Pattern

pytestmark = pytest.mark.cc

SPACE = list(SpadeSpace("spmm"))


def test_results_do_not_depend_on_the_batch(machine):
    pattern = uniform(3000, 5, cols=2500)
    machines = [machine, replace(machine, dram_gb_per_s=205), replace(machine, pes=8), replace(machine, tile_ns=0)]
    together = simulate_ops(pattern, {"sddmm": SPACE, "spmm": SPACE}, width=256, machines=machines)
    rng = np.random.default_rng(0)
    for place in rng.choice(256, 20, replace=False):
        row = int(rng.integers(len(machines)))
        for op, times in together.items():
            alone = simulate_many(pattern, op, width=256, configs=[SPACE[place]], machines=[machines[row]])
            assert alone[0, 0] == times[row, place]


def test_the_order_of_configurations_does_not_matter(machine):
    pattern = uniform(2000, 4)
    order = np.random.default_rng(0).permutation(256)
    times = simulate_many(pattern, "sddmm", width=256, configs=SPACE, machines=[machine])
    mixed = simulate_many(pattern, "sddmm", width=256, configs=[SPACE[place] for place in order], machines=[machine])
    np.testing.assert_array_equal(mixed[0], times[0, order])


def test_both_operations_share_schedules_only_when_they_are_equal(machine):
    full = uniform(2000, 6)
    empty = Pattern((2000, 2000), np.minimum(full.indptr, full.indptr[600]), full.indices[:full.indptr[600]])
    for pattern in (full, empty):
        both = simulate_ops(pattern, {"spmm": [config_of(4)], "sddmm": [config_of(4)]}, width=256, machines=[machine])
        for op, times in both.items():
            alone = simulate_many(pattern, op, width=256, configs=[config_of(4)], machines=[machine])
            np.testing.assert_array_equal(times, alone)


def test_odd_patterns_have_finite_times(machine, odd_pattern):
    for op in ("spmm", "sddmm"):
        times = simulate_many(odd_pattern, op, width=256, configs=SPACE, machines=[machine])
        assert np.all(np.isfinite(times))
        assert np.all(times > 0)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (3, 4)])
def test_nothing_to_do_takes_the_start_only(machine, shape):
    pattern = Pattern(shape, np.zeros(shape[0] + 1, np.int64), np.empty(0, np.int32))
    times = simulate_many(pattern, "spmm", width=256, configs=[config_of()], machines=[machine])
    assert times[0, 0] == pytest.approx(32 * 10e-9)


@pytest.mark.parametrize(("change", "text"), [
    ({"l2_ways": 65}, "l2_ways 65 is outside 1 to 64"),
    ({"pes": 0}, "pes 0 of the machine must be at least 1"),
    ({"dram_gb_per_s": 0}, "dram_gb_per_s 0 of the machine must be above 0"),
])
def test_impossible_machines_are_refused(change, text):
    with pytest.raises(ValueError, match=text):
        machine_of("spade", **change).geometry(256)


def test_caches_are_sized_in_rows(machine):
    wide, narrow = machine.geometry(256), machine.geometry(32)
    assert (wide.l1_sets * 8, wide.l2_sets * 20, wide.llc_sets * 16) == (32, 1280, 12288)
    assert (narrow.l1_sets * 8, narrow.victim_sets * 2) == (256, 128)


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("split", [32, 256])
def test_with_one_column_panel_a_barrier_costs_only_itself(machine, op, split):
    pattern = uniform(1000, 6)
    configs = [config_of(32, panel, split, barrier) for panel in (1024, 16384, "all") for barrier in (0, 1)]
    times = simulate_many(pattern, op, width=256, configs=configs, machines=[machine])[0]
    assert len(set(times[::2])) == 1
    np.testing.assert_allclose(times[1::2] - times[::2], 256 // split * machine.barrier_ns * 1e-9, rtol=1e-6)


def test_balance_alone_gains_what_the_paper_gained_at_most(machine):
    # 1500 even rows: 256 rows on the busiest of 6 elements, or 48 on that of 32.
    compute = replace(machine, dram_gb_per_s=1e6, dram_ns=0, link_ns=0, llc_ns=0, l2_ns=0, l1_ns=0, tile_ns=0,
                      instruction_ns=0)
    base, small = simulate_many(even_rows(1500, 20, 1500), "sddmm", width=256, configs=[config_of(), config_of(4)],
                                machines=[compute])[0]
    assert base / small == pytest.approx(256 / 48, rel=0.01)
