"""The figure of a bench of CPU kernels."""

import pandas as pd
import pytest

from sparloom.report import draw_kernels

SECONDS = {"own": 1.0, "torch": 3.0, "mkl": 2.0, "scipy": 6.0}
TIMED = {"gemm": ("own", "torch"), "spmm": ("own", "torch", "mkl", "scipy"), "gemm_spmm": ("own", "torch", "mkl")}


@pytest.fixture
def frame():
    return pd.DataFrame([
        {"op": op, "matrix": matrix, "width": width, "method": method, "median": SECONDS[method]}
        for op, methods in TIMED.items() for matrix in (("",) if op == "gemm" else ("lap2d", "er"))
        for width in (32, 64) for method in methods])


def test_kernels_are_drawn_and_the_same_again(frame, tmp_path):
    for name in ("once", "again"):
        draw_kernels(frame, tmp_path / name, title="t")
    for ending in (".png", ".svg"):
        assert (tmp_path / f"once{ending}").read_bytes() == (tmp_path / f"again{ending}").read_bytes()
