"""Seconds from counts, against the same formulas in plain Python."""

from dataclasses import replace

import numpy as np
import pytest
from spade_cases import banded, config_of, machine_of, uniform

from sparloom.platforms.spade import SERVED, WORK, seconds, simulate_counts, simulate_many

pytestmark = pytest.mark.cc


def smooth(values, exponent):
    return sum(value**exponent for value in values) ** (1 / exponent)


def makespan(alone, moved, bandwidth, exponent):
    """Follow the unfinished elements from end to end; all advance at the same smoothed rate."""
    left = dict(enumerate(alone))
    time = 0.0
    while left:
        demand = sum(moved[pe] / alone[pe] for pe in left)
        rate = 1 / smooth((1, demand / bandwidth), exponent)
        step = min(left.values())
        time += step / rate
        left = {pe: rest - step for pe, rest in left.items() if rest - step > 1e-18}
    return time


def expected_seconds(counts, op, machine, *, passes, barrier):
    g, clock = counts.geometry, machine.clock_ghz * 1e9
    bandwidth = machine.dram_gb_per_s * 1e9 * machine.dram_efficiency
    q = machine.smooth_exponent

    def loads(phase, dram):
        alone, moved = [], []
        for pe in range(g.pes):
            w = dict(zip(WORK, counts.work[phase, pe].tolist(), strict=True))
            s = dict(zip(SERVED, counts.served[phase, pe].tolist(), strict=True))
            if not w["nonzeros"]:
                continue
            latency = {"l2": machine.l2_ns * 1e-9, "llc": machine.llc_ns * 1e-9, "dram": dram}
            stalls = sum(max(0, s[f"windows_{name}"] * wait - s[f"nonzeros_{name}"] * g.row_lines / clock)
                         for name, wait in latency.items())
            near = (s["l1"] + s["victim"]) * machine.l1_ns * 1e-9
            dense = g.row_lines * (near + sum(s[name] * wait for name, wait in latency.items()))
            core = max(w["nonzeros"] * g.row_lines / clock + stalls, dense / machine.parallel_dense_lines)
            sparse = w["sparse_lines"] * dram / machine.sparse_loads
            chain = w["chain"] * machine.forwarding_cycles / g.reservation_stations / clock
            if op == "sddmm" or g.row_lines >= machine.forwarding_cycles:
                chain = 0
            alone.append(smooth((core, sparse, chain), q) + w["tiles"] * machine.tile_ns * 1e-9)
            rows = s["dram"] + (s["writes"] if op == "spmm" else 0)
            lines = rows * g.row_lines + w["sparse_lines"] + (w["output_lines"] if op == "sddmm" else 0)
            moved.append(64 * lines)
        return alone, moved

    time = 0.0
    for phase in range(len(counts.work)):
        dram = (machine.dram_ns + machine.link_ns) * 1e-9
        alone, moved = loads(phase, dram)
        busy = min(0.95, sum(moved) / makespan(alone, moved, bandwidth, q) / bandwidth)
        service = 64 * machine.dram_channels / bandwidth
        alone, moved = loads(phase, dram + service * busy**2 / (2 * (1 - busy)))
        time += makespan(alone, moved, bandwidth, q) + (machine.barrier_ns * 1e-9 if barrier else 0)
    if op == "spmm":
        time += counts.flush * g.row_lines * 64 / bandwidth
    time = max(time, counts.total("tiles") * machine.instruction_ns * 1e-9)
    return passes * time + g.pes * machine.instruction_ns * 1e-9


@pytest.mark.parametrize("bandwidth", [58.6, 205, 4000])
@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("config", [
    config_of(), config_of(4, 1024, 32, 1, 1), config_of(2048, 1024, 256, 1), config_of(32, "all", 32, 0, 1),
], ids=str)
@pytest.mark.parametrize("exponent", [3.0, 2.5])
def test_seconds_follow_the_formulas(op, config, bandwidth, exponent):
    machine = machine_of("spade", dram_gb_per_s=bandwidth, smooth_exponent=exponent)
    pattern = uniform(5000, 6)
    counts = simulate_counts(pattern, op, config, width=256, machine=machine)
    passes, barrier = 256 // int(config["split"]), bool(config["barrier"])
    found = seconds(counts, op, [machine], passes=passes, barrier=barrier)[0]
    assert found == pytest.approx(expected_seconds(counts, op, machine, passes=passes, barrier=barrier), rel=1e-9)


def test_bytes_over_time_stay_below_the_bandwidth(machine):
    for config in (config_of(), config_of(32, 1024, 32, 1, 1), config_of(4, 1024, 256, 0, 1)):
        for op in ("spmm", "sddmm"):
            pattern = uniform(20_000, 8)
            time = simulate_many(pattern, op, width=256, configs=[config], machines=[machine])[0, 0]
            passes = 256 // int(config["split"])
            moved = passes * simulate_counts(pattern, op, config, width=256, machine=machine).dram_bytes(op)
            assert moved / time <= machine.bandwidth


def test_half_the_bandwidth_doubles_a_bandwidth_bound_time_and_the_clock_does_nothing(machine):
    pattern = uniform(60_000, 8)
    slow = replace(machine, dram_gb_per_s=5.0)
    machines = [slow, replace(slow, dram_gb_per_s=2.5), replace(slow, clock_ghz=1.6)]
    base, halved, faster = simulate_many(pattern, "spmm", width=256, configs=[config_of()], machines=machines)[:, 0]
    assert halved / base == pytest.approx(2, rel=0.02)
    assert faster / base == pytest.approx(1, rel=0.02)


def test_twice_the_clock_halves_a_compute_bound_time_and_the_bandwidth_does_nothing(machine):
    # One dense band that stays in L1: 200 columns per row, slices of 16 lines.
    pattern = banded(6000, 12, 40)
    wide = replace(machine, dram_gb_per_s=50_000.0, dram_ns=0, link_ns=0, llc_ns=0, l2_ns=0, l1_ns=0, tile_ns=0)
    machines = [wide, replace(wide, clock_ghz=1.6), replace(wide, dram_gb_per_s=25_000.0)]
    base, faster, halved = simulate_many(pattern, "sddmm", width=256, configs=[config_of()], machines=machines)[:, 0]
    assert base / faster == pytest.approx(2, rel=0.02)
    assert halved / base == pytest.approx(1, rel=0.02)


def test_busy_elements_end_in_order_and_share_the_rate():
    # Two elements of 1 s and 3 s alone, each moving all it can: while both run, each gets a smoothed half.
    alone, moved, bandwidth = [1.0, 3.0], [8.0, 24.0], 8.0
    expected = 1 * (1 + 2**3) ** (1 / 3) + 2 * (1 + 1) ** (1 / 3)
    assert makespan(alone, moved, bandwidth, 3) == pytest.approx(expected)


def test_rates_are_the_order_of_the_c_structure(machine):
    assert len(machine.rates) == 15
    assert np.all(np.isfinite(machine.rates))
