"""The SPADE elements of HotTiles (HPCA'24), four and sixteen, without L2 and LLC, on stand-ins of its matrices.

dgreen and wiki-topcats have no stand-in. Mycielskian graphs are the published kind at 1/8 of the rows.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr
from spade_cases import config_of, machine_of

from sparloom.platforms.spade import (
    STANDINS,
    delaunay,
    grid_3d,
    kronecker,
    mycielskian,
    simulate_counts,
    simulate_many,
    social,
)

pytestmark = [pytest.mark.paper, pytest.mark.cc, pytest.mark.slow]

# name: (published milliseconds of sixteen elements, millions of nonzeros, stand-in)
CASES = {
    "as-Skitter": (19.8, 22.2, lambda: social(60_000, 13, inside=0.5, group=100, seed=0)),
    "coPapersCiteseer": (18.6, 32.1, lambda: STANDINS["PAP"](28)),
    "delaunay_n22": (20.8, 25.2, lambda: delaunay(1 << 17, seed=0)),
    "kron_g500-logn19": (37.9, 43.6, lambda: kronecker(15, 83.2, seed=0)),
    "mycielskian17": (108.6, 100.2, lambda: mycielskian(14)),
    "packing-500x100x100-b050": (20.2, 35.0, lambda: grid_3d((170, 35, 35), reach=1.5)),
    "Serena": (27.0, 64.1, lambda: grid_3d((26, 26, 26), reach=1.5, unknowns=3)),
    "soc-Pokec": (29.7, 30.6, lambda: social(60_000, 18.8, inside=0.4, group=200, seed=0)),
}
UNTILED = config_of(64, "all", 32, 0, 1)
MACHINES = [machine_of("spade_hottiles4"), machine_of("spade_hottiles16")]
FREE = replace(MACHINES[1], dealing="first_free")


@pytest.fixture(scope="module")
def measured():
    """name -> (times of 16 elements over those published, dealt cyclicly and to the first free; GB/s of 4 and 16; lines

    per nonzero). All times are per nonzero, as the stand-ins are smaller.
    """
    found = {}
    for name, (milliseconds, millions, make) in CASES.items():
        pattern = make()
        times = simulate_many(pattern, "spmm", width=32, configs=[UNTILED], machines=[*MACHINES, FREE])[:, 0]
        moved = [simulate_counts(pattern, "spmm", UNTILED, width=32, machine=machine).dram_bytes("spmm")
                 for machine in MACHINES]
        ratios = 1e9 * times[1:] / pattern.nnz / (milliseconds / millions)
        found[name] = (*ratios, moved[0] / times[0] / 1e9, moved[1] / times[1] / 1e9, moved[1] / 64 / pattern.nnz)
    return found


def geomean(values) -> float:
    return float(np.exp(np.mean(np.log(values))))


def test_bandwidth_grows_from_four_to_sixteen_elements_as_published(measured):
    assert geomean([each[3] / each[2] for each in measured.values()]) == pytest.approx(132.28 / 49.68, rel=0.15)


def test_lines_per_nonzero_are_those_published(measured):
    assert geomean([each[4] for each in measured.values()]) == pytest.approx(1.60, rel=0.2)


def test_times_order_the_matrices_as_published(measured):
    paper = np.array([milliseconds / millions for milliseconds, millions, _ in CASES.values()])
    ratio = np.array([each[0] for each in measured.values()])
    assert spearmanr(ratio * paper, paper).statistic >= 0.8


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.xfail(
        reason="1.354; on the published graph itself 1.42: cyclic dealing, see below", raises=AssertionError))
    if name == "mycielskian17" else name for name in CASES])
def test_times_are_within_35_percent_of_those_published(measured, name):
    assert measured[name][0] == pytest.approx(1, abs=0.35)


@pytest.mark.parametrize("name", CASES)
def test_times_are_nearer_when_the_first_free_element_takes_the_next_panel(measured, name):
    assert measured[name][1] == pytest.approx(1, abs=0.30)
    assert abs(np.log(measured[name][1])) <= abs(np.log(measured[name][0])) + 0.02
