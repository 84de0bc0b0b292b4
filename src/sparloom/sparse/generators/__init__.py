"""Families of synthetic patterns: one function each, from a number of rows and a random number generator.

The name of a function is the family in the names of matrices.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from sparloom.sparse.generators.graphs import (
    blocks,
    communities,
    heavy_tail,
    hub_rows,
    kronecker,
    mycielskian,
    nearest,
    pruned,
    small_world,
    uniform,
)
from sparloom.sparse.generators.structured import (
    arrow,
    banded,
    block_mesh,
    box_2d,
    box_3d,
    netlist,
    roads,
    scrambled_band,
    shuffled_mesh,
    staircase,
    star_2d,
    star_3d,
    tetrahedra,
    triangles,
)
from sparloom.sparse.pattern import Pattern

__all__ = ["GENERATORS", "Generator"]

Generator = Callable[[int, np.random.Generator], Pattern]
"""A function that makes a pattern of about a number of rows."""

GENERATORS: Mapping[str, Generator] = MappingProxyType({
    generator.__name__: generator
    for generator in (
        star_2d, box_2d, star_3d, box_3d, triangles, shuffled_mesh, block_mesh, tetrahedra, banded, scrambled_band,
        arrow, blocks, communities, uniform, kronecker, heavy_tail, small_world, nearest, roads, hub_rows, staircase,
        pruned, mycielskian, netlist,
    )
})
"""Generators of patterns, by name."""
