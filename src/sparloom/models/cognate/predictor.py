"""The predictor: matrix, configuration and latent vectors to one score (COGNATE table 6).

Vectors of different widths as a short sequence of equal ones.

Recurrent predictors: the three vectors as a sequence (COGNATE figure 8).

A predictor by attention: the three vectors look at each other (COGNATE figure 8).
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["Predictor", "RecurrentPredictor", "TransformerPredictor", "VectorSequence"]


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
