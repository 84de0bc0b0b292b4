"""Vectors of different widths as a short sequence of equal ones."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["VectorSequence"]


class VectorSequence(nn.Module):
    """Bring each vector to one width by a linear layer of its own; its bias tells the places apart.

    Args:
        inputs: widths of the vectors in order; one of width 0 is left out.
        width: of every step.
    """

    def __init__(self, inputs: Sequence[int], width: int) -> None:
        super().__init__()
        if not any(inputs):
            raise ValueError("all vectors of the predictor have width 0: leave at least one in")
        self.places = tuple(place for place, given in enumerate(inputs) if given)
        self.layers = nn.ModuleList(nn.Linear(inputs[place], width) for place in self.places)

    def forward(self, vectors: Sequence[Tensor]) -> Float[Tensor, "n steps width"]:
        """Stack the vectors that are not left out, rows of equally many of each."""
        return torch.stack([layer(vectors[place]) for place, layer in zip(self.places, self.layers, strict=True)], 1)
