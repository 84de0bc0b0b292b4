"""Libraries that compute sparse products in float64 are right, and give float64."""

import numpy as np
import pytest
import scipy.sparse

from sparloom.baselines import SPARSE_BASELINES
from sparloom.errors import Unsupported
from sparloom.ops import SDDMM, CsrAttention, SpMM, assert_close
from sparloom.sparse import Pattern, SparseMatrix

OPS = {"spmm": SpMM(), "sddmm": SDDMM(), "attention": CsrAttention(2)}
COMPILED = ("numba",)  # compiles for some seconds, for each type


@pytest.mark.filterwarnings("ignore:Sparse")  # torch says that they are in beta
@pytest.mark.parametrize(("op", "name"), [
    (op, name) for op, named in SPARSE_BASELINES.items() for name in named if name not in COMPILED])
def test_results_are_float64(op, name):
    a = scipy.sparse.random_array((60, 60), density=0.1, format="csr", rng=np.random.default_rng(0))
    matrix = SparseMatrix(Pattern.from_scipy(a), np.ones(a.nnz) if op == "sddmm" else a.data, np.float64)
    operands = OPS[op].operands(matrix, 16, seed=0).astype(np.float64)
    try:
        found = np.asarray(SPARSE_BASELINES[op][name](operands, 1)())
    except (Unsupported, ImportError) as error:
        pytest.skip(str(error))
    assert found.dtype == np.float64
    assert_close(found, OPS[op].oracle(operands), terms=OPS[op].terms(matrix.pattern, 16),
                 scale=OPS[op].scale(operands))


@pytest.mark.timeout(60)  # it would wait for ever
def test_a_python_for_dgl_that_prints_much_and_fails_is_named(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' 'w' >&2\n"
                      "echo >&2\necho 'ImportError: no dgl' >&2\n")
    python.chmod(0o755)
    monkeypatch.setenv("SPARLOOM_DGL_PYTHON", str(python))
    matrix = SparseMatrix(Pattern((2, 2), np.arange(3), np.arange(2, dtype=np.int32)), np.ones(2, np.float32))
    with pytest.raises(Unsupported, match="does not compute with DGL: ImportError: no dgl"):
        SPARSE_BASELINES["spmm"]["dgl"](OPS["spmm"].operands(matrix, 4, seed=0), 1)
