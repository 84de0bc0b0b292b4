"""Hand-written sparse kernels: all configurations against the oracle, patterns of every kind, any number of threads."""

import functools
import platform as this
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

from sparloom.jit import compile_cpp
from sparloom.ops import SDDMM, CsrAttention, Op, SpMM, SpmmMax, assert_close
from sparloom.platforms import CpuKernels
from sparloom.platforms.cpu_kernels import sparse_kernels
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

OPS = [SpMM(), SpmmMax(), SDDMM(), CsrAttention()]
ops = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
WIDTHS = [*range(1, 71), 128, 256, 300]


@functools.cache
def platform(threads: int, width: int) -> CpuKernels:
    return CpuKernels(threads, width)


def varied() -> Pattern:
    """Empty rows, a full row, rows with equal columns in runs of 2 to 6, an empty column."""
    dense = np.random.default_rng(0).random((45, 70)) < 0.2
    dense[3] = True
    for first, last in ((8, 10), (12, 15), (20, 26), (30, 34)):
        dense[first:last] = dense[first]
    dense[[0, 17, 18, 44]] = False
    dense[:, 5] = False
    return Pattern.from_coo(*np.nonzero(dense), dense.shape)


def hub() -> Pattern:
    """Nearly all nonzeros in one row."""
    return Pattern.from_coo(np.array([2] + [30] * 900), np.array([5, *range(900)]), (60, 900))


def check(op: Op, pattern: Pattern, *, width: int, threads: int, configs=None) -> None:
    values = np.random.default_rng(1).uniform(-1, 1, pattern.nnz).astype(np.float32)
    operands = op.operands(SparseMatrix(pattern, values), width, seed=0)
    bounds = {"terms": op.terms(pattern, width), "scale": op.scale(operands)}
    oracle, kernels = op.oracle(operands), platform(threads, max(width, 65))
    for config in configs or kernels.space(op):
        try:
            assert_close(kernels.run(op, operands, config), oracle, **bounds)
        except AssertionError as error:
            raise AssertionError(f"width {width}, {threads} threads, {config}: {error}") from error


@pytest.mark.slow
@ops
@pytest.mark.parametrize("width", [1, 15, 16, 33, 70, 128, 256, 300])
def test_every_configuration_is_right(op, width):
    check(op, varied(), width=width, threads=1)


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["haswell", "x86-64"])
@pytest.mark.parametrize("op", [SDDMM(), CsrAttention()], ids=lambda op: op.name)
def test_narrower_vectors_give_the_same(monkeypatch, op, machine):
    if this.machine() != "x86_64" or (machine == "haswell" and "avx2" not in Path("/proc/cpuinfo").read_text("utf-8")):
        pytest.skip(f"this machine does not run code for {machine}")
    flags = ["-O1", f"-march={machine}", "-fno-loop-interchange", "-Wno-psabi", "-fopenmp"]
    library = compile_cpp([f"cpu/{op.name}.cpp"], flags)
    monkeypatch.setattr(sparse_kernels, "kernel_library",
                        lambda name, element, others=sparse_kernels.kernel_library: (
                            library if name == op.name else others(name, element)))
    for width in (1, 7, 8, 33, 64, 128, 136, 300):
        check(op, varied(), width=width, threads=2)


@ops
@pytest.mark.parametrize("threads", [2, 3])
def test_long_rows_are_shared_among_threads(op, threads):
    for width in (7, 128):
        check(op, hub(), width=width, threads=threads)
        check(op, varied(), width=width, threads=threads)


def ragged() -> Pattern:
    """More nonzeros than a block of kernels/cpu/sddmm.hpp, in rows of 0 to 90, many short, the last ones empty."""
    lengths = np.random.default_rng(3).choice([0, 1, 2, 5, 16, 17, 90], 400, p=[0.2, 0.2, 0.2, 0.2, 0.1, 0.05, 0.05])
    lengths[[0, *range(390, 400)]] = 0
    return Pattern((400, 90), np.append(0, np.cumsum(lengths)), np.concatenate([np.arange(n) for n in lengths]))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_sddmm_takes_nonzeros_without_regard_to_rows(threads):
    for width in (3, 16, 29, 48):
        configs = [config for config in platform(threads, 65).space(SDDMM()) if config["group"] == 1]
        check(SDDMM(), ragged(), width=width, threads=threads, configs=configs)


