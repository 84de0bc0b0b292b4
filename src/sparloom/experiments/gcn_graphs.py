"""Which matrices of a corpus are graphs to train on."""

from collections.abc import Sequence
from dataclasses import dataclass

from sparloom.sparse import Corpus, MatrixEntry

__all__ = ["GraphChoice"]


@dataclass(frozen=True)
class GraphChoice:
    """Square matrices by kind and size.

    Args:
        kinds: words, one of which occurs in the kind of a matrix.
        least_nonzeros, most_nonzeros, most_rows: bounds, themselves included.
    """

    kinds: Sequence[str]
    least_nonzeros: int
    most_nonzeros: int
    most_rows: int

    def of(self, corpus: Corpus) -> list[MatrixEntry]:
        """List them, smallest first.

        Raises:
            ValueError: there is none.
        """
        found = [entry for entry in corpus.entries() if entry.rows == entry.cols and entry.rows <= self.most_rows and
                 self.least_nonzeros <= entry.nnz <= self.most_nonzeros and
                 any(kind in entry.kind for kind in self.kinds)]
        if not found:
            raise ValueError(f"no square matrix with {self.least_nonzeros} to {self.most_nonzeros} nonzeros whose kind "
                             f"is one of {', '.join(self.kinds)}: widen task.graphs.kinds or the bounds")
        return sorted(found, key=lambda entry: entry.nnz)
