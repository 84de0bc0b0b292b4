"""Signs of the SPADE paper on stand-ins at 1/28 of the size, on a machine at 1/28 of the size.

The published matrices are not redistributed with the project; what is expected and does not hold is a strict xfail
with the figure that was measured. `notebooks/signs_spade.ipynb` has all signs at 1/8 of the size.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from spade_cases import config_of, machine_of

from sparloom.platforms.spade import STANDINS, effect_records, kronecker, scaled, simulate_counts, simulate_many

pytestmark = [pytest.mark.paper, pytest.mark.cc]

RESULTS = Path(__file__).parents[2] / "results"
FACTOR = 28
SMALL, MIDDLE = 262_144 // FACTOR, 16_777_216 // FACTOR  # columns x width
BOTH = pytest.mark.parametrize(("op", "width"), [("spmm", 32), ("spmm", 128), ("sddmm", 32), ("sddmm", 128)])


def missed(*values, reason):
    """A case in which the expectation does not hold."""
    return pytest.param(*values, marks=pytest.mark.xfail(reason=reason, raises=AssertionError))


@pytest.fixture(scope="module")
def small():
    return scaled(machine_of("spade_isca224"), FACTOR)


@pytest.fixture(scope="module")
def standins():
    made = {}

    def make(name, factor=FACTOR):
        if (name, factor) not in made:
            made[name, factor] = STANDINS[name](factor)
        return made[name, factor]

    return make


def times_of(pattern, op, width, configs, *machines):
    return simulate_many(pattern, op, width=width, configs=configs, machines=machines)


def change_by_barriers(pattern, op, width, config, *machines):
    """Time with barriers over time without, per machine."""
    free, barriers = times_of(pattern, op, width, [config, config.replace(barrier=1)], *machines).T
    return barriers / free


@pytest.mark.slow
@pytest.mark.parametrize("width", [32, 128])
@pytest.mark.parametrize("name", ["DEL", "ROA", "PAC"])
def test_meshes_and_roads_want_no_tiling(small, standins, name, width):
    configs = [config_of(row, panel, width) for row in (64, 256, 1024) for panel in (SMALL // width, MIDDLE // width)]
    base, *tiled = times_of(standins(name, 4 * FACTOR), "spmm", width, [config_of(256, "all", width), *configs],
                            small)[0]
    assert base <= 1.03 * min(tiled)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "width"), [("DEL", 32), ("DEL", 128), ("ROA", 32), ("ROA", 128), ("PAC", 128)])
def test_meshes_and_roads_gain_a_little_by_bypass(small, standins, name, width):
    base, bypassed = times_of(standins(name, 4 * FACTOR), "spmm", width,
                              [config_of(256, "all", width), config_of(256, "all", width, 0, 1)], small)[0]
    assert 0.85 <= bypassed / base <= 1.005  # paper: -2 to -12 %


MESH = "a mesh has few distant columns and DRAM limits it, so uneven phases cost little; paper: +4 and +13 %"
DEALT = "cyclic dealing is uneven without barriers; paper: +6.5 and +38 % (DEL), +5 and +23 % (ROA)"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "op", "width"), [
    ("DEL", "spmm", 32), ("DEL", "spmm", 128), ("ROA", "spmm", 32), ("ROA", "spmm", 128),
    missed("PAC", "spmm", 32, reason=f"1.014: {MESH}"), missed("PAC", "spmm", 128, reason=f"1.001: {MESH}"),
    missed("DEL", "sddmm", 32, reason=f"0.916: {DEALT}"), missed("DEL", "sddmm", 128, reason=f"0.925: {DEALT}"),
    missed("ROA", "sddmm", 32, reason=f"0.992: {DEALT}"), missed("ROA", "sddmm", 128, reason=f"0.955: {DEALT}"),
])
def test_meshes_and_roads_lose_by_barriers(small, standins, name, op, width):
    config = config_of(256, MIDDLE // width, width)
    assert change_by_barriers(standins(name, 4 * FACTOR), op, width, config, small)[0] > 1.04  # paper: +4 to +80 %


@pytest.mark.slow
@pytest.mark.parametrize("width", [32, 128])
@pytest.mark.parametrize("name", ["DEL", "ROA"])
def test_barriers_gain_nothing_over_dealing_to_the_first_free_element(small, standins, name, width):
    config, pattern = config_of(256, MIDDLE // width, width), standins(name, 4 * FACTOR)
    cyclic, free = change_by_barriers(pattern, "sddmm", width, config, small, replace(small, dealing="first_free"))
    assert free > cyclic
    assert free >= 0.99


@pytest.fixture(scope="module")
def social(standins):
    """(pattern, machine) of ORK at half the size and LLC, so that the columns overflow it as at full size."""
    return standins("ORK", 2 * FACTOR), replace(scaled(machine_of("spade_isca224"), FACTOR), llc_kib=1536 / 2)


def middle(width):
    return config_of(256, MIDDLE // width // 2, width)


@pytest.mark.slow
@BOTH
def test_barriers_help_social_graphs_whose_columns_overflow_the_llc(social, op, width):
    pattern, machine = social
    assert change_by_barriers(pattern, op, width, middle(width), machine)[0] < 0.85  # paper: -30 to -57 %


@pytest.mark.slow
@pytest.mark.parametrize(("op", "width"), [
    ("spmm", 32), ("spmm", 128),
    missed("sddmm", 32, reason="0.923: cyclic dealing is uneven without barriers; first_free gives 1.00"),
    missed("sddmm", 128, reason="0.849: as at width 32; first_free gives 0.93"),
])
def test_barriers_do_not_help_where_the_llc_holds_all_columns(social, op, width):
    pattern, machine = social
    assert change_by_barriers(pattern, op, width, middle(width), replace(machine, llc_kib=64 * 1024))[0] >= 0.99


@pytest.mark.slow
@pytest.mark.xfail(reason="0.73, 0.94, 0.69, 0.80: column panel by column panel is the better order for one, too",
                   raises=AssertionError)
@BOTH
def test_barriers_do_not_help_one_element(social, op, width):
    pattern, machine = social
    alone = replace(machine, pes=1, llc_kib=2 * machine.llc_kib)
    assert change_by_barriers(pattern, op, width, middle(width), alone)[0] >= 0.97


@pytest.mark.slow
@BOTH
def test_barriers_are_an_order_and_nothing_else_for_one_element(social, op, width):
    # A row panel as tall as the matrix visits the nonzeros column panel by column panel without any barrier.
    pattern, machine = social
    alone, config = replace(machine, pes=1, llc_kib=2 * machine.llc_kib), middle(width).replace(barrier=1)
    counts = [simulate_counts(pattern, op, each, width=width, machine=alone)
              for each in (config, config.replace(row_panel=pattern.rows, barrier=0))]
    for name in ("l1", "l2", "llc", "dram", "writes", "nonzeros", "runs"):
        assert counts[0].total(name) == counts[1].total(name), name
    assert counts[0].flush == counts[1].flush


@pytest.mark.slow
@BOTH
def test_barriers_do_not_help_one_element_whose_llc_holds_all_columns(social, op, width):
    pattern, machine = social
    assert change_by_barriers(pattern, op, width, middle(width), replace(machine, pes=1, llc_kib=128 * 1024))[0] >= 0.99


@pytest.mark.slow
def test_bypassing_returning_rows_costs_what_the_victim_cache_cannot_hold(small):
    # Paper: +169 % for SpMM of width 32 with small column panels; each row returns in every one of them.
    pattern = kronecker(14, 89.2, seed=0)
    tiled, whole = config_of(1024, SMALL // 32 // 2, 32), config_of(256, "all", 32)
    configs = [tiled, tiled.replace(bypass=1), whole, whole.replace(bypass=1)]
    plain, roomy = times_of(pattern, "spmm", 32, configs, small, replace(small, victim_kib=1024))
    assert plain[1] / plain[0] > 1.5
    assert roomy[1] / roomy[0] < 1.05
    assert plain[3] / plain[2] < 1.01


@pytest.fixture(scope="module")
def kronecker_tiles():
    """(small machine, pattern, tiles of figure 11) for KRO at 1/8 of the size."""
    tiles = [config_of(row, panel, 32) for row in (1024, 256, 64) for panel in (8192 // 8, 524_288 // 8, "all")]
    return scaled(machine_of("spade_isca224"), 8), STANDINS["KRO"](8), tiles


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.xfail(reason="1024 x small takes 1.07 of 256 x all, the best; at full size 1.00. Neither full size nor "
                   "first_free, free instructions or 60 ns to the LLC change it", raises=AssertionError)
def test_small_column_and_large_row_panels_suit_kronecker_graphs(kronecker_tiles):
    machine, pattern, tiles = kronecker_tiles
    assert np.argmin(times_of(pattern, "spmm", 32, tiles, machine)) == 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_small_column_panels_spare_the_llc_on_kronecker_graphs(kronecker_tiles):
    # What makes them faster in the paper; here DRAM limits, whose traffic they do not lower (paper: 0.95 to 0.91).
    machine, pattern, tiles = kronecker_tiles
    tiled, whole = (simulate_counts(pattern, "spmm", tiles[place], width=32, machine=machine) for place in (0, 2))
    assert tiled.total("llc") < 0.64 / 0.79 * whole.total("llc")
    assert 1 < tiled.dram_bytes("spmm") / whole.dram_bytes("spmm") < 1.1


@pytest.mark.slow
def test_latency_is_tolerated_as_published(small, standins):
    # Paper: 1.25 at 480 ns and 1.86 at 960 ns; three sparse entries instead of six cost 12 %.
    machines = [small, replace(small, link_ns=480), replace(small, link_ns=960), replace(small, sparse_loads=3)]
    slowdown = []
    for name in ("ASI", "DEL", "PAC", "LIV", "PAP", "SER", "MYC"):
        pattern = standins(name, {"DEL": 4, "ASI": 4, "LIV": 2, "SER": 2}.get(name, 1) * FACTOR)
        times = times_of(pattern, "spmm", 32, [config_of(256, "all", 32)], *machines)[:, 0]
        slowdown.append(np.log(times / times[0]))
    _, at_480, at_960, fewer = np.exp(np.mean(slowdown, axis=0))
    assert 1.1 <= at_480 <= 1.5
    assert 1.4 <= at_960 <= 2.4
    assert 1.05 <= fewer <= 1.25


def test_records_hold_every_published_number():
    records = effect_records(machine_of("spade_isca224"), factor=56, matrices=["MYC", "PAP"], widths=(32,))
    kinds = {(record.table, record.matrix, record.op) for record in records}
    assert kinds == {*((table, name, op) for table in ("barrier", "bypass", "gain") for name in ("MYC", "PAP")
                       for op in ("spmm", "sddmm")), ("tiles", "MYC", "spmm")}
    published = {record.setting: record.paper for record in records if record.table == "tiles"}
    assert published["256 x small"] == 0.45
    assert max(record.ours for record in records if record.table == "tiles") == 1


@pytest.mark.slow
@pytest.mark.parametrize("dealing", ["cyclic", "first_free"])
def test_the_committed_run_is_of_this_simulator(dealing):
    # One matrix once more; a change of the model makes the run stale.
    name = "check_spade_signs" + ("" if dealing == "cyclic" else f"_{dealing}")
    committed = pd.read_parquet(RESULTS / name / "signs.parquet")
    rows = committed[(committed["matrix"] == "MYC") & (committed["width"] == 32)]
    records = effect_records(machine_of("spade_isca224", dealing=dealing), factor=8, matrices=["MYC"], widths=(32,))
    np.testing.assert_allclose([record.ours for record in records], rows["ours"], rtol=1e-9, atol=1e-9)
