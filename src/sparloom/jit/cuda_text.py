"""The text of a hand-written CUDA source with its macros: complete, so that any compiler takes it without a folder."""

import re
from collections.abc import Mapping

from sparloom.jit.source import kernel_source

__all__ = ["cuda_text"]

_INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


def cuda_text(relative: str, macros: Mapping[str, int | str]) -> str:
    """Put macros before a source under kernels/ and its own headers into it.

    Args:
        relative: such as "cuda/spmm.cu"; headers are found beside it.

    Raises:
        FileNotFoundError: there is no such source, or a header of it is missing.
    """
    defined = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    return defined + _included(relative)


def _included(relative: str) -> str:
    folder, text = relative.rpartition("/")[0], kernel_source(relative).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: _included(f"{folder}/{found[1]}"), text)
