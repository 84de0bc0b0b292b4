"""Sparse operations on GPU tensors: registered for CUDA, and right with CPU tensors on an emulated GPU."""

import sys

import numpy as np
import pytest
import torch
from emulated_gpu import SharedMemory
from sparse_tensors import (
    COLS,
    ROWS,
    assert_within,
    dense,
    dense_attention,
    dense_largest,
    dense_sddmm,
    dense_spmm,
    sparse_tensor,
    with_gradients,
)

from sparloom.errors import Unsupported
from sparloom.nn import baselines, core_calls, csr_attention, sddmm, spmm, torch_integration
from sparloom.nn import tensor_backend as tensor_backends
from sparloom.nn.content_hash import bfloat16_as_uint16, tensor_from_dlpack
from sparloom.nn.tensor_backend import CudaTensorBackend, tensor_backend
from sparloom.ops import SDDMM, Operands, SpMM, assert_close
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import MeasurementBudget, PlanCache, Race
from sparloom.tuning.sparse import CandidateSet, CsrPolicy, CudaBackend, CudaRates, Prepared, tuner

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"), pytest.mark.filterwarnings("ignore:Sparse")]

WIDTH = 8
LIBRARIES = {"spmm": {"torch_mm": baselines.device_mm}, "sddmm": {"torch_gather": baselines.device_gather}}


@pytest.fixture(scope="module")
def where(tmp_path_factory) -> CudaBackend:
    return CudaBackend(SharedMemory(tmp_path_factory.mktemp("gpu")), bits=True)


@pytest.fixture
def on_gpu(where, monkeypatch) -> CudaBackend:
    """Use the CPU as the emulated GPU, without measurements: see test_sparse_cuda.py for these."""
    monkeypatch.setattr(CudaBackend, "policy", lambda self: CsrPolicy(effort=MeasurementBudget(seconds=1e-9)))
    monkeypatch.setattr("sparloom.tuning.sparse.cuda_estimate.measure_cuda_rates",
                        lambda gpu: CudaRates.of_data_sheet(gpu.device))
    monkeypatch.setattr(core_calls, "_core", lambda: None)  # it would take the tensors for those of the processor
    monkeypatch.setattr(tensor_backends, "CUDA_SPARSE_LIBRARIES", LIBRARIES)
    monkeypatch.setattr("sparloom.nn.pattern_cache.tensor_backend",
                        lambda device: CudaTensorBackend(device, where, lambda: 0))
    return where


def compare(function, exact, inputs: list[torch.Tensor], seen: torch.Tensor) -> None:
    found, wide = with_gradients(function, inputs, seen), [tensor.double() for tensor in inputs]
    expected = with_gradients(exact, wide, seen.double())
    magnitudes = with_gradients(exact, [tensor.abs() for tensor in wide], seen.double().abs())
    for actual, right, magnitude in zip(found, expected, magnitudes, strict=True):
        assert_within(actual, right, magnitude, roundings=max(ROWS, COLS) + 3)


def parts(matrix: torch.Tensor, values: torch.Tensor) -> tuple:
    return matrix.crow_indices(), matrix.col_indices(), values, matrix.shape


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_spmm_and_its_gradients_are_computed_there(on_gpu, reduce) -> None:
    a, launched = sparse_tensor(), on_gpu.gpu.launched
    compare(lambda values, x: spmm(parts(a, values), x, reduce=reduce),
            lambda values, x: dense_spmm(a, values, x, reduce), [a.values(), dense(COLS, WIDTH)],
            dense(ROWS, WIDTH, seed=2))
    assert on_gpu.gpu.launched > launched


def test_sddmm_and_its_gradients_are_computed_there(on_gpu) -> None:
    a = sparse_tensor()
    compare(lambda values, q, k: sddmm(parts(a, values), q, k), lambda values, q, k: dense_sddmm(a, values, q, k),
            [a.values(), dense(ROWS, WIDTH), dense(COLS, WIDTH, seed=3)], dense(a.values().shape[0], seed=2))


def test_attention_and_its_gradients_are_computed_there(on_gpu) -> None:
    a, launched = sparse_tensor(), on_gpu.gpu.launched
    inputs = [dense(rows, 2, WIDTH, seed=rows) for rows in (ROWS, COLS, COLS)]
    seen = dense(ROWS, 2, WIDTH, seed=2)
    found = with_gradients(lambda *heads: csr_attention(a, *heads), inputs, seen)
    wanted = with_gradients(lambda *heads: dense_attention(a, *heads), [each.double() for each in inputs],
                            seen.double())
    for actual, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(actual.double(), right, atol=1e-5, rtol=1e-4)
    assert on_gpu.gpu.launched > launched


