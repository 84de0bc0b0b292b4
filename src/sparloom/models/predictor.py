"""The predictor: matrix, configuration and latent vectors to one score (COGNATE table 6)."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

__all__ = ["Predictor"]


class Predictor(nn.Module):
    """Score configurations with a small network; low = fast, no unit.

    Args:
        matrix_width, config_width, latent_width: of the vectors; one of width 0 is left out, whatever is given for it.
        hidden: widths of the hidden layers, 128 and 64 in table 6.
        fusion: all three vectors side by side, 128 + 64 + 64 = 256 ("concat", the equation of §3.1), or the sum of the
            configuration and latent vectors beside the matrix, 192 ("sum", the width that table 6 prints).
    """

    def __init__(
        self, *, matrix_width: int, config_width: int, latent_width: int, hidden: Sequence[int],
        fusion: Literal["concat", "sum"],
    ) -> None:
        super().__init__()
        if fusion not in ("concat", "sum"):
            raise ValueError(f"fusion={fusion!r} is not one of concat, sum")
        if fusion == "sum" and config_width and latent_width and config_width != latent_width:
            raise ValueError(f"fusion=sum adds vectors of widths {config_width} and {latent_width}: make them equal")
        self.fusion = fusion
        self.settings: dict[str, Any] = {
            "matrix_width": matrix_width, "config_width": config_width, "latent_width": latent_width,
            "hidden": list(hidden), "fusion": fusion,
        }
        if not (matrix_width or config_width or latent_width):
            raise ValueError("all vectors of the predictor have width 0: leave at least one in")
        self.kept = tuple(bool(width) for width in (matrix_width, config_width, latent_width))
        program = config_width + latent_width if fusion == "concat" else max(config_width, latent_width)
        total = matrix_width + program
        widths = (total, *hidden)
        layers = [layer for a, b in zip(widths, hidden, strict=False) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, matrix: Tensor, config: Tensor, latent: Tensor) -> Tensor:
        """Score rows of equally many (n, width) vectors: (n,)."""
        if self.fusion == "sum" and all(self.kept[1:]):
            vectors, kept = (matrix, config + latent), self.kept[:2]
        else:
            vectors, kept = (matrix, config, latent), self.kept
        read = [vector for vector, read in zip(vectors, kept, strict=True) if read]
        return self.layers(torch.cat(read, dim=1)).squeeze(1)
