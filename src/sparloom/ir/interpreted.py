"""Kernels without a compiler."""

from collections.abc import Callable, Sequence

from sparloom.ir.interpret import interpret
from sparloom.ir.nodes import Kernel

__all__ = ["InterpretedLibrary"]


class InterpretedLibrary:
    """Stands in for `sparloom.jit.compile_c` and the library that it returns: kernels are interpreted, which is slow.

    `sparloom.ragged.Structure(given, InterpretedLibrary)` builds its tables so.
    """

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self._kernels = {kernel.name: kernel for kernel in kernels}

    def function(self, name: str) -> Callable[..., None]:
        """Look up a kernel; it takes its arguments in order."""
        kernel = self._kernels[name]
        return lambda *values: interpret(
            kernel, **dict(zip((param.name for param in kernel.params), values, strict=True)))

    @property
    def threads(self) -> int:
        """One."""
        return 1

    def set_threads(self, count: int) -> None:
        """Iterations run one after the other."""
