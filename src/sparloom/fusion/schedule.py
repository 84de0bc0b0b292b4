"""A tile schedule: which iterations of two fused loops run together, and in which order."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

__all__ = ["TileSchedule"]

ARRAYS = {"first": np.int64, "second": np.int32, "second_ptr": np.int64, "needed": np.uint8}


@dataclass(frozen=True, eq=False)
class TileSchedule:
    """Tiles in two wavefronts with a barrier between them; the tiles of a wavefront do not depend on each other.

    Loop one has the iterations I, loop two the iterations J:

        for v in tiles of wavefront 0:                                  in parallel
            for i in first[v] .. first[v + 1]:                          loop one
            for j in second[second_ptr[v] .. second_ptr[v + 1]]:        loop two: all it reads lies in this tile
        barrier
        for v in tiles of wavefront 1:                                  in parallel
            for j in second[second_ptr[tiles[0] + v] .. ]:              loop two: the rest

    Args:
        tiles: tiles of wavefront 0 and of wavefront 1.
        first: (tiles[0] + 1,) int64, rises from 0 to |I|.
        second: (|J|,) int32, every iteration of loop two once, in order of execution.
        second_ptr: (tiles[0] + tiles[1] + 1,) int64, rises from 0 to |J|.
        needed: (|I|,) uint8, 1 where wavefront 1 reads what iteration i of loop one wrote. The others' results are
            read in their own tile only.
        build_seconds: what making it took; not compared.

    Raises:
        ValueError: the type or size of an array is not as above. Its content is checked by `check_schedule` only.

    Source: Loop Fusion in Matrix Multiplications with Sparse Dependence, Listing 3 and §4.
    """

    tiles: tuple[int, int]
    first: np.ndarray
    second: np.ndarray
    second_ptr: np.ndarray
    needed: np.ndarray
    build_seconds: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        for name, dtype in ARRAYS.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
                raise ValueError(f"{name} is {array.dtype} of shape {array.shape}: it must be a contiguous list of "
                                 f"{np.dtype(dtype)}")
        sizes = {"first": self.tiles[0] + 1, "second_ptr": sum(self.tiles) + 1}
        for name, size in sizes.items():
            if getattr(self, name).size != size:
                raise ValueError(f"{name} has {getattr(self, name).size} elements: {self.tiles} tiles need {size}")

    @property
    def iterations(self) -> tuple[int, int]:
        """|I| and |J|."""
        return self.needed.size, self.second.size

    @cached_property
    def natural(self) -> bool:
        """Whether loop two runs in its natural order."""
        return np.array_equal(self.second, np.arange(self.second.size))

    @property
    def fused(self) -> int:
        """Iterations of loop two in wavefront 0."""
        return int(self.second_ptr[self.tiles[0]])

    @property
    def fused_ratio(self) -> float:
        """Fused iterations over |I| + |J| (Equation 3): at most 1/2 for a square operand."""
        return self.fused / max(1, sum(self.iterations))

    @property
    def fused_rows(self) -> float:
        """Share of loop two that is fused, in [0, 1]."""
        return self.fused / max(1, self.second.size)

    @property
    def largest_tile(self) -> int:
        """Most iterations of loop one in a tile: the rows of D1 that a thread keeps."""
        return int(np.diff(self.first).max(initial=0))

    @property
    def bytes(self) -> int:
        """Memory of the arrays."""
        return sum(getattr(self, name).nbytes for name in ARRAYS)

    def digest(self) -> str:
        """Hash the schedule; 64 hexadecimal digits, the same on every machine."""
        content = hashlib.sha256(np.array(self.tiles, dtype="<i8").tobytes())
        for name, dtype in ARRAYS.items():
            content.update(getattr(self, name).astype(np.dtype(dtype).newbyteorder("<"), copy=False).tobytes())
        return content.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TileSchedule):
            return NotImplemented
        arrays = (np.array_equal(getattr(self, name), getattr(other, name)) for name in ARRAYS)
        return self.tiles == other.tiles and all(arrays)

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        ones, twos = self.iterations
        return f"TileSchedule({ones} + {twos} iterations, {self.tiles} tiles, {self.fused_rows:.1%} of loop two fused)"
