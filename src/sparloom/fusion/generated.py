"""Names that lowering adds to those of the user; the front end gives the user's own another form where they clash."""

__all__ = [
    "AT_FIRST", "AT_SECOND", "EDGES", "FIRST", "GENERATED", "GRAPH_INDICES", "GRAPH_INDPTR", "SECOND", "SECOND_PTR",
    "SIZES", "TILE", "TILES_0", "TILES_1",
]

TILE, AT_FIRST, AT_SECOND = "tile", "at_1", "at_2"
FIRST, SECOND, SECOND_PTR = "schedule_first", "schedule_second", "schedule_second_ptr"
TILES_0, TILES_1 = "schedule_tiles_0", "schedule_tiles_1"
EDGES, GRAPH_INDPTR, GRAPH_INDICES = "edges", "graph_indptr", "graph_indices"
SIZES = "sizes"

GENERATED = frozenset((
    TILE, AT_FIRST, AT_SECOND, FIRST, SECOND, SECOND_PTR, TILES_0, TILES_1, EDGES, GRAPH_INDPTR, GRAPH_INDICES, SIZES))
