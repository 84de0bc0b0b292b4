"""What models read of a matrix: capped sites, size, statistics; each computed when a model asks for it."""

from collections.abc import Callable, Mapping
from functools import cached_property

from sparloom.data import MatrixInput, cap
from sparloom.models.sparseconv import conv_flops
from sparloom.sparse import Pattern, statistics

__all__ = ["MatrixView"]


class MatrixView:
    """One matrix as models see it.

    Args:
        shape, nnz: of the matrix itself.
        load_input: makes the featurizer's input; called at most once.
        load_statistics: makes the pattern statistics; called at most once.
    """

    def __init__(
        self,
        *,
        shape: tuple[int, int],
        nnz: int,
        load_input: Callable[[], MatrixInput],
        load_statistics: Callable[[], Mapping[str, float]],
    ) -> None:
        self.shape, self.nnz = shape, nnz
        self._load_input, self._load_statistics = load_input, load_statistics

    @classmethod
    def of(cls, pattern: Pattern, name: str = "") -> "MatrixView":
        """Look at a pattern that is in memory."""
        return cls(
            shape=pattern.shape, nnz=pattern.nnz,
            load_input=lambda: cap(pattern, name=name, cost=conv_flops),
            load_statistics=lambda: statistics(pattern),
        )

    @classmethod
    def stored(cls, given: MatrixInput, numbers: Mapping[str, float] | None = None) -> "MatrixView":
        """Look at a matrix whose input (and statistics) were stored, without its nonzeros."""
        def absent() -> Mapping[str, float]:
            raise ValueError(f"the statistics of {given.name} were not given: pass them to MatrixView.stored")

        return cls(shape=given.shape, nnz=given.nnz, load_input=lambda: given,
                   load_statistics=absent if numbers is None else lambda: numbers)

    @cached_property
    def input(self) -> MatrixInput:
        """Sites for the featurizer, capped in number and cost."""
        return self._load_input()

    @cached_property
    def statistics(self) -> Mapping[str, float]:
        """Pattern statistics by name."""
        return self._load_statistics()
