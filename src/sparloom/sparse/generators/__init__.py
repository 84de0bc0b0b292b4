"""Families of synthetic patterns: a function each, from a number of rows and a generator of random numbers."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from sparloom.sparse.generators.bands import arrow, banded, scrambled_band
from sparloom.sparse.generators.communities import blocks, communities
from sparloom.sparse.generators.graphs import heavy_tail, kronecker, small_world, uniform
from sparloom.sparse.generators.hubs import hub_rows
from sparloom.sparse.generators.meshes import block_mesh, shuffled_mesh, tetrahedra, triangles
from sparloom.sparse.generators.mycielskian import mycielskian
from sparloom.sparse.generators.neighbours import nearest
from sparloom.sparse.generators.netlists import netlist
from sparloom.sparse.generators.programmes import staircase
from sparloom.sparse.generators.roads import roads
from sparloom.sparse.generators.stencils import box_2d, box_3d, star_2d, star_3d
from sparloom.sparse.generators.weights import pruned
from sparloom.sparse.pattern import Pattern

__all__ = ["GENERATORS", "Generator"]

Generator = Callable[[int, np.random.Generator], Pattern]

GENERATORS: Mapping[str, Generator] = MappingProxyType({
    generator.__name__: generator
    for generator in (
        star_2d, box_2d, star_3d, box_3d, triangles, shuffled_mesh, block_mesh, tetrahedra, banded, scrambled_band,
        arrow, blocks, communities, uniform, kronecker, heavy_tail, small_world, nearest, roads, hub_rows, staircase,
        pruned, mycielskian, netlist,
    )
})
