"""Printed code and dependences of fused functions; tests/unit/fusion runs the same functions."""

import numpy as np
import pytest
from fused_cases import CASES, operands

from sparloom.fusion import fuse


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
