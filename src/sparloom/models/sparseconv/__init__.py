"""Submanifold sparse convolution in two dimensions.

`maps` (pooling) and `strided` build the neighbour lists of a pattern; `backends` convolve with
them.
"""

from sparloom.lazy import on_demand

_NAMES = {
    "maps": (
        "CHANNELS", "LEVEL_DEPTH", "MapCache", "SparseMap", "build_map", "conv_flops", "level_channels", "map_flops"),
    "strided": ("StridedMap", "build_strided_map"),
    "backends": ("MinkowskiBackend", "SparseBackend", "TorchBackend", "retain_memory"),
}

__all__ = sorted(name for names in _NAMES.values() for name in names)

__getattr__, __dir__ = on_demand(
    __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names})
