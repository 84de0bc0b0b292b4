"""Hand-written C as a kernel, and where the sources under kernels/ are."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sparloom
from sparloom.ir import Param

__all__ = ["Source", "kernel_folder", "kernel_source", "sources_digest"]

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


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


def sources_digest(relative_paths: Sequence[str]) -> str:
    """Hash sources under kernels/ with all that they include, 16 hexadecimal digits; names do not count.

    Raises:
        FileNotFoundError: there is no such source.
    """
    waiting, found = [kernel_source(relative) for relative in relative_paths], set()
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for name in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            waiting += [place for place in (path.parent / name, kernel_folder() / name) if place.is_file()][:1]
    texts = sorted(hashlib.sha256(path.read_bytes()).digest() for path in found)
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]
