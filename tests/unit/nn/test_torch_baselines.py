"""torch's products as baselines of decisions: they compute what the operation does, and are measured."""

import numpy as np
import pytest
import torch

from sparloom.nn import SPARSE_LIBRARIES, torch_csr
from sparloom.nn.baselines import gather_dot
from sparloom.ops import SDDMM, Operands, SpMM, assert_close
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import Decision, MeasurementBudget, PlanCache
from sparloom.tuning.sparse import LIBRARIES as ALWAYS
from sparloom.tuning.sparse import CsrChoice, CsrDecider, CsrPolicy, Prepared, gathered_pieces

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache")]

PATIENT = CsrPolicy(least_nonzeros=1000, effort=MeasurementBudget(
    candidates=2, repetitions=1, pairs=(2, 2), executions=40, seconds=60.0, short_seconds=0.0))
OPS = {"spmm": SpMM(), "sddmm": SDDMM()}
BASELINES = [(op, name) for op in OPS for name in SPARSE_LIBRARIES[op]]


def matrix(rows: int = 300, cols: int = 200) -> SparseMatrix:
    rng = np.random.default_rng(0)
    there = rng.random((rows, cols)) < 0.05
    there[[0, 7, rows - 1]] = False
    pattern = Pattern.from_coo(*np.nonzero(there), there.shape)
    return SparseMatrix(pattern, rng.uniform(-1, 1, pattern.nnz))


def close(op: str, operands: Operands, found: np.ndarray) -> None:
    assert_close(found, OPS[op].oracle(operands), scale=OPS[op].scale(operands),
                 terms=OPS[op].terms(operands.matrix.pattern, operands.width))


def test_products_of_every_torch_version_are_among_the_baselines() -> None:
    assert SPARSE_LIBRARIES["spmm"].keys() == ALWAYS["spmm"].keys() | {"torch_mm", "torch_sparse_mm"}
    assert SPARSE_LIBRARIES["sddmm"].keys() == {"torch_sampled_addmm"}


@pytest.mark.parametrize(("op", "name"), BASELINES)
@pytest.mark.parametrize("width", [1, 32])
def test_results_are_right(op, name, width) -> None:
    operands = OPS[op].operands(matrix(), width, seed=0)
    with torch.inference_mode():
        product = SPARSE_LIBRARIES[op][name](operands.matrix, 1)
    for _ in range(2):
        close(op, operands, product(operands))


@pytest.mark.parametrize(("op", "name"), BASELINES)
def test_a_pattern_is_prepared_once_for_all_values(op, name, tmp_path, monkeypatch) -> None:
    prepared_for = []

    def library(matrix: SparseMatrix, threads: int):
        prepared_for.append(matrix.pattern)
        return SPARSE_LIBRARIES[op][name](matrix, threads)

    monkeypatch.setattr(CsrDecider, "decide", lambda *_: (CsrChoice(library="other"), Decision("rule", "chosen")))
    operands, rng = OPS[op].operands(matrix(), 8, seed=0), np.random.default_rng(1)
    ready = Prepared(matrix(), threads=1, cache=PlanCache(tmp_path), libraries={op: {"other": library}},
                     policy=CsrPolicy())
    run = ready.spmm if op == "spmm" else ready.sddmm
    values = np.empty(matrix().pattern.nnz, np.float32)
    for inputs in (None, values, values, values.copy()):
        if inputs is not None:
            inputs[:] = rng.uniform(-1, 1, inputs.size)
        seen = operands.matrix if inputs is None else operands.matrix.with_values(inputs)
        close(op, Operands(seen, operands.dense), run(*operands.dense.values(), values=inputs))
    assert prepared_for == [matrix().pattern]


@pytest.mark.parametrize("op", list(OPS))
def test_torch_baselines_are_measured(op, tmp_path) -> None:
    large = matrix(2000, 2000)
    prepared = Prepared(large, threads=1, cache=PlanCache(tmp_path), libraries=SPARSE_LIBRARIES, policy=PATIENT)
    operands = OPS[op].operands(large, 32, seed=0)
    decision = prepared.plan(op, **operands.dense).decision
    assert {trial.candidate for trial in decision.trials if trial.seconds} >= SPARSE_LIBRARIES[op].keys()


def test_gathering_takes_some_nonzeros_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr("sparloom.tuning.sparse.tuner.GATHERED_BYTES", 12 * 8 * 100)
    operands = OPS["sddmm"].operands(matrix(), 8, seed=0)
    pattern = operands.matrix.pattern
    gathered, take = [], torch.Tensor.__getitem__
    monkeypatch.setattr(torch.Tensor, "__getitem__", lambda self, places: gathered.append(places) or take(self, places))
    found = gather_dot(*map(torch.from_numpy, (*operands.dense.values(), pattern.row_ids(), pattern.indices)))
    close("sddmm", operands, found.mul_(torch.from_numpy(operands.matrix.values)).numpy())
    assert max(places.numel() for places in gathered if isinstance(places, torch.Tensor)) == 100


@pytest.mark.parametrize(("nnz", "width"), [(0, 8), (1, 8), (99, 8), (100, 8), (250, 8), (3, 10_000)])
def test_pieces_hold_every_nonzero_once_and_few_bytes(monkeypatch, nnz, width) -> None:
    monkeypatch.setattr("sparloom.tuning.sparse.tuner.GATHERED_BYTES", 12 * 8 * 100)
    pieces = [np.arange(nnz)[piece] for piece in gathered_pieces(nnz, width)]
    assert np.array_equal(np.concatenate([np.arange(0), *pieces]), np.arange(nnz))
    assert all(piece.size == 1 or 12 * width * piece.size <= 12 * 8 * 100 for piece in pieces)


@pytest.mark.parametrize("wide", [False, True])
def test_indices_have_32_bits_where_these_count_the_nonzeros(monkeypatch, wide) -> None:
    if wide:
        monkeypatch.setattr("sparloom.baselines.sparse.MAX_INT32", matrix().pattern.nnz - 1)
    operands = OPS["spmm"].operands(matrix(), 8, seed=0)
    found, expected = torch_csr(operands.matrix), torch.int64 if wide else torch.int32
    assert (found.crow_indices().dtype, found.col_indices().dtype) == (expected, expected)
    for product in SPARSE_LIBRARIES["spmm"].values():
        close("spmm", operands, product(operands.matrix, 1)(operands))
