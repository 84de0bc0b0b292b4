"""The formula for seconds on SPADE: near the simulator, and right where the answer is known."""

import numpy as np
import pytest
from spade_cases import banded, config_of, even_rows, grid, machine_of, uniform

from sparloom.measure import kendall_tau
from sparloom.models import MatrixFeatures
from sparloom.platforms.spade import estimate_seconds, simulate_many
from sparloom.space import SpadeSpace
from sparloom.sparse import Pattern

MACHINE = machine_of("spade")
BAND, ROWS = banded(6000, 40, 4), np.arange(6000)
PATTERNS = {"band": BAND, "uniform": uniform(8000, 6), "even": even_rows(3000, 16, 3000), "grid": grid(90, 90),
            "wide": uniform(900, 30, cols=9000),
            "long row": Pattern.from_coo(np.append(BAND.row_ids(), 0 * ROWS + 70), np.append(BAND.indices, ROWS),
                                         BAND.shape)}


def estimated(pattern: Pattern, op: str = "spmm", machine=MACHINE, configs=None) -> np.ndarray:
    configs = configs or list(SpadeSpace(op))
    return estimate_seconds(machine, op, MatrixFeatures.from_pattern(pattern), configs, width=256)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("name", PATTERNS)
def test_seconds_and_orders_are_near_those_of_the_simulator(name: str, op: str) -> None:
    configs = list(SpadeSpace(op))
    exact = simulate_many(PATTERNS[name], op, width=256, configs=configs, machines=[MACHINE])[0]
    found = estimated(PATTERNS[name], op)
    assert abs(np.log(found / exact)).mean() < 0.2
    assert kendall_tau(found, exact) > 0.7
    assert exact[found.argmin()] < 1.05 * exact.min()


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("preset", ["spade_hottiles4", "spade_hottiles16", "spade_isca224"])
def test_few_panels_on_other_numbers_of_elements(preset: str, op: str) -> None:
    machine, configs = machine_of(preset), [config_of(row_panel=rows, column_panel=columns)
                                            for rows in (32, 256, 2048) for columns in (1024, "all")]
    for name in ("even", "band"):
        exact = simulate_many(PATTERNS[name], op, width=256, configs=configs, machines=[machine])[0]
        found = estimated(PATTERNS[name], op, machine, configs)
        assert np.abs(np.log(found / exact)).max() < np.log(2.6), name


def test_equal_programs_have_equal_estimates() -> None:
    one, other = config_of(column_panel=65536, barrier=1), config_of(column_panel="all")
    found = estimated(PATTERNS["band"], configs=[one, other])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_more_bandwidth_and_elements_never_hurt() -> None:
    base = estimated(PATTERNS["uniform"])
    assert (estimated(PATTERNS["uniform"], machine=machine_of("spade", dram_gb_per_s=205.0)) <= base).all()
    slower = estimated(PATTERNS["uniform"], machine=machine_of("spade", clock_ghz=0.4))
    assert (slower >= base).all()
    assert (slower > base).any()


def test_a_full_bandwidth_is_a_floor() -> None:
    pattern = PATTERNS["uniform"]
    used = 2 * len(np.unique(pattern.row_ids())) + len(np.unique(pattern.indices))  # rows of the result, both ways
    assert (estimated(pattern) >= used * 1024 / MACHINE.bandwidth).all()


def test_a_matrix_without_nonzeros_has_finite_estimates() -> None:
    assert np.isfinite(estimated(Pattern.from_coo([], [], (5, 7)))).all()
