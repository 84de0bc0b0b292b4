"""The learned choice of kernels: C++ is what was fitted, and every pattern and size gets a legal configuration."""

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from sparloom.measure import Caches
from sparloom.ops import SDDMM, CsrAttention, SpMM
from sparloom.platforms import CpuKernels
from sparloom.sparse import Pattern, SparseMatrix, SyntheticCorpus
from sparloom.tuning.sparse import choice

pytestmark = pytest.mark.cc
ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results" / "choose_kernels"
CACHES = Caches(near_bytes=1 << 20, far_bytes=32 << 20, threads=2)
OPS = {"spmm": SpMM(), "sddmm": SDDMM(), "attention": CsrAttention(1)}
CORPUS = SyntheticCorpus([12000], 1, 0, ["uniform", "hub_rows", "nearest", "blocks", "scrambled_band"])
MARGIN, PREPARATION = 0.01, 0.03


@cache
def patterns():
    return [CORPUS.load(entry.name).pattern for entry in CORPUS.entries()]


@cache
def space(op, width):
    return list(CpuKernels(2, width).family(OPS[op]).space())


def make(rows, cols, shape):
    return Pattern.from_coo(np.asarray(rows), np.asarray(cols), shape)


def stored(op, setting):
    return lightgbm.Booster(model_file=str(RESULTS / f"{op}_{setting}.txt"))


def expected_choice(pattern, width, *, prepared):
    """Choose by the stored trees in Python."""
    setting = "prepared" if prepared else "direct"
    rule, configs = choice.by_rule("spmm", pattern, width, caches=CACHES), space("spmm", width)
    allowed = [config for config in configs if config["balance"] == "nonzeros" and config["strip"] == "all"
               and config["stream"] <= rule["stream"]
               and (prepared or (config["order"] == "natural" and config["together"] == 1))]
    seconds = stored("spmm", setting).predict(choice.features("spmm", pattern, width, allowed, caches=CACHES))
    seconds += [PREPARATION * (config["order"] != "natural" or config["together"] > 1) for config in allowed]
    seconds[allowed.index(rule)] -= MARGIN
    return allowed[seconds.argmin()]


def test_tables_are_those_of_the_committed_run():
    committed = (RESULTS / "choice_tables.hpp").read_text(encoding="utf-8")
    assert (ROOT / "kernels" / "cpu" / "choice_tables.hpp").read_text(encoding="utf-8") == committed


def test_scores_are_the_predictions_of_the_stored_trees():
    usual = [config for config in space("spmm", 128) if config["balance"] == "nonzeros" and config["strip"] == "all"]
    for pattern in patterns():
        operands = SpMM().operands(SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)), 128, seed=0)
        features = choice.features("spmm", pattern, 128, usual, caches=CACHES)
        scores = choice.score("spmm", operands, usual, caches=CACHES)
        assert scores.tolist() == stored("spmm", "prepared").predict(features).tolist()
        others = choice.score("spmm", operands, [config.replace(balance="rows") for config in usual], caches=CACHES)
        assert (others - scores).tolist() == pytest.approx([others[0] - scores[0]] * len(usual))


@pytest.mark.parametrize("prepared", [False, True])
def test_the_choice_is_that_of_the_stored_trees(prepared):
    chosen = {}
    for number, pattern in enumerate(patterns()):
        for width in (32, 100, 256):
            found = choice.choose("spmm", pattern, width, caches=CACHES, prepared=prepared)
            assert found == expected_choice(pattern, width, prepared=prepared)
            chosen[number, width] = found
    assert len(set(chosen.values())) > 2


def test_statistics_tell_what_they_say():
    rows, width = 4096, 8
    columns = (np.arange(rows)[:, None] // 2 + np.arange(width)).ravel()  # two rows each with the same columns
    found = choice.statistics(make(np.repeat(np.arange(rows), width), columns, (rows, rows)))
    assert (found.rows, found.cols, found.nnz, found.longest) == (rows, rows, rows * width, width)
    assert (found.mean, found.variance, found.groups4, found.adjacent) == (width, 0, 1, 1 - 1 / width)
    assert found.span == 3  # bits of 7
    assert found.equal == pytest.approx(0.5, abs=0.05)
    assert found.reuse == pytest.approx(32 * width / (16 + width - 1), rel=0.05)
    assert list(found.imbalance) == pytest.approx([1] * 7, abs=0.01)
    hub = choice.statistics(make(np.zeros(5000, int), np.arange(5000), (100, 5000)))
    assert (hub.longest, hub.imbalance[0], hub.imbalance[2]) == (5000, 2, 8)


def test_the_same_pattern_in_other_memory_gives_the_same_statistics_and_choice():
    pattern = patterns()[0]
    again = replace(pattern, indptr=pattern.indptr.copy(), indices=pattern.indices.copy())
    one, other = choice.statistics(pattern), choice.statistics(again)
    assert bytes(one) == bytes(other)
    assert choice.choose("spmm", one, 64, caches=CACHES) == choice.choose("spmm", again, 64, caches=CACHES)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("prepared", [False, True])
def test_patterns_without_nonzeros_and_small_ones_have_the_configuration_of_the_rule(op, prepared):
    for pattern in (make([], [], (0, 0)), make([], [], (5, 0)), make([], [], (10**6, 3)), make([2], [0], (3, 1)),
                    make(np.zeros(3000, int), np.arange(3000), (1, 3000))):
        found = choice.choose(op, pattern, 16, caches=CACHES, prepared=prepared)
        assert found == choice.by_rule(op, pattern, 16, caches=CACHES)
        assert found in space(op, 16)


@pytest.mark.parametrize("op", OPS)
def test_all_sizes_have_a_legal_configuration_and_finite_scores(op):
    looked = choice.statistics(patterns()[0])
    sizes = itertools.product((50, 10**4, 10**7), (1, 20, 10**4), (1, 7, 64, 1024), (1, 3, 128), (2, 4, 8))
    for rows, mean, width, threads, value_bytes in sizes:
        looked.rows, looked.cols, looked.nnz, looked.mean = rows, rows, rows * mean, mean
        caches = Caches(1 << 20, threads * 2.0**22, threads)
        for prepared in (False, True):
            found = choice.choose(op, looked, width, caches=caches, value_bytes=value_bytes, prepared=prepared)
            assert found in space(op, width)
            assert found["balance"] == "nonzeros"
            assert prepared or found["order"] == "natural"
    operands = OPS[op].operands(SparseMatrix(patterns()[0], np.ones(patterns()[0].nnz, np.float32)), 8, seed=0)
    scores = choice.score(op, operands, space(op, 8), caches=CACHES, found=looked)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("op", ["attention", "sddmm", "spmm"])
def test_far_outside_of_the_training_matrices_the_rule_decides_and_ranks_first(op):
    pattern, tiny = patterns()[0], Caches(near_bytes=64.0, far_bytes=256.0, threads=2)
    rule = choice.by_rule(op, pattern, 64, caches=tiny)
    assert choice.choose(op, pattern, 64, caches=tiny, prepared=True) == rule
    operands = OPS[op].operands(SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)), 64, seed=0)
    configs = space(op, 64)
    assert configs[choice.score(op, operands, configs, caches=tiny).argmin()] == rule


def test_numbers_of_twice_the_size_are_like_twice_the_columns():
    configs, pattern = space("spmm", 32), patterns()[1]
    doubles, floats = (choice.features("spmm", pattern, width, configs, caches=CACHES, value_bytes=size)
                       for width, size in ((32, 8), (64, 4)))
    assert doubles.tolist() == floats.tolist()
