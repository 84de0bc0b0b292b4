"""Fused programs run by the interpreter of the loop IR, which notices races and accesses out of bounds."""

from collections.abc import Sequence

from sparloom.ir import Kernel, interpret

__all__ = ["InterpretedLibrary"]


class InterpretedLibrary:
    """Stands in for `sparloom.jit.compile_c` and the library that it returns."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self._kernels = {kernel.name: kernel for kernel in kernels}

    def function(self, name: str):
        """Look up a kernel; it takes its arguments in order."""
        kernel = self._kernels[name]
        return lambda *values: interpret(
            kernel, **dict(zip((param.name for param in kernel.params), values, strict=True)))

    def set_threads(self, count: int) -> None:
        """Iterations run one after the other."""
