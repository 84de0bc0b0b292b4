"""Submanifold sparse convolution in two dimensions.

`maps` (pooling) and `strided` build the neighbour lists of a pattern; `torch_backend` and `minkowski_backend` convolve
with them.
"""

from sparloom.models.sparseconv.maps import (
    CHANNELS,
    LEVEL_DEPTH,
    MapCache,
    SparseMap,
    build_map,
    conv_flops,
    level_channels,
    map_flops,
)
from sparloom.models.sparseconv.minkowski_backend import MinkowskiBackend
from sparloom.models.sparseconv.strided import StridedMap, build_strided_map
from sparloom.models.sparseconv.torch_backend import SparseBackend, TorchBackend, retain_memory

__all__ = [
    "CHANNELS", "LEVEL_DEPTH", "MapCache", "MinkowskiBackend", "SparseBackend", "SparseMap", "StridedMap",
    "TorchBackend", "build_map", "build_strided_map", "conv_flops", "level_channels", "map_flops", "retain_memory",
]
