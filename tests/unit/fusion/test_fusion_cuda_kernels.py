"""The hand-written CUDA kernels compile, for both element types."""

import pytest

from sparloom.errors import Unsupported
from sparloom.jit import check_cuda, kernel_source


@pytest.mark.parametrize("element", ["float", "double"])
def test_fused_kernels_compile(element):
    text = f"#define ELEMENT {element}\n" + kernel_source("cuda/fused.cu").read_text(encoding="utf-8")
    try:
        check_cuda(text)
    except Unsupported as error:
        pytest.skip(str(error))
