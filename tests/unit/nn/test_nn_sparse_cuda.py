"""Sparse operations on tensors of a GPU: registered for one, and with CPU tensors on an emulated one right."""

import sys

import numpy as np
import pytest
import torch
from cuda_emulator import Emulator
from emulated_gpu import EmulatedGpu
from sparse_tensors import (
    COLS,
    ROWS,
    assert_within,
    dense,
    dense_attention,
    dense_sddmm,
    dense_spmm,
    sparse_tensor,
    with_gradients,
)

from sparloom.dispatch.csr import CsrPolicy, CudaPlace
from sparloom.dispatch.csr.cuda_rates import CudaRates
from sparloom.errors import Unsupported
from sparloom.nn import csr_attention, cuda_rivals, sddmm, spmm, tensor_place
from sparloom.nn.tensor_place import CudaTensors, tensors_on
from sparloom.ops import SDDMM, Operands, SpMM, assert_close
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"), pytest.mark.filterwarnings("ignore:Sparse")]

WIDTH = 8
LIBRARIES = {"spmm": {"torch_mm": cuda_rivals.torch_mm}, "sddmm": {"torch_gather": cuda_rivals.torch_gather}}


class SharedMemory(EmulatedGpu):
    """An emulated GPU whose memory is that of the processor, so that tensors of the CPU are on it."""

    def upload(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return Emulator.empty(self, shape, dtype)

    def adopt(self, array: torch.Tensor | np.ndarray, name: str, *, copies: bool = True) -> np.ndarray:
        assert not getattr(array, "requires_grad", False), f"{name} is followed by autograd"
        return np.ascontiguousarray(np.from_dlpack(array))


@pytest.fixture(scope="module")
def where(tmp_path_factory) -> CudaPlace:
    return CudaPlace(SharedMemory(tmp_path_factory.mktemp("gpu")))


@pytest.fixture
def on_gpu(where, monkeypatch) -> CudaPlace:
    """Take the CPU for the emulated GPU, on which nothing is measured: see test_csr_cuda.py for that."""
    monkeypatch.setattr(CudaPlace, "policy", lambda self: CsrPolicy(least_seconds=1e9))
    monkeypatch.setattr("sparloom.dispatch.csr.cuda_rates.measure_cuda_rates",
                        lambda gpu: CudaRates.of_data_sheet(gpu.device))
    monkeypatch.setattr(tensor_place, "CUDA_SPARSE_LIBRARIES", LIBRARIES)
    monkeypatch.setattr("sparloom.nn.known_patterns.tensors_on", lambda device: CudaTensors(device, where, lambda: 0))
    return where


def compare(function, exact, given: list[torch.Tensor], seen: torch.Tensor) -> None:
    found, wide = with_gradients(function, given, seen), [tensor.double() for tensor in given]
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
    given = [dense(rows, 2, WIDTH, seed=rows) for rows in (ROWS, COLS, COLS)]
    seen = dense(ROWS, 2, WIDTH, seed=2)
    found = with_gradients(lambda *heads: csr_attention(a, *heads), given, seen)
    wanted = with_gradients(lambda *heads: dense_attention(a, *heads), [each.double() for each in given], seen.double())
    for actual, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(actual.double(), right, atol=1e-5, rtol=1e-4)
    assert on_gpu.gpu.launched > launched


def test_what_has_no_kernels_there_is_refused(on_gpu) -> None:
    with pytest.raises(Unsupported, match="spmm_max on a GPU: kernels are chosen for spmm, sddmm, attention there"):
        spmm(sparse_tensor(), dense(COLS, WIDTH), reduce="max")


@pytest.mark.parametrize(("op", "name"), [(SpMM(), "torch_mm"), (SDDMM(), "torch_gather")], ids=["spmm", "sddmm"])
def test_products_of_torch_are_right(where, op, name) -> None:
    there = np.random.default_rng(0).random((ROWS, COLS)) < 0.1
    pattern = Pattern.from_coo(*np.nonzero(there), there.shape)
    matrix = SparseMatrix(pattern, np.linspace(-1, 1, pattern.nnz))
    operands = op.operands(matrix, WIDTH, seed=0)
    product = LIBRARIES[op.name][name](where.matrix(matrix), 0)
    assert_close(product(operands.dense), op.oracle(Operands(matrix, operands.dense)),
                 terms=op.terms(pattern, WIDTH), scale=op.scale(operands))


def test_operators_are_registered_for_gpus() -> None:
    for name in ("spmm", "spmm_transposed", "sddmm", "csr_attention", "csr_attention_backward"):
        for key in ("CPU", "CUDA"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"sparloom::{name}", key)


def test_without_cupy_the_remedy_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(Unsupported, match=r"no CuPy .*: pip install -e \"\.\[gpu\]\" on a machine with an NVIDIA GPU"):
        tensors_on(torch.device("cuda"))


def test_tensors_in_two_places_are_refused() -> None:
    a, x = sparse_tensor(), dense(COLS, WIDTH)
    with pytest.raises(ValueError, match=r"X is on meta and A on cpu: pass X.to\('cpu'\)"):
        spmm(a, x.to("meta"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use")
def test_gradients_on_a_gpu_are_those_of_the_cpu() -> None:
    a = sparse_tensor()
    given, seen = [a.values(), dense(COLS, WIDTH)], dense(ROWS, WIDTH, seed=2)
    expected = with_gradients(lambda values, x: dense_spmm(a, values, x, "sum"), [each.double() for each in given],
                              seen.double())
    indices = a.crow_indices().cuda(), a.col_indices().cuda()
    found = with_gradients(lambda values, x: spmm((*indices, values, a.shape), x), [each.cuda() for each in given],
                           seen.cuda())
    for actual, right in zip(found, expected, strict=True):
        assert actual.is_cuda
        torch.testing.assert_close(actual.cpu().double(), right, rtol=0, atol=1e-5)
