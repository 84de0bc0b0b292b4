"""Maps that were built before: a matrix is convolved hundreds of times, its map is built once."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["MapCache"]


class MapCache:
    """Keep the most recently used maps in memory; copies of a network share it, since maps never change.

    Args:
        limit: how many are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._maps: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """Look a map up, or build it and drop the one unused for longest."""
        if key not in self._maps:
            self._maps[key] = build()
            if len(self._maps) > self._limit:
                self._maps.popitem(last=False)
        self._maps.move_to_end(key)
        return self._maps[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> "MapCache":
        return self
