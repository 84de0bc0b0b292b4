"""Best configurations of a space under a cost model."""

from sparloom.search.best import best
from sparloom.search.evolution import Evolution
from sparloom.search.exhaustive import Ranked, top_k

__all__ = ["Evolution", "Ranked", "best", "top_k"]
