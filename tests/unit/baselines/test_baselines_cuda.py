"""GPU baselines: listed only if they are installed, bound to memory of the device."""

import numpy as np
import pytest
from emulated_gpu import SharedMemory

from sparloom.baselines import cuda as sparse_vendor
from sparloom.baselines import vendor_sparse
from sparloom.ops import SDDMM, CsrAttention, SpMM, assert_close
from sparloom.platforms import CudaPlatform
from sparloom.platforms.cuda import DeviceOperands
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # torch says that they are in beta


@pytest.fixture
def platform(tmp_path, monkeypatch) -> CudaPlatform:
    made = CudaPlatform("cuda", "h200", 16)
    made.gpu = SharedMemory(tmp_path)
    monkeypatch.setattr(sparse_vendor, "CupyGpu", SharedMemory)
    return made


def test_algorithms_are_named_by_operation(platform):
    for op, names in ((SpMM(), ["vendor=cusparse", "vendor=cusparse_alg2"]), (SDDMM(), ["vendor=cusparse"]),
                      (CsrAttention(2), [])):
        found = vendor_sparse(platform, op)
        assert [config.key for config in found] == names
        assert {config.space for config in found} <= {"vendor"}


def test_without_cupy_no_baselines_are_listed(platform, monkeypatch):
    monkeypatch.undo()
    assert not vendor_sparse(platform, SpMM())


def test_sampled_products_are_written_where_kernels_write(platform):
    there = np.random.default_rng(0).random((7, 9)) < 0.4
    pattern = Pattern.from_coo(*np.nonzero(there), there.shape)
    operands = SDDMM().operands(SparseMatrix(pattern, np.linspace(-1, 1, pattern.nnz, dtype=np.float32)), 16, seed=0)
    (bind,) = vendor_sparse(platform, SDDMM()).values()
    result = np.full(pattern.nnz, np.nan, np.float32)
    bind(DeviceOperands.on(platform.gpu, operands), result)()
    assert_close(result, SDDMM().oracle(operands), terms=SDDMM().terms(pattern, 16), scale=SDDMM().scale(operands))