@pytest.mark.parametrize(("heads", "width"), [(1, 32), (2, 16), (2, 64), (4, 8), (4, 12), (4, 32), (8, 4), (8, 32)])
def test_heads_are_attended_to_together_or_one_by_one(heads, width):
    """For some, rows of `hub` have more scores than a block; four heads of 12 columns have no kernel of rows."""
    for pattern in (varied(), ragged(), hub()):
        for threads in (1, 3):
            check(CsrAttention(heads), pattern, width=heads * width, threads=threads)


@ops
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (6, 4)])
def test_patterns_without_nonzeros(op, shape):
    empty = Pattern.from_coo(np.empty(0, int), np.empty(0, int), shape)
    for threads in (1, 3):
        check(op, empty, width=17, threads=threads)


@ops
@settings(max_examples=60, deadline=None)
@given(pattern=patterns(), width=st.sampled_from(WIDTHS), threads=st.integers(1, 3), place=st.integers(0, 53))
def test_any_pattern_and_width_is_right(op, pattern, width, threads, place):
    configs = list(platform(threads, 128).space(op))
    check(op, pattern, width=width, threads=threads, configs=[
        configs[place % len(configs)], configs[-1 - place % len(configs)]])


@ops
def test_nothing_beyond_the_result_is_written(op):
    operands = op.operands(SparseMatrix(hub(), np.ones(hub().nnz)), 37, seed=0)
    family = platform(2, 128).family(op)
    shape = family.result(operands).shape
    for config in list(family.space())[::7]:
        room = np.full((shape[0] + 2, *shape[1:]), 7, np.float32)
        family.bind(operands, config, room[1:-1])()
        assert (room[[0, -1]] == 7).all()
        assert_close(room[1:-1], op.oracle(operands), terms=op.terms(hub(), 37), scale=op.scale(operands))


@ops
def test_wrong_and_unwritten_results_are_reported(op):
    operands = op.operands(SparseMatrix(varied(), np.ones(varied().nnz)), 16, seed=0)
    family = platform(1, 16).family(op)
    compare, right = family.check(op, operands, seed=0), op.oracle(operands).astype(np.float32)
    compare(right)
    with pytest.raises(AssertionError, match="elements differ"):
        compare(right + np.float32(1))
    known = family.check(op, operands, seed=0).__self__
    sampled = known.nonzeros if op.name == "sddmm" else known.rows
    missed = np.setdiff1d(np.arange(right.shape[0]), sampled)[0]
    right[missed] = np.nan
    with pytest.raises(AssertionError, match=f"1 rows hold NaN, the first is {missed}"):
        compare(right)


@pytest.mark.parametrize("factor", [1e-3, 30.0, 1e4])
def test_large_scores_overflow_nothing(factor):
    op, pattern = CsrAttention(), hub()
    drawn = op.operands(SparseMatrix(pattern, np.ones(pattern.nnz)), 24, seed=0)
    operands = replace(drawn, dense={**drawn.dense, "Q": drawn.dense["Q"] * np.float32(factor)})
    for config in platform(3, 64).space(op):
        found = platform(3, 64).run(op, operands, config)
        assert_close(found, op.oracle(operands), terms=op.terms(pattern, 24), scale=op.scale(operands))


@pytest.mark.parametrize("masked", [slice(0, 300), slice(128, 900), slice(0, 899)])
def test_scores_of_minus_infinity_have_weight_zero(masked):
    op, pattern = CsrAttention(), hub()
    operands = op.operands(SparseMatrix(pattern, np.ones(pattern.nnz)), 4, seed=0)
    operands.dense["Q"][:] = 1
    operands.dense["K"][masked] = -np.inf
    with np.errstate(invalid="ignore"):
        oracle = op.oracle(operands)
    for threads in (1, 3):
        for config in platform(threads, 64).space(op):
            found = platform(threads, 64).run(op, operands, config)
            np.testing.assert_array_equal(np.isnan(found), np.isnan(oracle))
            assert_close(found[30], oracle[30], terms=904, scale=1.0)


def test_nan_stays_in_its_row():
    op, pattern = CsrAttention(), varied()
    drawn = op.operands(SparseMatrix(pattern, np.ones(pattern.nnz)), 24, seed=0)
    queries = drawn.dense["Q"].copy()
    queries[7, 0, 3] = np.nan
    operands, kernels = replace(drawn, dense={**drawn.dense, "Q": queries}), platform(1, 64)
    found = kernels.run(op, operands, kernels.baseline(op, pattern))
    assert np.isnan(found).any(axis=(1, 2)).nonzero()[0].tolist() == [7]
