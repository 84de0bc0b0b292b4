"""Best configurations of a space under a cost model."""

from sparloom.search.exhaustive import Ranked, top_k

__all__ = ["Ranked", "top_k"]
