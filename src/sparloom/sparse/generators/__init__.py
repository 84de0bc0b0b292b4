"""Families of synthetic patterns: one function each, from a number of rows and a random number generator.

The name of a function is the family in the names of matrices.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from sparloom.sparse.generators import graphs, structured
from sparloom.sparse.pattern import Pattern

__all__ = ["GENERATORS", "Generator"]

Generator = Callable[[int, np.random.Generator], Pattern]
"""A function that makes a pattern of about a number of rows."""

GENERATORS: Mapping[str, Generator] = MappingProxyType({
    generator.__name__: generator
    for generator in (
        structured.star_2d, structured.box_2d, structured.star_3d, structured.box_3d, structured.triangles,
        structured.shuffled_mesh, structured.block_mesh, structured.tetrahedra, structured.banded,
        structured.scrambled_band, structured.arrow, graphs.blocks, graphs.communities, graphs.uniform,
        graphs.kronecker, graphs.heavy_tail, graphs.small_world, graphs.nearest, structured.roads, graphs.hub_rows,
        structured.staircase, graphs.pruned, graphs.mycielskian, structured.netlist,
    )
})
"""Generators of patterns, by name."""