def test_maxima_and_their_gradients_are_computed_there(on_gpu) -> None:
    a, launched = sparse_tensor(), on_gpu.gpu.launched
    inputs, seen = [a.values(), dense(COLS, WIDTH)], dense(ROWS, WIDTH, seed=2)
    result, *gradients = with_gradients(lambda values, x: spmm(parts(a, values), x, reduce="max"), inputs, seen)
    assert on_gpu.gpu.launched > launched
    assert torch.equal(result, dense_largest(a, *inputs))
    exact = with_gradients(lambda values, x: dense_largest(a, values, x), [each.double() for each in inputs],
                           seen.double())[1:]
    for actual, right in zip(gradients, exact, strict=True):
        torch.testing.assert_close(actual.double(), right, rtol=0, atol=1e-5)


def test_of_equal_products_the_first_gets_the_gradient_there(on_gpu) -> None:
    a = sparse_tensor()
    values, x = torch.ones_like(a.values()), torch.full((COLS, WIDTH), -2.5)
    _, of_values, _ = with_gradients(lambda values, x: spmm(parts(a, values), x, reduce="max"), [values, x],
                                     torch.ones(ROWS, WIDTH))
    begins = a.crow_indices()[:-1][a.crow_indices().diff() > 0]
    assert torch.equal(of_values, torch.zeros_like(values).index_fill(0, begins, -2.5 * WIDTH))


def test_maxima_have_second_derivatives_there(on_gpu) -> None:
    a, seen = sparse_tensor(), dense(ROWS, WIDTH, seed=2)

    def second(function, values, x):
        inputs = [tensor.clone().requires_grad_() for tensor in (values, x)]
        first = torch.autograd.grad(function(*inputs).square(), inputs, seen.to(x.dtype), create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), inputs)

    x = dense(COLS, WIDTH)
    found = second(lambda values, x: spmm(parts(a, values), x, reduce="max"), a.values(), x)
    exact = second(lambda values, x: dense_largest(a, values, x), a.values().double(), x.double())
    for actual, right in zip(found, exact, strict=True):
        assert right.any()
        torch.testing.assert_close(actual.double(), right, rtol=0, atol=1e-5 * float(right.abs().max()))


def test_a_pattern_without_nonzeros_has_maxima_of_zero(on_gpu) -> None:
    crow, col = torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    found = with_gradients(lambda values, x: spmm((crow, col, values, (3, 5)), x, reduce="max"),
                           [torch.zeros(0), dense(5, WIDTH)], torch.ones(3, WIDTH))
    assert [tuple(each.shape) for each in found] == [(3, WIDTH), (0,), (5, WIDTH)]
    assert not any(each.any() for each in found)


@pytest.fixture
def short_numbers(on_gpu, monkeypatch) -> CudaBackend:
    """Let tensors of the CPU, which stand for a GPU's, have the types of a GPU."""
    monkeypatch.setitem(torch_integration.SUPPORTED_DTYPES, "cpu", torch_integration.SUPPORTED_DTYPES["cuda"])
    return on_gpu


short_types = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def compare_short(function, exact, inputs: list[torch.Tensor], seen: torch.Tensor) -> None:
    """Results and gradients are short, sums are not: 4 roundings of each product's share are allowed."""
    half_unit = torch.finfo(seen.dtype).eps / 2
    found, wide = with_gradients(function, inputs, seen), [tensor.double() for tensor in inputs]
    expected = with_gradients(exact, wide, seen.double())
    magnitudes = with_gradients(exact, [tensor.abs() for tensor in wide], seen.double().abs())
    for actual, right, magnitude in zip(found, expected, magnitudes, strict=True):
        assert actual.dtype == seen.dtype
        assert ((actual.double() - right).abs() <= 4 * half_unit * magnitude + ROWS * 2.0**-25).all()


@short_types
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_short_numbers_and_their_gradients_are_computed_there(short_numbers, dtype, reduce) -> None:
    a, launched = sparse_tensor(), short_numbers.gpu.launched
    compare_short(lambda values, x: spmm(parts(a, values), x, reduce=reduce),
                  lambda values, x: dense_spmm(a, values, x, reduce),
                  [a.values().to(dtype), dense(COLS, WIDTH).to(dtype)], dense(ROWS, WIDTH, seed=2).to(dtype))
    assert short_numbers.gpu.launched > launched


@short_types
def test_products_of_short_numbers_and_their_gradients(short_numbers, dtype) -> None:
    a = sparse_tensor()
    compare_short(lambda values, q, k: sddmm(parts(a, values), q, k), lambda values, q, k: dense_sddmm(a, values, q, k),
                  [each.to(dtype) for each in (a.values(), dense(ROWS, WIDTH), dense(COLS, WIDTH, seed=3))],
                  dense(a.values().shape[0], seed=2).to(dtype))


