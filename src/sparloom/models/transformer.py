"""A predictor by attention: the three vectors look at each other (COGNATE figure 8)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.models.sequence import VectorSequence

__all__ = ["TransformerPredictor"]


class TransformerPredictor(nn.Module):
    """Let the matrix, the configuration and the latent vector attend to each other; their mean is scored.

    Reading: the paper names "Transformer (TF)" and says no more. Every vector is one token, brought to one width by a
    linear layer of its own, so that no further position is needed; layers normalise first and drop nothing out.

    Args:
        matrix_width, config_width, latent_width: of the vectors; one of width 0 is left out.
        width: of tokens, a multiple of `heads`.
        heads: of every attention.
        hidden: of the network behind every attention.
        layers: attentions one after the other.
    """

    def __init__(
        self, *, matrix_width: int, config_width: int, latent_width: int, width: int, heads: int, hidden: int,
        layers: int,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} of the tokens is not a multiple of heads {heads}")
        self.settings: dict[str, Any] = {
            "matrix_width": matrix_width, "config_width": config_width, "latent_width": latent_width, "width": width,
            "heads": heads, "hidden": hidden, "layers": layers,
        }
        self.steps = VectorSequence((matrix_width, config_width, latent_width), width)
        self.layers = nn.ModuleList(_Layer(width, heads, hidden) for _ in range(layers))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 1)

    def reset(self, generator: torch.Generator) -> None:
        """Set the normalisations back; everything else is linear layers, which are drawn one by one."""
        for part in self.modules():
            if isinstance(part, nn.LayerNorm):
                part.reset_parameters()

    def forward(self, matrix: Tensor, config: Tensor, latent: Tensor) -> Tensor:
        """Score rows of equally many (n, width) vectors: (n,)."""
        x = self.steps((matrix, config, latent))
        for layer in self.layers:
            x = layer(x)
        return self.last(self.norm(x).mean(1)).squeeze(1)


class _Layer(nn.Module):
    """Attention between the tokens of a row, then a small network on each; both add to what they read."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.write = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(self, x: Float[Tensor, "n tokens width"]) -> Float[Tensor, "n tokens width"]:
        parts = self.read(self.before(x)).chunk(3, dim=2)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.write(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))
