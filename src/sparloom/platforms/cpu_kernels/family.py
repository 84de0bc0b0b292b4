"""What the platform asks of the kernels of one operation."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from sparloom.ops import DenseOperands, Op, Operands
from sparloom.platforms.sweep import Call, Check
from sparloom.space import Config, ConfigSpace

__all__ = ["Allocate", "Family", "Given", "Rival"]

Given = Operands | DenseOperands

Allocate = Callable[[tuple[int, ...], type[np.generic]], np.ndarray]
"""Makes an array of a shape and a type, with any content."""

Rival = Callable[[Given, np.ndarray], Call]
"""Binds somebody else's kernel to operands and a result, to be timed between ours."""


class Family(Protocol):
    """Kernels of one operation: which there are, and how one is bound to arrays.

    Whatever a kernel needs besides (partitions, workspaces) is made by `bind`, which nobody times. Calls of one family
    may share a workspace, so one thread at a time may execute them.

    Args:
        threads: of every call.
        width: columns of the dense operand for which `space` is made; GEMM does not ask.
    """

    threads: int
    width: int

    def space(self) -> ConfigSpace:
        """List the configurations."""

    def result(self, operands: Given) -> np.ndarray:
        """Allocate what a kernel overwrites."""

    def bind(self, operands: Given, config: Config, result: np.ndarray) -> Call:
        """Bind the kernel of a legal configuration to arrays."""

    def rebind(self, call: Any, operands: Given, result: np.ndarray) -> None:
        """Point a call of `bind` to other arrays of the same shapes, for much less than binding costs.

        Args:
            call: keeps them alive until the next time.
        """

    def check(self, op: Op, operands: Given, *, seed: int) -> Check:
        """Know the result, or a part of it, in float64."""
