"""Portfolios: kernels of the committed run, legal, and measured before all others."""

import json
from pathlib import Path

import numpy as np
import pytest

from sparloom.ops import SDDMM, CsrAttention, SpMM
from sparloom.platforms import CpuKernels
from sparloom.space import Config
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import Caches, Rates
from sparloom.tuning.search import NOT_FAVOURED
from sparloom.tuning.sparse import CpuBackend, CsrDecider, CsrEstimate, CsrPolicy, portfolios
from sparloom.tuning.sparse.cpu import PORTFOLIO, STORED

ROOT = Path(__file__).parents[3]
OPS = {"spmm": SpMM(), "sddmm": SDDMM(), "attention": CsrAttention(4)}
RATES = Rates(flops=1e11, near=2e11, far=1e11, memory=4e10, near_bytes=1e6, far_bytes=3e7)


def test_portfolios_are_those_of_the_committed_run():
    chosen = json.loads((ROOT / "results" / "choose_kernels" / "portfolios.json").read_text(encoding="utf-8"))
    known = {"any": PORTFOLIO, "stored": STORED}
    assert {order: {op: list(names) for op, names in lists.items()} for order, lists in known.items()} == chosen


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("width", [8, 64, 256])
def test_portfolio_kernels_are_legal_and_precede_others_of_equal_estimate(op, width):
    pattern = Pattern.from_coo(np.repeat(np.arange(50), 8), np.tile(np.arange(8), 50), (50, 40))
    operands = OPS[op].operands(SparseMatrix(pattern, np.ones(400, np.float32)), width, seed=0)
    configs = list(CpuKernels(1, width).space(OPS[op]))
    assert {config.key for config in configs} >= {*PORTFOLIO[op], *STORED[op]}
    assert all(key.startswith("order=natural,") for key in STORED[op])
    ratios = CsrEstimate(RATES, 1, lambda op, operands: PORTFOLIO[op]).score(op, operands, configs) / CsrEstimate(
        RATES, 1).score(op, operands, configs)
    assert ratios == pytest.approx([1.0 if config.key in PORTFOLIO[op] else NOT_FAVOURED for config in configs])


@pytest.mark.parametrize(("op", "places"), [("spmm", [2, 1, 2]), ("sddmm", [2, 1, 1]), ("attention", [2, 1, 1])])
def test_rows_in_the_order_of_columns_are_tried_where_caches_hold_dense_rows(op, places):
    caches, found = Caches(near_bytes=1e3, far_bytes=128 << 10, threads=2), []
    for rows in (60, 900, 1100):  # 7.5, 112.5 and 137.5 KiB of dense rows
        pattern = Pattern.from_coo(np.arange(rows), np.arange(rows), (rows, rows))
        operands = OPS[op].operands(SparseMatrix(pattern, np.ones(rows, np.float32)), 16, seed=0)
        found.append(portfolios(op, operands, caches))
        assert found[-1][-1] == STORED[op]
    assert [len(lists) for lists in found] == places
    assert found[0][0] == PORTFOLIO[op]


def test_there_are_six_to_try_whether_or_not_rows_can_be_sorted():
    operands = SpMM().operands(SparseMatrix(Pattern.from_coo(
        np.repeat(np.arange(2000), 8), np.tile(np.arange(8), 2000), (2000, 40)), np.ones(16000, np.float32)), 8, seed=0)
    decider = CsrDecider(SpMM(), CpuBackend(2), {}, CsrPolicy.online(), model=None)
    for run, orders in ((1e-3 / 2, {"natural", "column"}), (20e-6, {"natural"})):
        choices, baselines = decider.candidates(operands, run)
        configs = [Config.parse("cpu_kernels", choice.config) for choice in choices]
        assert (len(choices), baselines) == (6, [0])
        assert {config["order"] for config in configs} == orders
