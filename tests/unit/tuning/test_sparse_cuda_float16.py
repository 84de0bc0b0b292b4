"""spmm, sddmm and attention for float16 arrays on an emulated GPU: results, decisions, refusals."""

import numpy as np
import pytest
from csr_operands import dense
from device_operands import COLS, POLICY, ROWS, WIDTH, close, host, parts, prepared
from emulated_gpu import Foreign, OnDevice
from gpu_here import on_a_gpu

import sparloom
from sparloom.errors import NotDecided
from sparloom.ops import SDDMM, CsrAttention, Op, Operands, SpMM, SpmmMax, SpmmMean
from sparloom.sparse import SparseMatrix
from sparloom.tuning import MeasurementBudget, PlanCache, list_plans
from sparloom.tuning.sparse import CsrPolicy, CudaBackend, Prepared, gather_dot

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sheet_rates")]

UNMEASURED = CsrPolicy(effort=MeasurementBudget(seconds=1e-9))


def short(matrix: SparseMatrix) -> tuple:
    """Convert the matrix to float16 arrays on the GPU; its values are multiples of 1/8."""
    return *parts(matrix)[:2], Foreign(matrix.values.astype(np.float16)), matrix.pattern.shape


def eighths(seed: int = 0) -> SparseMatrix:
    return host(seed).with_values(np.random.default_rng(seed).integers(-8, 9, host(seed).pattern.nnz) / 8)


def halves(*shape: int, seed: int = 1) -> np.ndarray:
    return dense(*shape, seed=seed).astype(np.float16)


def close_short(op: Op, matrix: SparseMatrix, given: dict[str, np.ndarray], found: np.ndarray) -> None:
    """Allow what sums in float32 differ by, and the rounding of the result once."""
    assert isinstance(found, OnDevice)
    assert found.dtype == np.float16
    operands = Operands(matrix, {name: array.astype(np.float32) for name, array in given.items()})
    oracle, terms = op.oracle(operands), op.terms(matrix.pattern, operands.width)
    summed = 4 * np.finfo(np.float32).eps * op.scale(operands) * (terms + 1)
    assert (np.abs(np.asarray(found) - oracle) <= summed + 2.0**-11 * np.maximum(np.abs(oracle), 2.0**-14)).all()


def test_float16_gives_float16(here, monkeypatch):
    monkeypatch.setattr(CudaBackend, "policy", lambda self: UNMEASURED)
    a, x, q = eighths(), halves(COLS, WIDTH), halves(ROWS, WIDTH, seed=2)
    given = short(a)
    for _ in range(2):
        for op, reduce in ((SpMM(), "sum"), (SpmmMean(), "mean"), (SpmmMax(), "max")):
            close_short(op, a, {"B": x}, sparloom.spmm(given, Foreign(x), reduce=reduce))
        close_short(SDDMM(), a, {"B": q, "C": x}, sparloom.sddmm(given, Foreign(q), Foreign(x)))
        heads = {"Q": q[:, None], "K": x[:, None], "V": halves(COLS, 1, 4, seed=3)}
        close_short(CsrAttention(), a, heads, sparloom.csr_attention(given, *map(Foreign, heads.values())))
    out = here.gpu.empty((ROWS, WIDTH), np.float16)
    sparloom.spmm(given, Foreign(x), out=out)
    close_short(SpMM(), a, {"B": x}, out)


def test_gather_dot_adds_up_in_float32(where):
    a, q, k = eighths(), halves(ROWS, WIDTH), halves(COLS, WIDTH, seed=2)
    matrix = where.matrix(a).with_values(where.gpu.upload(a.values.astype(np.float16)))
    given = Operands(matrix, {"B": q.view(OnDevice), "C": k.view(OnDevice)})
    close_short(SDDMM(), a, {"B": q, "C": k}, gather_dot(matrix, 0)(given))


def test_both_types_in_turn_are_decided_apart(where, tmp_path):
    ready, a = Prepared(where.matrix(eighths()), where=where, cache=PlanCache(tmp_path), policy=POLICY), eighths()
    x, values = halves(COLS, WIDTH), a.values.astype(np.float16)
    for _ in range(2):
        close_short(SpMM(), a, {"B": x}, ready.spmm(Foreign(x), values=Foreign(values)))
        close(SpMM(), a, {"B": x.astype(np.float32)}, ready.spmm(Foreign(x.astype(np.float32))))
    assert len(list_plans(tmp_path, now=0.0)) == 3  # two decisions, and rates


def test_a_decision_about_one_type_does_not_apply_to_another(where, tmp_path):
    a = eighths()
    prepared(where, tmp_path).spmm(Foreign(dense(COLS, WIDTH)))
    again = prepared(where, tmp_path, replay_only=True)
    again.spmm(Foreign(dense(COLS, WIDTH)))
    with pytest.raises(NotDecided, match="no plan for spmm"):
        again.spmm(Foreign(halves(COLS, WIDTH)), values=Foreign(a.values.astype(np.float16)))


def test_operands_of_several_types_are_refused(here):
    a, x, q = eighths(), halves(COLS, WIDTH), halves(ROWS, WIDTH)
    with pytest.raises(TypeError, match="operands are of several types, A float32, X float16: convert them to one"):
        sparloom.spmm(parts(a), Foreign(x))
    with pytest.raises(TypeError, match="types, A float16, X float32"):
        sparloom.spmm(short(a), Foreign(x.astype(np.float32)), reduce="mean")
    with pytest.raises(TypeError, match="types, A float16, Q float16, K float32"):
        sparloom.sddmm(short(a), Foreign(q), Foreign(x.astype(np.float32)))
    with pytest.raises(TypeError, match="types, Q float16, K float16, V float32"):
        sparloom.csr_attention(short(a), Foreign(q), Foreign(x), Foreign(x.astype(np.float32)))
    with pytest.raises(TypeError, match="X is float64: convert it to float32 or float16"):
        sparloom.spmm(short(a), Foreign(x.astype(np.float64)))
    with pytest.raises(TypeError, match="X is uint16: convert it to float32 or float16"):
        sparloom.spmm(short(a), Foreign(x.view(np.uint16)))
    with pytest.raises(ValueError, match=r"out is float32 of shape \(60, 8\): it must be float16 of shape"):
        sparloom.spmm(short(a), Foreign(x), out=here.gpu.empty((ROWS, WIDTH), np.float32))


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("width", [8, 33, 128])
def test_a_gpu_decides_about_float16_and_maxima(tmp_path, width):
    import cupy

    a, where = eighths(), CudaBackend.here()
    ready = Prepared(where.matrix(a), where=where, cache=PlanCache(tmp_path))
    values = cupy.asarray(a.values.astype(np.float16))
    x, q = halves(COLS, width), halves(ROWS, width, seed=2)
    for op, reduce in ((SpMM(), "sum"), (SpmmMean(), "mean"), (SpmmMax(), "max")):
        found = ready.spmm(cupy.asarray(x), reduce=reduce, values=values)
        close_short(op, a, {"B": x}, found.get().view(OnDevice))
    found = ready.sddmm(cupy.asarray(q), cupy.asarray(x), values=values)
    close_short(SDDMM(), a, {"B": q, "C": x}, found.get().view(OnDevice))
    wide = x.astype(np.float32)
    found, places = (array.get() for array in ready.spmm_max(cupy.asarray(wide)))
    products = np.where(places < 0, 0, a.values[places] * np.take_along_axis(wide, a.pattern.indices[places], axis=0))
    np.testing.assert_array_equal(found, products)
