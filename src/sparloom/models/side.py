"""Numbers about a whole matrix that global averages of convolutions lose: its size, and statistics if wanted."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.models.view import MatrixView

__all__ = ["SideFeatures"]

SIZES = ("rows", "cols", "nnz")


class SideFeatures(nn.Module):
    """Rows, columns and nonzeros, standardised over the training matrices of the source, through 64 -> 32.

    Source: WACO's side vector; COGNATE's table 6 is silent. Departure: logarithms, as sizes span six decades.

    Args:
        scale: sizes enter as log(1 + x) or linearly (WACO).
        statistics: further pattern statistics by name; those above 1 in size enter as logarithms.
        hidden, width: sizes of the two layers; width 0 leaves the side vector out.
    """

    def __init__(
        self, *, scale: Literal["log1p", "linear"], statistics: Sequence[str], hidden: int, width: int
    ) -> None:
        super().__init__()
        if scale not in ("log1p", "linear"):
            raise ValueError(f"scale={scale!r} is not one of log1p, linear")
        self.scale, self.statistics, self.width = scale, tuple(statistics), width
        self.settings: dict[str, Any] = {
            "scale": scale, "statistics": list(statistics), "hidden": hidden, "width": width,
        }
        count = len(SIZES) + len(self.statistics)
        self.register_buffer("mean", torch.zeros(count))
        self.register_buffer("deviation", torch.ones(count))
        self.layers = nn.Sequential(nn.Linear(count, hidden), nn.ReLU(), nn.Linear(hidden, width)) if width else None

    def read(self, view: MatrixView) -> Float[np.ndarray, "s"]:
        """Look up the raw numbers of a matrix."""
        numbers = np.array([*view.shape, view.nnz], np.float64)
        sizes = np.log1p(numbers) if self.scale == "log1p" else numbers
        chosen = np.array([view.statistics[name] for name in self.statistics], np.float64)
        return np.concatenate([sizes, np.sign(chosen) * np.log1p(np.abs(chosen))]).astype(np.float32)

    def standardise(self, raw: Float[np.ndarray, "m s"]) -> None:
        """Fix mean and deviation of every number over the given matrices."""
        self.mean.copy_(torch.from_numpy(raw.mean(0)))
        deviation = torch.from_numpy(raw.std(0))
        self.deviation.copy_(torch.where(deviation > 1e-6, deviation, 1))

    def forward(self, raw: Tensor) -> Tensor:
        """Map raw numbers (m, s) to (m, width)."""
        if self.layers is None:
            return raw.new_zeros(len(raw), 0)
        return self.layers(((raw - self.mean) / self.deviation).clamp(-5, 5))
