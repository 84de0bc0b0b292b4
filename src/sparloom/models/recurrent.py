"""Recurrent predictors: the three vectors as a sequence (COGNATE figure 8)."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from sparloom.models.sequence import VectorSequence

__all__ = ["RecurrentPredictor"]

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class RecurrentPredictor(nn.Module):
    """Read the matrix, the configuration and the latent vector one after the other; the last state is scored.

    Reading: the paper names LSTM and GRU and says no more. The vectors have different widths, so each goes through a
    linear layer of its own first; the matrix comes first, so that the programs are read in its light.

    Args:
        matrix_width, config_width, latent_width: of the vectors; one of width 0 is left out.
        cell: the recurrent unit.
        width: of steps and states.
        layers: recurrent layers.
    """

    def __init__(
        self, *, matrix_width: int, config_width: int, latent_width: int, cell: Literal["lstm", "gru"], width: int,
        layers: int,
    ) -> None:
        super().__init__()
        if cell not in CELLS:
            raise ValueError(f"cell={cell!r} is not one of {', '.join(CELLS)}")
        self.settings: dict[str, Any] = {
            "matrix_width": matrix_width, "config_width": config_width, "latent_width": latent_width, "cell": cell,
            "width": width, "layers": layers,
        }
        self.steps = VectorSequence((matrix_width, config_width, latent_width), width)
        self.recurrent = CELLS[cell](width, width, layers, batch_first=True)
        self.last = nn.Linear(width, 1)

    def reset(self, generator: torch.Generator) -> None:
        """Draw the recurrent weights by PyTorch's rule: uniformly within 1 / sqrt(width)."""
        bound = 1 / self.recurrent.hidden_size**0.5
        with torch.no_grad():
            for parameter in self.recurrent.parameters():
                parameter.uniform_(-bound, bound, generator=generator)

    def forward(self, matrix: Tensor, config: Tensor, latent: Tensor) -> Tensor:
        """Score rows of equally many (n, width) vectors: (n,)."""
        states, _ = self.recurrent(self.steps((matrix, config, latent)))
        return self.last(states[:, -1]).squeeze(1)
