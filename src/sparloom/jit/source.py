"""Hand-written C as a kernel, and where the sources under kernels/ are."""

from dataclasses import dataclass
from pathlib import Path

import sparloom
from sparloom.ir import Param

__all__ = ["Source", "kernel_folder", "kernel_source"]


@dataclass(frozen=True)
class Source:
    """C text that defines `void name(params)`: pointers for buffers, values for scalars, in order."""

    name: str
    params: tuple[Param, ...]
    text: str


def kernel_folder() -> Path:
    """Find the folder kernels/ of the checkout.

    Raises:
        FileNotFoundError: the package was copied out of its checkout.
    """
    folder = Path(sparloom.__file__).resolve().parents[2] / "kernels"
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}: sparloom runs from its checkout, pip install -e . in it")
    return folder


def kernel_source(relative: str) -> Path:
    """Find a source under kernels/, such as "spade/trace.cpp".

    Raises:
        FileNotFoundError: there is no such file; the message lists those of the folder.
    """
    folder = kernel_folder()
    path = folder / relative
    if not path.is_file():
        near = sorted(str(other.relative_to(folder)) for other in folder.rglob("*") if other.is_file())
        raise FileNotFoundError(f"no kernel source {relative!r} in {folder}; there are: {', '.join(near) or 'none'}")
    return path
