"""Every configuration of the space agrees with the oracle; estimates are finite."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

from sparloom.fusion import TileFusionSpace, check_schedule
from sparloom.ops import GemmSpmm, SpmmGemm, SpmmSpmm, assert_close
from sparloom.sparse import SparseMatrix
from sparloom.tuning import Estimate, ExecutorFactory, FusionConfig, Problem, Rates

OPS = [GemmSpmm(), GemmSpmm(inner=3, c_transposed=True), SpmmSpmm(), SpmmSpmm(dtype="float64", addends=True),
       SpmmGemm()]
RATES = Rates(flops=1e11, near=2e11, far=1e11, memory=5e10, near_bytes=1 << 10, far_bytes=1 << 12)


@pytest.mark.cc
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_configuration_agrees_with_the_oracle(op, data):
    pattern = data.draw(patterns(max_rows=30, square=True))
    width, threads = data.draw(st.sampled_from([1, 7, 16, 33])), data.draw(st.integers(1, 3))
    values = np.random.default_rng(0).uniform(-1, 1, pattern.nnz)
    operands = op.operands(SparseMatrix(pattern, values, op.dtype), width, seed=1)
    space = TileFusionSpace(op.name)
    config = space.sample(1, np.random.default_rng(data.draw(st.integers(0, 10**6))))[0]
    choice = FusionConfig.of(config, threads=threads)
    assert choice.key == config.key
    workshop = ExecutorFactory(Problem.of(op, operands))
    executor = workshop.executor(choice)
    if choice.fused and op.name != "spmm_gemm":
        check_schedule(executor.schedule, pattern)
    result = executor.result(operands)
    result.fill(np.nan)
    executor.bind(operands, result)()
    assert_close(result, op.oracle(operands), terms=op.terms(pattern, width), scale=op.scale(operands))


@pytest.mark.cc
@settings(max_examples=40, deadline=None)
@given(pattern=patterns(max_rows=40, square=True), op=st.sampled_from(OPS), width=st.sampled_from([1, 16]))
def test_estimates_are_seconds(pattern, op, width):
    problem = Problem.of(op, op.operands(SparseMatrix(pattern, np.ones(pattern.nnz), op.dtype), width, seed=0))
    configs = TileFusionSpace(op.name).sample(40, np.random.default_rng(0))
    seconds = Estimate(RATES, threads=2).score(problem, configs)
    assert seconds.shape == (40,)
    assert np.isfinite(seconds).all()
    assert (seconds >= 0).all()
