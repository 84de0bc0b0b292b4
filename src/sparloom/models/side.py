"""The size of a matrix, which global averages of convolutions lose (WACO's side vector)."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.data import MatrixInput

__all__ = ["SideFeatures"]

COUNT = 3
MILLION = 1e6
REACH = 5.0  # standard deviations beyond which a size counts no further


class SideFeatures(nn.Module):
    """Rows, columns and nonzeros, standardised over the training matrices of the source, through a small network.

    Source: WACO; COGNATE's table 6 is silent. Departure: logarithms, as sizes span six decades.

    Args:
        scale: sizes enter as log(1 + x), or linearly as in WACO, in millions: mean and deviation in ones would exceed
            65504, the largest number of a checkpoint in float16.
        hidden, width: sizes of the two layers, 64 and 32 in WACO; width 0 leaves the side vector out.
    """

    def __init__(self, *, scale: Literal["log1p", "linear"], hidden: int, width: int) -> None:
        super().__init__()
        if scale not in ("log1p", "linear"):
            raise ValueError(f"scale={scale!r} is not one of log1p, linear")
        self.scale, self.width = scale, width
        self.settings: dict[str, Any] = {"scale": scale, "hidden": hidden, "width": width}
        self.register_buffer("mean", torch.zeros(COUNT))
        self.register_buffer("deviation", torch.ones(COUNT))
        self.layers = nn.Sequential(nn.Linear(COUNT, hidden), nn.ReLU(), nn.Linear(hidden, width)) if width else None

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Take mean and deviation from the given matrices; training leaves them as they are."""
        raw = torch.from_numpy(self._read(inputs))
        deviation = raw.std(0, unbiased=False)
        self.mean.copy_(raw.mean(0))
        self.deviation.copy_(torch.where(deviation > 1e-6, deviation, 1))

    def forward(self, inputs: Sequence[MatrixInput]) -> Float[Tensor, "matrices width"]:
        if self.layers is None:
            return self.mean.new_zeros(len(inputs), 0)
        raw = torch.from_numpy(self._read(inputs)).to(self.mean.device)
        return self.layers(((raw - self.mean) / self.deviation).clamp(-REACH, REACH))

    def _read(self, inputs: Sequence[MatrixInput]) -> Float[np.ndarray, "matrices 3"]:
        numbers = np.array([(*item.shape, item.nnz) for item in inputs], np.float64).reshape(-1, COUNT)
        return (np.log1p(numbers) if self.scale == "log1p" else numbers / MILLION).astype(np.float32)
