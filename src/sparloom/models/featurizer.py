"""What both featurizers have in common: convolutions over sites, global averages, a head."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.data import MatrixInput
from sparloom.models.sparseconv import MapCache, SparseBackend
from sparloom.models.standardise import Norm, norm_of

__all__ = ["Featurizer"]


class Featurizer(nn.Module, ABC):
    """Convolve patterns, average over sites, normalise, and read the averages beside the side vector with a head.

    Args:
        readings: settings of the subclass.
        shapes: (taps, inputs, outputs) of every convolution.
        bias: whether convolutions add one.
        pooled: width of the averages.
        hidden, width: sizes of the head.
        side_width: of the vector that joins the averages, 0 for none.
        norm, gain: of the averages, see `Standardise`; "none": as WACO, gain is not read.
        backend: the convolution library.
        maps: how many maps are kept.
    """

    def __init__(
        self,
        *,
        readings: Mapping[str, Any],
        shapes: Sequence[tuple[int, int, int]],
        bias: bool,
        pooled: int,
        hidden: int,
        width: int,
        side_width: int,
        norm: Norm,
        gain: float,
        backend: SparseBackend,
        maps: int,
    ) -> None:
        super().__init__()
        self.width, self.backend = width, backend
        self._maps = MapCache(maps)
        self.settings: dict[str, Any] = {
            **readings, "hidden": hidden, "width": width, "side_width": side_width, "norm": norm, "gain": gain,
        }
        self.weights = nn.ParameterList(torch.empty(shape) for shape in shapes)
        self.biases = nn.ParameterList(torch.empty(outputs) for *_, outputs in shapes) if bias else None
        self.norm = norm_of(norm, pooled, gain=gain)
        self.head = nn.Sequential(nn.Linear(pooled + side_width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def reset(self, generator: torch.Generator) -> None:
        """Draw the convolutions as WACO does: normal, variance 2 / (taps * outputs); biases are 0."""
        with torch.no_grad():
            for weight in self.weights:
                weight.normal_(0, math.sqrt(2 / (weight.shape[0] * weight.shape[2])), generator=generator)
            for bias in self.biases or ():
                bias.zero_()

    def convolutions(self) -> list[nn.Parameter]:
        """List the parameters below the head."""
        return [*self.weights, *(self.biases or ())]

    def pool(self, inputs: Sequence[MatrixInput]) -> Float[Tensor, "matrices pooled"]:
        """Run the convolutions over all matrices at once."""
        return self.pool_map(self._sites(inputs))

    @abstractmethod
    def pool_map(self, sites: Any) -> Float[Tensor, "matrices pooled"]:
        """Run the convolutions over a map of the backend."""

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Take mean and variance of the averages from the given matrices, if they are normalised; see `Standardise`."""
        with torch.no_grad():
            self.norm.fit(self.pool([item]) for item in inputs)

    def forward(self, inputs: Sequence[MatrixInput], side: Float[Tensor, "matrices s"]) -> Float[Tensor, "matrices w"]:
        """Embed matrices."""
        return self.head(torch.cat([self.norm(self.pool(inputs)), side], dim=1))

    @abstractmethod
    def _build(self, inputs: Sequence[MatrixInput]) -> Any:
        """Build the map of a batch."""

    def _sites(self, inputs: Sequence[MatrixInput]) -> Any:
        """Build the map of a batch, or find it where it was built before."""
        device = self.weights[0].device
        key = (device, *((item.digest, item.quantum) for item in inputs))
        return self._maps.get(key, lambda: self._build(inputs).to(device))
