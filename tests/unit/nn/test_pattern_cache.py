"""Prepared matrices are shared by calls and layers, compared after writes, and dropped with their tensors."""

import gc
import weakref

import pytest
import torch
from sparse_tensors import COLS, ROWS, dense, sparse_tensor

from sparloom.nn import SAGEConv, spmm
from sparloom.nn.pattern_cache import PatternCache, pattern_cache

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"), pytest.mark.filterwarnings("ignore:Sparse")]


def found(patterns: PatternCache, a: torch.Tensor):
    return patterns.get(a.crow_indices(), a.col_indices(), a.shape[1])


def test_a_matrix_is_prepared_once() -> None:
    patterns, a = PatternCache(), sparse_tensor()
    first = found(patterns, a)
    assert found(patterns, a) is first
    assert first.backward is not first.forward
    other = torch.sparse_csr_tensor(a.crow_indices(), a.col_indices(), 2 * a.values(), size=a.shape)
    assert found(patterns, other) is first
    assert found(patterns, sparse_tensor()) is not first
    assert patterns.get(a.crow_indices(), a.col_indices(), COLS + 1) is not first


def test_symmetric_patterns_are_decided_once() -> None:
    both = sparse_tensor(30, 30).to_dense()
    prepared = found(PatternCache(), (both + both.T).to_sparse_csr())
    assert prepared.backward is prepared.forward


def test_each_number_of_threads_is_prepared_for() -> None:
    patterns, a, threads = PatternCache(), sparse_tensor(), torch.get_num_threads()
    first = found(patterns, a)
    try:
        torch.set_num_threads(threads + 1)
        assert found(patterns, a).threads == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert found(patterns, a) is first


def test_prepared_matrices_are_dropped_with_their_tensors() -> None:
    patterns, a = PatternCache(), sparse_tensor()
    prepared = weakref.ref(found(patterns, a))
    gc.collect()
    assert prepared() is not None
    del a
    gc.collect()
    assert prepared() is None
    assert len(patterns) == 0


def test_operators_keep_nothing_of_tensors_that_are_gone() -> None:
    gc.collect()  # matrices of other tests
    before, a = len(pattern_cache()), sparse_tensor()
    x = dense(COLS, 4).requires_grad_()
    spmm(a, x).sum().backward()
    assert len(pattern_cache()) == before + 1
    del a
    gc.collect()
    assert len(pattern_cache()) == before


def test_writes_are_detected() -> None:
    patterns, a = PatternCache(), sparse_tensor()
    first = found(patterns, a)
    a.values().mul_(2)
    assert found(patterns, a) is first  # they share a count of writes, and the indices are as they were
    a.col_indices()[-1] = COLS - 1 if a.col_indices()[-1] != COLS - 1 else COLS - 2
    second = found(patterns, a)
    assert second is not first
    assert second.pattern.indices[-1] == a.col_indices()[-1]
    assert len(patterns) == 1


def test_results_follow_writes() -> None:
    a, x = sparse_tensor(), dense(COLS, 4)
    spmm(a, x)
    a.values().mul_(3)
    a.col_indices()[-1] = COLS - 1 if a.col_indices()[-1] != COLS - 1 else COLS - 2
    torch.testing.assert_close(spmm(a, x), a.to_dense() @ x, rtol=0, atol=1e-5)


def test_indices_made_in_inference_mode_are_compared_each_time() -> None:
    patterns = PatternCache()
    with torch.inference_mode():
        a = sparse_tensor()
        first = found(patterns, a)
        assert found(patterns, a) is first
        a.col_indices()[-1] = COLS - 1 if a.col_indices()[-1] != COLS - 1 else COLS - 2
        assert found(patterns, a) is not first


@pytest.mark.parametrize("form", ["edge_index", "csr", "coo"])
def test_layers_on_one_graph_share_prepared_matrices_until_it_dies(form) -> None:
    square = sparse_tensor(ROWS, ROWS, seed=len(form))
    rows, cols = square.to_sparse_coo().indices()
    graph = {"edge_index": torch.stack([cols, rows]), "csr": square, "coo": square.to_sparse_coo()}[form]
    gc.collect()  # matrices of other tests
    before, x = len(pattern_cache()), dense(ROWS, 8)
    SAGEConv(8, 4, "max")(x, graph)
    SAGEConv(8, 8, "min")(x, graph)
    assert len(pattern_cache()) <= before + 1
    dead = weakref.ref(graph)
    del square, graph, rows, cols
    gc.collect()
    assert dead() is None
    assert len(pattern_cache()) == before
