"""Stand-ins against real graphs of the same family, where the mirror of real matrices has one."""

import numpy as np
import pytest

from sparloom.platforms.spade import delaunay, road
from sparloom.sparse import Pattern, SuiteSparseCorpus

pytestmark = [pytest.mark.paper, pytest.mark.slow]

RELATIVES = {
    "DIMACS10/delaunay_n15": lambda: delaunay(1 << 15, seed=0),
    "DIMACS10/luxembourg_osm": lambda: road(114_599, seed=0),
}


def distinct(pattern: Pattern, row_panel: int) -> float:
    """Return the distinct columns of a panel of rows per nonzero: the rows that a cache holding the panel fetches."""
    panel = pattern.row_ids().astype(np.int64) // row_panel
    return len(np.unique(panel * pattern.cols + pattern.indices)) / pattern.nnz


@pytest.mark.parametrize("row_panel", [256, 1024])
@pytest.mark.parametrize("name", RELATIVES)
def test_panels_meet_as_many_columns_as_in_a_real_graph_of_the_family(mirror, tmp_path, name, row_panel):
    corpus = SuiteSparseCorpus(mirror, str(tmp_path), count=None, role=None, seed=0)
    if name not in {entry.name for entry in corpus.entries()}:
        pytest.skip(f"the mirror has no {name}")
    real = corpus.load(name).pattern
    assert distinct(RELATIVES[name](), row_panel) == pytest.approx(distinct(real, row_panel), rel=0.2)
