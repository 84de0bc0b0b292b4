"""Signs of the SPADE paper on stand-ins at 1/28 of the size, on a machine at 1/28 of the size."""

from dataclasses import replace

import numpy as np
import pytest
from spade_cases import config_of, machine_of

from sparloom.platforms.spade.signs import sign_records
from sparloom.platforms.spade.simulate import simulate_many
from sparloom.platforms.spade.standins import STANDINS, kronecker, mycielskian, scaled

pytestmark = pytest.mark.paper

FACTOR = 28
SMALL, MIDDLE = 262_144 // FACTOR, 16_777_216 // FACTOR  # columns x width


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


@pytest.mark.slow
@pytest.mark.parametrize("width", [32, 128])
@pytest.mark.parametrize("name", ["DEL", "ROA"])
def test_meshes_and_roads_want_no_tiling(small, standins, name, width):
    pattern = standins(name, 4 * FACTOR)
    configs = [config_of(row, panel, width) for row in (64, 256, 1024) for panel in (SMALL // width, MIDDLE // width)]
    base, bypassed, barrier, middle, *tiled = times_of(pattern, "spmm", width, [
        config_of(256, "all", width), config_of(256, "all", width, 0, 1), config_of(256, MIDDLE // width, width, 1),
        config_of(256, MIDDLE // width, width), *configs,
    ], small)[0]
    assert base <= 1.03 * min(tiled)
    assert barrier > 1.03 * middle  # paper: +23 to +80 %
    assert 0.85 <= bypassed / base <= 1.005  # paper: -2 to -12 %


@pytest.mark.slow
@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("width", [32, 128])
def test_barriers_help_social_graphs_whose_columns_overflow_the_llc(small, standins, op, width):
    pattern = standins("ORK", 2 * FACTOR)
    free = config_of(256, MIDDLE // width // 2, width)
    pair = [free, free.replace(barrier=1)]
    machines = [replace(small, llc_kib=small.llc_kib / 2), replace(small, llc_kib=64 * 1024),
                replace(small, pes=1, llc_kib=small.llc_kib)]
    change = np.divide(*times_of(pattern, op, width, pair, *machines).T[::-1])
    assert change[0] < 0.85  # paper: -30 to -57 %
    assert change[1] >= 0.99
    assert change[2] >= 0.97


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


@pytest.mark.slow
def test_small_row_panels_balance_mycielskian_graphs():
    # At full size degrees alone give 1 : 0.44 : 0.23 for panels of 1024, 256 and 64 rows (paper: 1 : 0.45 : 0.22); at a
    # quarter of the size, where the head of the matrix weighs less, 1 : 0.46 : 0.25.
    machine = scaled(machine_of("spade_isca224"), 4)
    configs = [config_of(row, "all", 128) for row in (1024, 256, 64, 16)]
    times = times_of(mycielskian(15), "spmm", 128, configs, machine)[0]
    assert times[1] / times[0] == pytest.approx(0.46, abs=0.06)
    assert times[2] / times[0] == pytest.approx(0.25, abs=0.06)
    assert times[1] / times[3] > 2


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
    assert 1.04 <= fewer <= 1.25


def test_records_hold_every_published_number():
    records = sign_records(machine_of("spade_isca224"), factor=56, matrices=["MYC", "PAP"], widths=(32,))
    kinds = {(record.table, record.matrix, record.op) for record in records}
    assert kinds == {*((table, name, op) for table in ("barrier", "bypass", "gain") for name in ("MYC", "PAP")
                       for op in ("spmm", "sddmm")), ("tiles", "MYC", "spmm")}
    published = {record.setting: record.paper for record in records if record.table == "tiles"}
    assert published["256 x small"] == 0.45
    assert max(record.ours for record in records if record.table == "tiles") == 1


@pytest.mark.parametrize("name", [
    "asia_osm", "com-LiveJournal", "com-Orkut", "coPapersCiteseer", "delaunay_n24", "kron_g500-logn20", "mycielskian17",
    "packing-500x100x100-b050", "road_usa", "Serena",
])
def test_published_times_need_the_original_matrices(name, mirror):
    pytest.skip(f"{name} is not in the mirror of real matrices; its stand-in is tested instead")
