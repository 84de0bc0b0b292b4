"""What all platforms share: strip-mined loops and their order (COGNATE §3.2, appendix E)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = [
    "ENCODED_WIDTH", "I1", "I2", "J1", "J2", "K1", "K2", "K3", "LOOPS", "SharedSchedule", "encode", "insert_after",
]

I1, I2, J1, J2, K1, K2, K3 = range(1, 8)
"""Loop numbers of appendix E: 2 is the outer part of a split loop, 1 the inner part; k3 is a third level of k."""

LOOPS = ("i1", "i2", "j1", "j2", "k1", "k2", "k3")
ENCODED_WIDTH = len(LOOPS) ** 2 + 4


@dataclass(frozen=True)
class SharedSchedule:
    """Extents of the inner loops and the order of all seven.

    Args:
        I: extent of i1, sparse rows per tile.
        J: extent of j1, sparse columns per tile.
        K: extent of k1, dense columns per tile.
        K_inner: extent of k3; 1 where a platform splits k only once (CPU, SPADE).
        order: the seven loop numbers, outermost first.
    """

    I: int  # noqa: E741 (the paper's letter)
    J: int
    K: int
    K_inner: int
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("I", "J", "K", "K_inner"):
            if getattr(self, name) < 1:
                raise ValueError(f"extent {name} = {getattr(self, name)} of a shared schedule is below 1")
        if sorted(self.order) != list(range(1, len(LOOPS) + 1)):
            raise ValueError(f"order {self.order} is not a permutation of the loop numbers 1..{len(LOOPS)}")


def insert_after(order: Sequence[int], anchor: int, loop: int) -> tuple[int, ...]:
    """Put a loop of extent 1 right inside another: the map pi of COGNATE §3.2."""
    place = list(order).index(anchor) + 1
    return (*order[:place], loop, *order[place:])


def encode(shared: SharedSchedule, numbers: Literal["log2", "raw"] = "log2") -> np.ndarray:
    """Write a schedule as the 53 numbers that the model reads.

    Returns:
        float32 (53,): the 7 x 7 permutation, one row per loop number and one column per position, then I, J, K and
        K_inner as log2(x) / 16 or as they are.

    Source: COGNATE table 6 (width 53). Appendix E prints the order and three extents, 52 numbers; the fourth extent is
    that of k3, which differs from 1 on GPUs only.
    """
    permutation = np.zeros((len(LOOPS), len(LOOPS)), np.float32)
    permutation[np.asarray(shared.order) - 1, np.arange(len(LOOPS))] = 1
    extents = np.array([shared.I, shared.J, shared.K, shared.K_inner], np.float32)
    if numbers == "log2":
        extents = np.log2(extents) / 16
    return np.concatenate([permutation.ravel(), extents])
