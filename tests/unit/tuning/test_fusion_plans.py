"""Plans agree with the oracle for every option."""

import numpy as np
import pytest

from sparloom.errors import Unsupported
from sparloom.ops import GemmSpmm, SpmmGemm, SpmmSpmm, assert_close
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import PlanCache, plan_pair

pytestmark = pytest.mark.cc

OPS = [GemmSpmm(), SpmmSpmm(dtype="float64"), SpmmGemm(), GemmSpmm(inner=5, c_transposed=True)]


def band(rows: int, cols: int | None = None) -> SparseMatrix:
    row, column = np.indices((rows, rows if cols is None else cols))
    near = (np.abs(row - column) < 3) & (np.random.default_rng(0).random(row.shape) < 0.7)
    pattern = Pattern.from_coo(*np.nonzero(near), near.shape)
    return SparseMatrix(pattern, np.random.default_rng(1).uniform(-1, 1, pattern.nnz))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("fuse", ["auto", "never", "always"])
def test_a_plan_agrees_with_the_oracle(op, fuse, tmp_path):
    operands = op.operands(band(60), 9, seed=0)
    plan = plan_pair(op, operands, fuse=fuse, threads=2, cache=PlanCache(tmp_path))
    result = plan.executor.result(operands)
    plan.executor.bind(operands, result)()
    assert_close(result, op.oracle(operands), terms=op.terms(operands.matrix.pattern, 9), scale=op.scale(operands))


def test_loops_of_different_length_are_not_fused(tmp_path):
    op, cache = GemmSpmm(), PlanCache(tmp_path)
    operands = op.operands(band(60, 40), 8, seed=0)
    assert not plan_pair(op, operands, cache=cache).choice.fused
    with pytest.raises(Unsupported, match="loops of 40 and 60 iterations"):
        plan_pair(op, operands, fuse="always", cache=cache)


def test_an_unknown_fuse_option_is_refused(tmp_path):
    op = GemmSpmm()
    with pytest.raises(ValueError, match="fuse='sometimes': give \"auto\""):
        plan_pair(op, op.operands(band(9), 4, seed=0), fuse="sometimes", cache=PlanCache(tmp_path))
