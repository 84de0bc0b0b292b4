"""Events of simulated runs by hand, and energies that add up."""

import numpy as np
import pytest
from spade_cases import machine_of

from sparloom.platforms.spade import EVENTS, estimate_joules, simulate_counts, simulate_events, simulate_ops
from sparloom.space import SpadeSpace
from sparloom.sparse import Pattern

pytestmark = pytest.mark.cc
WIDTH = 256
UNITS = dict.fromkeys(EVENTS, 0.0)
SPACE, MACHINE = SpadeSpace("spmm"), machine_of("spade")


def events_of(pattern: Pattern, op: str, **changes: int) -> dict[str, int]:
    config = SPACE.config(**changes)
    _, events = simulate_events(pattern, {op: [config]}, width=WIDTH, machines=[MACHINE])[op]
    return dict(zip(EVENTS, events[0, 0].tolist(), strict=True))


@pytest.mark.parametrize(("split", "passes", "lines"), [(256, 1, 16), (32, 8, 2)])
def test_one_nonzero_by_hand(split, passes, lines):
    found = events_of(Pattern.from_coo([0], [0], (1, 1)), "spmm", split=split)
    read_and_written = 3 * lines + 3  # the row of c, that of r and again at the end; one line of each coordinate array
    assert found == {"multiplications": 256, "additions": 256, "vector_operations": 16, "l1_lines": 0,
                     "victim_lines": 0, "l2_lines": 0, "llc_lines": 0, "dram_lines": passes * read_and_written}


def test_one_nonzero_of_sddmm_writes_one_line():
    found = events_of(Pattern.from_coo([0], [0], (1, 1)), "sddmm", split=256)
    assert found["dram_lines"] == 16 + 16 + 3 + 1


def test_energy_of_one_nonzero_by_hand():
    pattern = Pattern.from_coo([0], [0], (1, 1))
    _, events = simulate_events(pattern, {"spmm": [SPACE.config(split=256)]}, width=WIDTH, machines=[MACHINE])["spmm"]
    prices = UNITS | {"multiplications": 3.7, "additions": 0.9, "vector_operations": 45, "dram_lines": 15600}
    assert estimate_joules(events, prices).item() == pytest.approx((256 * 4.6 + 16 * 45 + 51 * 15600) * 1e-12)


def test_events_are_those_of_the_counts_and_seconds_those_of_the_simulator():
    rng = np.random.default_rng(0)
    pattern = Pattern.from_coo(rng.integers(0, 300, 3000), rng.integers(0, 300, 3000), (300, 300))
    configs = {op: list(SPACE)[::17] for op in ("spmm", "sddmm")}
    found = simulate_events(pattern, configs, width=WIDTH, machines=[MACHINE])
    for op, times in simulate_ops(pattern, configs, width=WIDTH, machines=[MACHINE]).items():
        seconds, events = found[op]
        assert (seconds == times).all()
        assert (events[0, :, 0] == pattern.nnz * WIDTH).all()
        for config, row in zip(configs[op], events[0], strict=True):
            counts = simulate_counts(pattern, op, config, width=WIDTH, machine=MACHINE)
            passes = WIDTH // config["split"]
            assert row[EVENTS.index("dram_lines")] * 64 == passes * counts.dram_bytes(op)
            served = sum(counts.total(name) for name in ("l1", "victim", "l2", "llc"))
            assert row[3:7].sum() == passes * served * counts.geometry.row_lines


def test_tables_that_lack_an_event_or_know_another_are_refused():
    with pytest.raises(ValueError, match=r"energies: l1_lines missing, flops unknown; give picojoules for each of"):
        estimate_joules(np.zeros((1, 8)), {**{name: 1.0 for name in EVENTS if name != "l1_lines"}, "flops": 1.0})
    with pytest.raises(ValueError, match=r"energy -1\.0 of additions: give picojoules of at least 0"):
        estimate_joules(np.zeros((1, 8)), UNITS | {"additions": -1.0})