@short_types
def test_maxima_of_short_numbers_and_their_gradients(short_numbers, dtype) -> None:
    a, seen = sparse_tensor(), dense(ROWS, WIDTH, seed=2).to(dtype)
    inputs = [a.values().to(dtype), dense(COLS, WIDTH).to(dtype)]
    found = with_gradients(lambda values, x: spmm(parts(a, values), x, reduce="max"), inputs, seen)
    expected = with_gradients(lambda values, x: dense_largest(a, values, x), [each.double() for each in inputs],
                              seen.double())
    assert torch.equal(found[0], expected[0].to(dtype))
    for actual, right in zip(found[1:], expected[1:], strict=True):
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), right, rtol=torch.finfo(dtype).eps, atol=2.0**-17)


@short_types
def test_attention_of_short_numbers_and_its_gradients(short_numbers, dtype) -> None:
    a, seen = sparse_tensor(), dense(ROWS, 2, WIDTH, seed=2).to(dtype)
    inputs = [dense(rows, 2, WIDTH, seed=rows).to(dtype) for rows in (ROWS, COLS, COLS)]
    found = with_gradients(lambda *heads: csr_attention(a, *heads), inputs, seen)
    wanted = with_gradients(lambda *heads: dense_attention(a, *heads), [each.double() for each in inputs],
                            seen.double())
    for actual, right in zip(found, wanted, strict=True):
        assert actual.dtype == dtype
        allowed = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(actual.double(), right, rtol=allowed, atol=allowed)


@short_types
@pytest.mark.parametrize(("op", "name"), [(SpMM(), "torch_mm"), (SDDMM(), "torch_gather")], ids=["spmm", "sddmm"])
def test_products_of_torch_take_short_numbers(where, monkeypatch, op, name, dtype) -> None:
    """torch on a CPU does not multiply sparse matrices of these types, so its products are computed in float32."""
    monkeypatch.setattr(torch, "mm", lambda left, right: (left.to_dense().float() @ right.float()).to(dtype))
    there = np.random.default_rng(0).random((ROWS, COLS)) < 0.1
    pattern = Pattern.from_coo(*np.nonzero(there), there.shape)
    ones = SparseMatrix(pattern, np.ones(pattern.nnz))
    operands = op.operands(ones, WIDTH, seed=0)
    inputs = {key: torch.from_numpy(array).to(dtype) for key, array in operands.dense.items()}
    matrix = where.matrix(ones).with_values(bfloat16_as_uint16(torch.ones(pattern.nnz, dtype=dtype)))
    bits = Operands(matrix, {key: bfloat16_as_uint16(each) for key, each in inputs.items()})
    found = tensor_from_dlpack(LIBRARIES[op.name][name](matrix, 0)(bits))
    assert found.dtype == dtype
    exact = op.oracle(Operands(ones, {key: each.float().numpy() for key, each in inputs.items()}))
    torch.testing.assert_close(found.double(), torch.from_numpy(exact), rtol=torch.finfo(dtype).eps, atol=2.0**-17)


def test_bfloat16_is_decided_about_and_checked(where, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sparloom.tuning.sparse.cuda_estimate.measure_cuda_rates",
                        lambda gpu: CudaRates.of_data_sheet(gpu.device))
    monkeypatch.setattr(tuner, "race", lambda calls, **_: Race(
        tuple((1.0 if place == 1 else 2.0,) for place in range(len(calls))), 1))
    monkeypatch.setattr("sparloom.tuning.racing.duel", lambda rivals, **_: Race(((1.0,) * 6, (2.0,) * 6), 12))
    there = np.random.default_rng(0).random((ROWS, COLS)) < 0.2
    pattern, cache = Pattern.from_coo(*np.nonzero(there), there.shape), PlanCache(tmp_path)
    ready = Prepared(where.ones(pattern), where=where, cache=cache, libraries={}, policy=CsrPolicy(
        least_nonzeros=10, effort=MeasurementBudget(candidates=2, seconds=60.0)))
    values, x = (dense(*shape).bfloat16() for shape in ((pattern.nnz,), (COLS, WIDTH)))
    compute = CandidateSet._computed  # the second candidate seems to round the other way, as it may
    monkeypatch.setattr(CandidateSet, "_computed", lambda self, place, operands: (
        compute(self, place, operands) + np.uint16(place)))
    found = tensor_from_dlpack(ready.spmm(bfloat16_as_uint16(x), values=bfloat16_as_uint16(values)))
    full = torch.zeros(ROWS, COLS, dtype=torch.float64)
    full[torch.from_numpy(there)] = values.double()
    torch.testing.assert_close(found.double(), full @ x.double(), rtol=2.0**-8, atol=2.0**-17)
    (plan,) = ready._plans.values()
    assert plan.decision.reason.startswith("accepted")
    assert plan.choice.config == plan.decision.trials[1].candidate
    monkeypatch.setattr(CandidateSet, "_computed", lambda self, place, operands: bfloat16_as_uint16(
        torch.full((operands.matrix.pattern.rows, WIDTH), float(place)).bfloat16()).numpy())
    other = Prepared(where.ones(pattern), where=where, cache=PlanCache(None), libraries={}, policy=ready._policy)
    other.spmm(bfloat16_as_uint16(x), values=bfloat16_as_uint16(values))
    (plan,) = other._plans.values()
    assert "refused: other than the baseline" in plan.decision.reason


