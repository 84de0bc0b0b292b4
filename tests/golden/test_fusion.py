"""Printed code and dependences of fused functions; tests/unit/fusion runs the same functions."""

import numpy as np
import pytest
from fused_cases import CASES, operands

from sparloom.errors import Unsupported
from sparloom.fusion import fuse
from sparloom.jit import check_cuda


@pytest.mark.parametrize("name", ["gemm_spmm", "stencil", "smoothed_in_place"])
def test_the_generated_code(name, golden):
    function, names = CASES[name]
    arguments = operands(names, n=6, real=np.float32, seed=0)
    golden(f"fusion/{name}.c", fuse(function).source(*arguments))


@pytest.mark.parametrize("name", CASES)
def test_the_dependences(name, golden):
    function, names = CASES[name]
    arguments = operands(names, n=6, real=np.float32, seed=0)
    golden(f"fusion/{name}.txt", fuse(function).dependences(*arguments) + "\n")


@pytest.mark.parametrize("name", CASES)
def test_the_cuda_text_compiles(name, golden):
    function, names = CASES[name]
    texts = fuse(function).cuda(*operands(names, n=6, real=np.float32, seed=0))
    if name == "gemm_spmm":
        golden("fusion/gemm_spmm.cu", "\n".join(texts))
    try:
        for text in texts:
            check_cuda(text)
    except Unsupported as error:
        pytest.skip(str(error))
