"""Best configurations of a space under a cost model."""

from sparloom.search.best import best
from sparloom.search.evolution import Evolution
from sparloom.search.exhaustive import Ranked, top_k
from sparloom.search.portfolio import portfolio

__all__ = ["Evolution", "Ranked", "best", "portfolio", "top_k"]
