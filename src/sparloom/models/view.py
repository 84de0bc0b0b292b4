"""What models read of a matrix: capped sites, size, statistics; each computed when a model asks for it."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from sparloom.data import MatrixInput, cap
from sparloom.models.sparseconv import conv_flops
from sparloom.sparse import Pattern, WalkStatistics, statistics, walk_statistics

__all__ = ["MatrixView"]


class MatrixView:
    """One matrix as models see it.

    Args:
        shape, nnz: of the matrix itself.
        load_input: makes the featurizer's input; called at most once.
        load_statistics: makes the pattern statistics; called at most once.
        load_walks: makes what `walk_statistics` gives; called at most once.
    """

    def __init__(
        self,
        *,
        shape: tuple[int, int],
        nnz: int,
        load_input: Callable[[], MatrixInput],
        load_statistics: Callable[[], Mapping[str, float]],
        load_walks: Callable[[], WalkStatistics],
    ) -> None:
        self.shape, self.nnz = shape, nnz
        self._load_input, self._load_statistics, self._load_walks = load_input, load_statistics, load_walks

    @classmethod
    def of(cls, pattern: Pattern, name: str = "") -> "MatrixView":
        """Look at a pattern that is in memory."""
        return cls(
            shape=pattern.shape, nnz=pattern.nnz,
            load_input=lambda: cap(pattern, name=name, cost=conv_flops),
            load_statistics=lambda: statistics(pattern),
            load_walks=lambda: walk_statistics(pattern),
        )

    @classmethod
    def stored(
        cls,
        given: MatrixInput,
        numbers: Mapping[str, float] | None = None,
        walks: Callable[[], WalkStatistics] | None = None,
    ) -> "MatrixView":
        """Look at a matrix whose input (and statistics, also of walks) were stored, without its nonzeros."""
        def absent(name: str) -> Callable[[], Any]:
            def fail() -> None:
                raise ValueError(f"the {name} of {given.name} were not given: pass them to MatrixView.stored")

            return fail

        return cls(shape=given.shape, nnz=given.nnz, load_input=lambda: given,
                   load_statistics=absent("statistics") if numbers is None else lambda: numbers,
                   load_walks=walks or absent("statistics of walks"))

    @cached_property
    def input(self) -> MatrixInput:
        """Sites for the featurizer, capped in number and cost."""
        return self._load_input()

    @cached_property
    def statistics(self) -> Mapping[str, float]:
        """Pattern statistics by name."""
        return self._load_statistics()

    @cached_property
    def walks(self) -> WalkStatistics:
        """Statistics of tiled walks."""
        return self._load_walks()
