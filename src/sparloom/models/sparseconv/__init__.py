"""Submanifold sparse convolution in two dimensions: maps, backends, cost."""

from sparloom.models.sparseconv.backend import SparseBackend
from sparloom.models.sparseconv.cache import MapCache
from sparloom.models.sparseconv.cost import CHANNELS, conv_flops, level_channels, map_flops
from sparloom.models.sparseconv.maps import SparseMap, build_map
from sparloom.models.sparseconv.memory import retain_memory
from sparloom.models.sparseconv.minkowski_backend import MinkowskiBackend
from sparloom.models.sparseconv.strided import StridedMap, build_strided_map
from sparloom.models.sparseconv.torch_backend import TorchBackend

__all__ = [
    "CHANNELS", "MapCache", "MinkowskiBackend", "SparseBackend", "SparseMap", "StridedMap", "TorchBackend",
    "build_map", "build_strided_map", "conv_flops", "level_channels", "map_flops", "retain_memory",
]
