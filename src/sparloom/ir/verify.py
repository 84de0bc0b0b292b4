"""Whether a kernel is well formed."""

from sparloom.ir.nodes import Kernel

__all__ = ["verify"]


def verify(kernel: Kernel) -> None:
    pass
