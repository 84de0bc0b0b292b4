"""The kernels that are measured first: those of the committed run, legal, and before all others."""

import json
from pathlib import Path

import numpy as np
import pytest

from sparloom.dispatch import Rates
from sparloom.dispatch.csr import CsrEstimate
from sparloom.dispatch.csr.estimate import BEHIND
from sparloom.dispatch.csr.portfolio import PORTFOLIO
from sparloom.ops import SDDMM, CsrAttention, SpMM
from sparloom.platforms import CpuKernels
from sparloom.sparse import Pattern, SparseMatrix

ROOT = Path(__file__).parents[3]
OPS = {"spmm": SpMM(), "sddmm": SDDMM(), "attention": CsrAttention(4)}
RATES = Rates(flops=1e11, near=2e11, far=1e11, memory=4e10, near_bytes=1e6, far_bytes=3e7)


def test_they_are_those_of_the_committed_run():
    chosen = json.loads((ROOT / "results" / "choose_kernels" / "portfolios.json").read_text(encoding="utf-8"))
    assert {op: list(names) for op, names in PORTFOLIO.items()} == chosen


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("width", [8, 64, 256])
def test_they_are_legal_and_come_before_others_that_seem_as_fast(op, width):
    pattern = Pattern.from_coo(np.repeat(np.arange(50), 8), np.tile(np.arange(8), 50), (50, 40))
    operands = OPS[op].operands(SparseMatrix(pattern, np.ones(400, np.float32)), width, seed=0)
    configs = list(CpuKernels(1, width).space(OPS[op]))
    assert {config.key for config in configs} >= set(PORTFOLIO[op])
    ratios = CsrEstimate(RATES, 1, PORTFOLIO).score(op, operands, configs) / CsrEstimate(RATES, 1).score(
        op, operands, configs)
    assert ratios == pytest.approx([1.0 if config.key in PORTFOLIO[op] else BEHIND for config in configs])
