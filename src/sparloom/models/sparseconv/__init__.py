"""Submanifold sparse convolution in two dimensions: maps, backends, cost."""

from sparloom.models.sparseconv.maps import (
    CHANNELS,
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
    "CHANNELS", "MapCache", "MinkowskiBackend", "SparseBackend", "SparseMap", "StridedMap", "TorchBackend",
    "build_map", "build_strided_map", "conv_flops", "level_channels", "map_flops", "retain_memory",
]
