"""Submanifold sparse convolution in two dimensions.

`maps` (pooling) and `strided` build the neighbour lists of a pattern; `backends` convolve with
them.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "maps": (
        "CHANNELS", "LEVEL_DEPTH", "MapCache", "SparseMap", "build_map", "conv_flops", "level_channels", "map_flops"),
    "strided": ("StridedMap", "build_strided_map"),
    "backends": ("MinkowskiBackend", "SparseBackend", "TorchBackend", "retain_memory"),
})
