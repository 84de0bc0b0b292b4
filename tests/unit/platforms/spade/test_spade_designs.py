"""Machines of a grid, and the proxy for their cost."""

from dataclasses import replace

import pytest

from sparloom.platforms.spade import Prices, designs

PRICES = Prices(pe=1.0, cache_mb=10.0, dram_gb_per_s=0.5)


def test_price_counts_elements_their_shared_caches_and_bandwidth(machine):
    base = replace(machine, pes=32, pes_per_l2=4, l2_kib=1280, llc_kib=1536, dram_gb_per_s=60)
    assert PRICES.of(base) == pytest.approx(32 + 22 * 10 + 30)
    assert PRICES.of(replace(base, pes=5)) == pytest.approx(5 + 2 * 2.75 * 10 + 30)  # two L2 for five elements
    assert PRICES.of(replace(base, l2_kib=0, llc_kib=0)) == pytest.approx(62)


def test_grid_is_every_combination_with_the_base_among_them(machine):
    made = designs(machine, {"pes": [machine.pes, 64], "dram_gb_per_s": [29.3, machine.dram_gb_per_s]}, width=256)
    assert len(made) == 4
    assert made[f"pes={machine.pes},dram_gb_per_s={machine.dram_gb_per_s}"] == machine
    assert made["pes=64,dram_gb_per_s=29.3"] == replace(machine, pes=64, dram_gb_per_s=29.3)
