"""The line-accurate level: against ordered dictionaries, by hand, and its own accounts."""

import numpy as np
import pytest
import spade_oracle
from spade_cases import config_of, machine_of, uniform

from sparloom.platforms.spade import simulate_lines
from sparloom.sparse import Pattern

pytestmark = pytest.mark.cc


class Registers:
    """Lines of the vector registers, the newest first."""

    def __init__(self, count):
        self.lines, self.count = [], count

    def touch(self, line):
        if line in self.lines:
            self.lines.remove(line)
        self.lines.insert(0, line)
        del self.lines[self.count:]


def oracle_counts(streams, cols, machine, *, row_lines, bypass):
    """Reads by level of elements that share nothing but what one element sees: private levels, and all for one."""
    g = machine.geometry(16)
    levels = {"l1": spade_oracle.Lru(g.l1_sets, g.l1_ways), "l2": spade_oracle.Lru(g.l2_sets, g.l2_ways),
              "llc": spade_oracle.Lru(g.llc_sets, g.llc_ways)}
    victim = spade_oracle.Lru(g.victim_sets, g.victim_ways)
    count = dict.fromkeys(("register_hits", "l1", "l2", "llc", "dram", "victim", "operations"), 0)
    held = Registers(machine.vector_registers)

    def read(line):
        for name, cache in levels.items():
            if cache.access(line, False)[0]:
                count[name] += 1
                return
        count["dram"] += 1

    for row, column in streams:
        for lane in range(row_lines):
            count["operations"] += 1
            c, r = column * row_lines + lane, (cols + row) * row_lines + lane
            c_here, r_here = c in held.lines, r in held.lines
            count["register_hits"] += c_here + r_here
            for line, here in ((c, c_here), (r, r_here)):
                if here:
                    held.touch(line)
            for line, here in ((c, c_here), (r, r_here)):
                if not here:
                    held.touch(line)
            held.touch(r)
            if not c_here:
                read(c)
            if not r_here and bypass:
                count["victim" if victim.access(r, False)[0] else "dram"] += 1
            elif not r_here:
                read(r)
    return count


@pytest.mark.parametrize("seed", range(50))
def test_misses_agree_with_ordered_dictionaries(seed):
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(1, 60, 2)
    pattern = Pattern.from_coo(rng.integers(0, rows, 150), rng.integers(0, cols, 150), (rows, cols))
    machine = machine_of(
        "spade", pes=1, l1_kib=float(rng.choice([1, 4])), l1_ways=int(rng.choice([2, 8])), l2_kib=8, l2_ways=4,
        llc_kib=16, victim_kib=1, vector_registers=int(rng.choice([64, 32])),
    )
    split, op, bypass = int(rng.choice([16, 32, 64])), ("spmm", "sddmm")[seed % 2], int(rng.integers(2))
    config = config_of(int(rng.integers(1, 40)), int(rng.integers(1, 60)), split, bypass=bypass)
    tiles = spade_oracle.tiles_of(pattern, min(config["row_panel"], rows), min(config["column_panel"], cols))
    stream = [nonzero for _, _, inside in tiles for nonzero in inside]
    expected = oracle_counts(stream, cols, machine, row_lines=split // 16, bypass=bypass)
    found = simulate_lines(pattern, op, config, width=split, machine=machine).counts
    assert {name: found[name] for name in expected} == expected


def test_one_nonzero_takes_the_time_computed_by_hand(machine):
    # Nanoseconds: start 10; instruction posted at 10; three sparse lines over two channels, the last at 12.95 because
    # a line occupies its channel for 2 * 64 / 43.364 = 2.952; data at 137.95; both dense lines requested then, each on
    # its own channel, arrive 125 later, the second after waiting a quarter of a cycle for the port of the L2; 4 cycles
    # of 1.25; then one dirty line is flushed in 64 / 43.364.
    one = Pattern((1, 1), np.array([0, 1]), np.array([0], np.int32))
    service = 2 * 64 / 43.364
    done = 10 + service + 125 + 1.25 / 4 + 125 + 5
    config = config_of(split=16)
    single = machine_of("spade", pes=1)
    assert simulate_lines(one, "sddmm", config, width=16, machine=single).seconds == pytest.approx((10 + done) * 1e-9)
    spmm = simulate_lines(one, "spmm", config, width=16, machine=single)
    assert spmm.seconds == pytest.approx((10 + done + service / 2) * 1e-9)
    assert spmm.dram_lines == 3 + 2 + 1


def test_a_line_in_flight_is_fetched_once(machine):
    # Four elements of one cluster ask for the same column at once: one read from DRAM, three from the L2.
    same = Pattern.from_coo(np.arange(4), np.zeros(4, int), (4, 1))
    run = simulate_lines(same, "sddmm", config_of(1, split=16), width=16, machine=machine)
    assert run.counts["dram"] == 1 + 4
    assert run.counts["l2"] == 3
    assert run.seconds > 250e-9


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("bypass", [0, 1])
def test_accounts_reconcile(machine, op, bypass):
    pattern = uniform(900, 7)
    run = simulate_lines(pattern, op, config_of(32, 200, 32, 1, bypass), width=64, machine=machine)
    count = run.counts
    assert count["operations"] == pattern.nnz * 2
    assert count["register_hits"] + count["loads"] == 2 * count["operations"]
    assert count["loads"] == sum(count[name] for name in ("l1", "l2", "llc", "dram", "victim"))
    assert (count["output_lines"] > 0) == (op == "sddmm")
    assert 2 * 64 * run.dram_lines / run.seconds <= machine.bandwidth
    assert np.all(run.busy >= 0)
    assert run.busy.max() + run.waiting[run.busy.argmax()] == pytest.approx((run.busy + run.waiting).max())


def test_fewer_entries_never_make_it_faster(machine):
    pattern = uniform(2000, 6)
    base = simulate_lines(pattern, "spmm", config_of(), width=256, machine=machine).seconds
    for change in ({"sparse_loads": 3}, {"dense_loads": 8}, {"reservation_stations": 8}, {"store_queue": 1}):
        less = simulate_lines(pattern, "spmm", config_of(), width=256, machine=machine_of("spade", **change)).seconds
        assert less >= base * 0.999
