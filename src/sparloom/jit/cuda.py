"""CUDA text of the hand-written sources under kernels/."""

import re
from collections.abc import Mapping

from sparloom.jit.toolchain import kernel_source

_CUDA_INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


def cuda_text(relative: str, macros: Mapping[str, int | str]) -> str:
    """Return the text of a source under kernels/ with macros defined and headers inlined, so that NVRTC can compile it.

    Args:
        relative: such as "cuda/spmm.cu"; headers are found beside it.

    Raises:
        FileNotFoundError: there is no such source, or one of its headers is missing.
    """
    defined = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    return defined + _inlined(relative)


def _inlined(relative: str) -> str:
    folder, text = relative.rpartition("/")[0], kernel_source(relative).read_text(encoding="utf-8")
    return _CUDA_INCLUDE.sub(lambda found: _inlined(f"{folder}/{found[1]}"), text)