def test_tensors_of_two_types_are_promoted(short_numbers) -> None:
    a, x = sparse_tensor(), dense(COLS, WIDTH)
    torch.testing.assert_close(spmm(a, x.half()), spmm(a, x.half().float()), rtol=1e-6, atol=1e-6)
    q = dense(ROWS, WIDTH).half()
    torch.testing.assert_close(csr_attention(a, q, x.half(), x), csr_attention(a, q.float(), x.half().float(), x),
                               rtol=1e-6, atol=1e-6)
    with pytest.raises(TypeError, match=r"X is torch.float64: pass X.float\(\)"):
        spmm(a, x.double())


@pytest.mark.parametrize(("op", "name"), [(SpMM(), "torch_mm"), (SDDMM(), "torch_gather")], ids=["spmm", "sddmm"])
def test_products_of_torch_are_right(where, op, name) -> None:
    there = np.random.default_rng(0).random((ROWS, COLS)) < 0.1
    pattern = Pattern.from_coo(*np.nonzero(there), there.shape)
    matrix = SparseMatrix(pattern, np.linspace(-1, 1, pattern.nnz))
    operands = op.operands(matrix, WIDTH, seed=0)
    product = LIBRARIES[op.name][name](where.ones(pattern), 0)
    for inputs in (matrix, matrix.with_values(-2 * matrix.values)):
        found = product(Operands(where.matrix(inputs), operands.dense))
        assert_close(found, op.oracle(Operands(inputs, operands.dense)), terms=op.terms(pattern, WIDTH),
                     scale=op.scale(Operands(inputs, operands.dense)))


def test_operators_are_registered_for_gpus() -> None:
    for name in ("spmm", "spmm_transposed", "sddmm", "csr_attention", "csr_attention_backward", "spmm_max", "spmm_at",
                 "spmm_transposed_at", "sddmm_at"):
        for key in ("CPU", "CUDA"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"sparloom::{name}", key)


def test_without_cupy_the_remedy_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(Unsupported, match=r"no CuPy .*: pip install .*\[gpu\]\"\), on a machine with an NVIDIA GPU"):
        tensor_backend(torch.device("cuda"))


def test_tensors_on_two_devices_are_refused() -> None:
    a, x = sparse_tensor(), dense(COLS, WIDTH)
    with pytest.raises(ValueError, match=r"X is on meta and A on cpu: pass X.to\('cpu'\)"):
        spmm(a, x.to("meta"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_all_reductions_and_types_on_a_gpu(dtype) -> None:
    a, seen = sparse_tensor(), dense(ROWS, WIDTH, seed=2).to(dtype)
    inputs = [a.values().to(dtype), dense(COLS, WIDTH).to(dtype)]
    indices = a.crow_indices().cuda(), a.col_indices().cuda()
    for reduce, exact in (("sum", lambda values, x: dense_spmm(a, values, x, "sum")),
                          ("mean", lambda values, x: dense_spmm(a, values, x, "mean")),
                          ("max", lambda values, x: dense_largest(a, values, x))):
        expected = with_gradients(exact, [each.double() for each in inputs], seen.double())
        found = with_gradients(lambda values, x, reduce=reduce: spmm((*indices, values, a.shape), x, reduce=reduce),
                               [each.cuda() for each in inputs], seen.cuda())
        for actual, right in zip(found, expected, strict=True):
            assert (actual.dtype, actual.device.type) == (dtype, "cuda")
            allowed = 8 * torch.finfo(dtype).eps
            torch.testing.assert_close(actual.cpu().double(), right, rtol=allowed, atol=10 * allowed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use")
def test_gradients_on_a_gpu_are_those_of_the_cpu() -> None:
    a = sparse_tensor()
    inputs, seen = [a.values(), dense(COLS, WIDTH)], dense(ROWS, WIDTH, seed=2)
    expected = with_gradients(lambda values, x: dense_spmm(a, values, x, "sum"), [each.double() for each in inputs],
                              seen.double())
    indices = a.crow_indices().cuda(), a.col_indices().cuda()
    found = with_gradients(lambda values, x: spmm((*indices, values, a.shape), x), [each.cuda() for each in inputs],
                           seen.cuda())
    for actual, right in zip(found, expected, strict=True):
        assert actual.is_cuda
        torch.testing.assert_close(actual.cpu().double(), right, rtol=0, atol=1e-5)
