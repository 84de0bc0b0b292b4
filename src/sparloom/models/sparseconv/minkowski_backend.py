"""Sparse convolution with MinkowskiEngine 0.5.4, the library of the paper; an optional extra without wheels."""

import collections
import collections.abc
import importlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class MinkowskiMap:
    """Coordinates in a coordinate manager of MinkowskiEngine, which chooses the order of sites.

    Args:
        features: (sites, channels) in the order of the first level.
        keys: coordinate map key of every level.
        owners: index of the matrix of each site, (sites,) per level.
        kernels: kernel generators by size and stride.
    """

    manager: Any
    features: Tensor
    keys: tuple[Any, ...]
    owners: tuple[Tensor, ...]
    matrices: int
    kernels: dict[tuple[int, int], Any]

    def to(self, device: torch.device | str) -> "MinkowskiMap":
        """Return self on the CPU; raise ValueError on other devices."""
        if torch.device(device).type != "cpu":
            raise ValueError(f"MinkowskiBackend runs only on the CPU, not on {device}: use TorchBackend there")
        return self


class MinkowskiBackend:
    """Convolve with MinkowskiEngine, which is imported when the first map is built.

    In its kernels the row offset varies fastest, so weights are permuted.
    """

    def build_map(
        self, coords: Sequence[np.ndarray], features: Sequence[np.ndarray] | None = None, *, channels: Sequence[int]
    ) -> MinkowskiMap:
        """Pass coordinates to a new coordinate manager and halve them level by level.

        Raises:
            ValueError: a matrix has no sites, which MinkowskiEngine does not support.
            ImportError: MinkowskiEngine is not installed.
        """
        return _build(coords, features, halvings=len(channels) - 1)

    def build_strided_map(self, coords: Sequence[np.ndarray], *, steps: int) -> MinkowskiMap:
        """Build the same map for strided convolutions, with `steps` halvings."""
        return _build(coords, None, halvings=steps)

    def input_conv(self, weight: Tensor, bias: Tensor | None, sites: MinkowskiMap) -> Tensor:
        """Convolve the input of the map with a 5x5 kernel, then ReLU."""
        return _convolve(sites.features, weight, bias, sites, 0)

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, sites: MinkowskiMap, level: int) -> Tensor:
        """Convolve with a 3x3 kernel at a level, then ReLU."""
        return _convolve(x, weight, bias, sites, level)

    def strided_conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, sites: MinkowskiMap, level: int) -> Tensor:
        """Convolve from a level to the next with a 3x3 kernel of stride 2, then ReLU."""
        return _convolve(x, weight, bias, sites, level, stride=2)

    def max_pool(self, x: Tensor, sites: MinkowskiMap, level: int) -> Tensor:
        """Take the maximum over the aligned 2x2 cells of a level."""
        module = importlib.import_module("MinkowskiEngine.MinkowskiPooling")
        pool, mode = module.MinkowskiLocalPoolingFunction.apply, module.PoolingMode.LOCAL_MAX_POOLING
        return pool(x, mode, sites.kernels[2, 2], sites.keys[level], sites.keys[level + 1], sites.manager)

    def global_mean(self, x: Tensor, sites: MinkowskiMap, level: int) -> Tensor:
        """Average over the sites of every matrix."""
        owner = sites.owners[level]
        counts = torch.bincount(owner, minlength=sites.matrices)
        return x.new_zeros(sites.matrices, x.shape[1]).index_add(0, owner, x) / counts[:, None]


def import_minkowski() -> ModuleType:
    """Import MinkowskiEngine; version 0.5.4 needs `collections.Sequence`, which Python 3.10 removed.

    Raises:
        ImportError: it is not installed; the message says how to build it.
    """
    if not hasattr(collections, "Sequence"):
        collections.Sequence = collections.abc.Sequence
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("MinkowskiEngine")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error}: MinkowskiEngine has no wheels; with libopenblas-dev and a C++ compiler run `pip install "
            "--no-build-isolation --no-deps -C--global-option=--blas=openblas MinkowskiEngine==0.5.4`, "
            "or use TorchBackend"
        ) from None


def _build(
    coords: Sequence[np.ndarray], features: Sequence[np.ndarray] | None, *, halvings: int
) -> MinkowskiMap:
    """Pass coordinates to a new coordinate manager and halve them."""
    engine = import_minkowski()
    if not all(len(sites) for sites in coords):
        raise ValueError("a matrix has no sites, which MinkowskiEngine does not support: use TorchBackend")
    owner = np.repeat(np.arange(len(coords)), [len(sites) for sites in coords])
    stacked = np.column_stack([owner, np.concatenate(coords)]).astype(np.int32)
    values = np.ones((len(owner), 1)) if features is None else np.concatenate(features)
    tensor = engine.SparseTensor(torch.from_numpy(values.astype(np.float32)), torch.from_numpy(stacked))
    manager, keys = tensor.coordinate_manager, [tensor.coordinate_map_key]
    for _ in range(halvings):
        keys.append(manager.stride(keys[-1], 2))
    kernels = {(size, stride): engine.KernelGenerator(kernel_size=size, stride=stride, dimension=2)
               for size, stride in ((5, 1), (3, 1), (3, 2), (2, 2))}
    return MinkowskiMap(
        manager=manager, features=tensor.F, keys=tuple(keys), matrices=len(coords), kernels=kernels,
        owners=tuple(manager.get_coordinates(key)[:, 0].long() for key in keys),
    )


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, sites: MinkowskiMap, level: int, *, stride: int = 1
) -> Tensor:
    module = importlib.import_module("MinkowskiEngine.MinkowskiConvolution")
    convolve, mode = module.MinkowskiConvolutionFunction.apply, module.ConvolutionMode.DEFAULT
    size = round(len(weight) ** 0.5)
    transposed = weight.unflatten(0, (size, size)).transpose(0, 1).flatten(0, 1).contiguous()
    below, above = sites.keys[level], sites.keys[level + stride - 1]
    out = convolve(x, transposed, sites.kernels[size, stride], mode, below, above, sites.manager)
    return torch.relu(out if bias is None else out + bias)
