"""Products of torch that decisions compare with: they compute what the operation does, and are among the trials."""

import numpy as np
import pytest
import torch

from sparloom.dispatch import PlanCache
from sparloom.dispatch.csr import LIBRARIES as ALWAYS
from sparloom.dispatch.csr import CsrPolicy, Prepared
from sparloom.nn.rivals import LIBRARIES
from sparloom.ops import SDDMM, SpMM, assert_close
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache")]

OPS = {"spmm": SpMM(), "sddmm": SDDMM()}
RIVALS = [(op, name) for op in OPS for name in LIBRARIES[op]]


def matrix(rows: int = 300, cols: int = 200) -> SparseMatrix:
    rng = np.random.default_rng(0)
    there = rng.random((rows, cols)) < 0.05
    there[[0, 7, rows - 1]] = False
    pattern = Pattern.from_coo(*np.nonzero(there), there.shape)
    return SparseMatrix(pattern, rng.uniform(-1, 1, pattern.nnz))


def test_those_that_are_always_there_are_among_them() -> None:
    assert LIBRARIES["spmm"].keys() == ALWAYS["spmm"].keys() | {"torch_mm", "torch_sparse_mm"}
    assert LIBRARIES["sddmm"].keys() >= {"torch_sampled_addmm", "torch_gather"}


@pytest.mark.parametrize(("op", "name"), RIVALS)
@pytest.mark.parametrize("width", [1, 32])
def test_results_are_right(op, name, width) -> None:
    operands = OPS[op].operands(matrix(), width, seed=0)
    oracle = OPS[op].oracle(operands)
    result = np.full(oracle.shape, 7, np.float32)
    with torch.inference_mode():
        call = LIBRARIES[op][name](operands, result)
    for _ in range(2):
        result[:] = 7
        call()
        assert_close(result, oracle, terms=OPS[op].terms(operands.matrix.pattern, width), scale=OPS[op].scale(operands))


@pytest.mark.parametrize("op", list(OPS))
def test_they_are_tried(op, tmp_path) -> None:
    large = matrix(2000, 2000)
    prepared = Prepared(large, threads=1, cache=PlanCache(tmp_path), libraries=LIBRARIES,
                        policy=CsrPolicy(least_nonzeros=1000))
    operands = OPS[op].operands(large, 32, seed=0)
    decision = prepared.plan(op, **operands.dense).decision
    assert {trial.candidate for trial in decision.trials} >= LIBRARIES[op].keys()
