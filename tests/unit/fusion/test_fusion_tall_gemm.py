"""The tall GEMM by itself."""

import numpy as np
import pytest

from sparloom.fusion import Variant, tall_gemm
from sparloom.ops import assert_close


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "inner", "width"), [(1000, 32, 32), (97, 5, 19), (1, 3, 1)])
def test_the_product_equals_numpy(rows, inner, width, dtype):
    rng = np.random.default_rng(3)
    left, right = rng.uniform(-1, 1, (rows, inner)).astype(dtype), rng.uniform(-1, 1, (inner, width)).astype(dtype)
    call, result = tall_gemm(left, right, threads=2, variant=Variant(stream_first=True))
    result.fill(np.nan)
    call()
    assert result.dtype == dtype
    assert_close(result, left.astype(np.float64) @ right.astype(np.float64), terms=inner)


def test_mismatched_factors_are_rejected():
    with pytest.raises(ValueError, match="4 x 3 times 2 x 5: give as many rows of right as columns of left"):
        tall_gemm(np.zeros((4, 3)), np.zeros((2, 5)), threads=1, variant=Variant())
