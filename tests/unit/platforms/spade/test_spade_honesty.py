"""Times depend on the machine and the nonzeros, not only on matrix statistics."""

from dataclasses import replace

import numpy as np
import pytest
from spade_cases import banded, config_of, grid, machine_of, shuffled, uniform

from sparloom.platforms.spade import simulate_many, social
from sparloom.space import SpadeSpace
from sparloom.sparse import Pattern, reorder

pytestmark = pytest.mark.cc

SPACE = list(SpadeSpace("spmm"))


def time_of(pattern, config, machine, op="spmm"):
    return simulate_many(pattern, op, width=256, configs=[config], machines=[machine])[0, 0]


def renamed_columns(pattern: Pattern) -> Pattern:
    return reorder(pattern, np.arange(pattern.rows), np.random.default_rng(3).permutation(pattern.cols))


def test_column_names_matter_where_caches_do(machine):
    # Rows whose columns are spread over all panels return in each, so they leave the caches in between.
    pattern, config = banded(40_000, 50, 5), config_of(32, 1024, barrier=1)
    assert time_of(renamed_columns(pattern), config, machine) > 3 * time_of(pattern, config, machine)


def test_column_names_do_not_matter_where_everything_fits_the_l1(machine):
    pattern = uniform(3000, 6, cols=16)
    small = replace(machine, l1_kib=64)
    assert time_of(renamed_columns(pattern), config_of(), small) == pytest.approx(
        time_of(pattern, config_of(), small), rel=0.01)


def test_column_names_do_not_matter_where_memory_costs_nothing(machine):
    free = replace(machine, dram_gb_per_s=1e9, l1_ns=0, l2_ns=0, llc_ns=0, dram_ns=0, link_ns=0)
    pattern = banded(40_000, 50, 5)
    for config in (config_of(), config_of(4, split=32)):
        time = time_of(pattern, config, free)
        assert time_of(renamed_columns(pattern), config, free) == pytest.approx(time, rel=1e-6)


def test_more_victim_cache_removes_the_cost_of_bypassing(machine):
    # Small column panels make every panel of rows return; 128 row slices fit the victim cache, 1024 do not.
    pattern, config = uniform(60_000, 16), config_of(256, 1024)
    cost = {kib: time_of(pattern, config.replace(bypass=1), replace(machine, victim_kib=kib)) /
            time_of(pattern, config, machine) for kib in (0, 16, 1024)}
    assert cost[16] > 1.2
    assert cost[0] >= cost[16]
    assert cost[1024] < 1.05


@pytest.mark.slow
def test_barriers_help_only_because_elements_share_a_full_llc(machine):
    # Uneven rows let elements drift apart; the columns of a panel fit the LLC, all columns do not.
    pattern, free = social(60_000, 60, inside=0.1, group=200, seed=0), config_of(256, 16384, 32)
    small = replace(machine, llc_kib=384)
    variants = {"shared": small, "roomy": replace(machine, llc_kib=64 * 1024),
                "alone": replace(small, pes=1, llc_kib=8 * 384),
                "free": replace(small, pes=1, llc_kib=8 * 384, dram_ns=0, link_ns=0, llc_ns=0, l2_ns=0)}
    change = {name: time_of(pattern, free.replace(barrier=1), each) / time_of(pattern, free, each)
              for name, each in variants.items()}
    assert change["shared"] < 0.7
    assert change["roomy"] >= 0.99
    assert change["alone"] > 0.85  # for one element, column panel by column panel is still the better order
    assert change["free"] > 0.98


def test_latency_costs_nothing_when_there_is_none(machine):
    pattern = shuffled(grid(150, 150))
    slow = [time_of(pattern, config_of(), replace(machine, dram_gb_per_s=1e6, link_ns=ns, dram_ns=0, llc_ns=0, l2_ns=0,
                                                 l1_ns=0)) for ns in (0, 60, 480)]
    assert slow[0] < slow[1] < slow[2]
    everything = replace(machine, dram_gb_per_s=1e6, link_ns=0, dram_ns=0, llc_ns=0, l2_ns=0, l1_ns=0)
    assert slow[0] == time_of(pattern, config_of(), everything)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_layout_alone_changes_the_best_configuration(machine):
    pattern = banded(30_000, 60, 6)
    best = [SPACE[int(simulate_many(each, "spmm", width=256, configs=SPACE, machines=[machine])[0].argmin())]
            for each in (pattern, shuffled(pattern))]
    assert best[0] != best[1]


@pytest.mark.slow
def test_the_space_is_not_separable_and_winners_differ(machine):
    rng = np.random.default_rng(0)
    patterns = [
        banded(20_000, 60, 5), shuffled(banded(12_000, 60, 5)), uniform(40_000, 3), uniform(3000, 20), grid(140, 140),
        Pattern.from_coo((3000 * rng.random(60_000) ** 3).astype(int), rng.integers(0, 20_000, 60_000), (3000, 20_000)),
    ]
    columns = [np.array([[config[name] == value for value in values[1:]] for config in SPACE], float)
               for name, values in ((each.name, each.values) for each in SpadeSpace("spmm").parameters)]
    design = np.hstack([np.ones((256, 1)), *columns])
    explained, winners = [], set()
    for pattern in patterns:
        logs = np.log(simulate_many(pattern, "spmm", width=256, configs=SPACE, machines=[machine])[0])
        left = logs - design @ np.linalg.lstsq(design, logs, rcond=None)[0]
        explained.append(1 - left.var() / logs.var())
        winners.add(SPACE[int(logs.argmin())])
    assert sum(share < 0.95 for share in explained) > len(patterns) / 2
    assert len(winners) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("quantum", [4, 16, 64])
def test_the_sign_of_a_barrier_does_not_depend_on_the_interleaving(quantum):
    machine = machine_of("spade", llc_kib=384, quantum=quantum)
    pattern, free = social(60_000, 60, inside=0.1, group=200, seed=0), config_of(256, 16384, 32)
    assert time_of(pattern, free.replace(barrier=1), machine) < 0.95 * time_of(pattern, free, machine)
