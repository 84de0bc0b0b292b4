"""Predictors: combine matrix, configuration and latent vector into one score.

`Predictor` is the network of COGNATE's table 6. Figure 8 compares it with recurrent networks (`RecurrentPredictor`) and
attention (`TransformerPredictor`), which read the three vectors as a sequence (`VectorSequence`).
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class Predictor(nn.Module):
    """Score configurations with a multilayer perceptron: low = fast, no unit.

    Args:
        matrix_width, config_width, latent_width: widths of the vectors; a vector of width 0 is ignored.
        hidden: widths of the hidden layers, 128 and 64 in table 6.
        fusion: "concat" concatenates the three vectors, 128 + 64 + 64 = 256 (the equation of §3.1); "sum" adds the
            configuration and latent vectors first, 192 (the width printed in table 6).
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
            raise ValueError("all vectors of the predictor have width 0: give at least one a width")
        self.used = tuple(bool(width) for width in (matrix_width, config_width, latent_width))
        program = config_width + latent_width if fusion == "concat" else max(config_width, latent_width)
        total = matrix_width + program
        widths = (total, *hidden)
        layers = [layer for a, b in zip(widths, hidden, strict=False) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, matrix: Tensor, config: Tensor, latent: Tensor) -> Tensor:
        """Score n configurations from vectors (n, width): (n,)."""
        if self.fusion == "sum" and all(self.used[1:]):
            vectors, used = (matrix, config + latent), self.used[:2]
        else:
            vectors, used = (matrix, config, latent), self.used
        inputs = [vector for vector, reads in zip(vectors, used, strict=True) if reads]
        return self.layers(torch.cat(inputs, dim=1)).squeeze(1)


class VectorSequence(nn.Module):
    """Project each vector to a common width with its own linear layer, whose bias encodes the position.

    Args:
        inputs: widths of the vectors in order; a vector of width 0 is ignored.
        width: width of every step of the sequence.
    """

    def __init__(self, inputs: Sequence[int], width: int) -> None:
        super().__init__()
        if not any(inputs):
            raise ValueError("all vectors of the predictor have width 0: give at least one a width")
        self.indices = tuple(index for index, size in enumerate(inputs) if size)
        self.layers = nn.ModuleList(nn.Linear(inputs[index], width) for index in self.indices)

    def forward(self, vectors: Sequence[Tensor]) -> Float[Tensor, "n steps width"]:
        """Stack the projections of all used vectors."""
        return torch.stack([layer(vectors[index]) for index, layer in zip(self.indices, self.layers, strict=True)], 1)


class _SequencePredictor(nn.Module):
    """Base of predictors that read the three vectors as a sequence."""

    def __init__(self, matrix_width: int, config_width: int, latent_width: int, *, width: int, **others: Any) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {
            "matrix_width": matrix_width, "config_width": config_width, "latent_width": latent_width, "width": width,
            **others,
        }
        self.steps = VectorSequence((matrix_width, config_width, latent_width), width)


class RecurrentPredictor(_SequencePredictor):
    """Feed matrix, configuration and latent vector to a recurrent network and score its last state.

    The paper only names LSTM and GRU. Here each vector goes through its own linear layer first, since widths differ,
    and the matrix comes first, so that the state knows it when the configuration is read.

    Args:
        matrix_width, config_width, latent_width: widths of the vectors; a vector of width 0 is ignored.
    """

    def __init__(
        self, *, matrix_width: int, config_width: int, latent_width: int, cell: Literal["lstm", "gru"], width: int,
        layers: int,
    ) -> None:
        if cell not in CELLS:
            raise ValueError(f"cell={cell!r} is not one of {', '.join(CELLS)}")
        super().__init__(matrix_width, config_width, latent_width, width=width, cell=cell, layers=layers)
        self.recurrent = CELLS[cell](width, width, layers, batch_first=True)
        self.last = nn.Linear(width, 1)

    def reset(self, generator: torch.Generator) -> None:
        """Draw the recurrent weights by PyTorch's rule: uniformly within 1 / sqrt(width)."""
        bound = 1 / self.recurrent.hidden_size**0.5
        with torch.no_grad():
            for parameter in self.recurrent.parameters():
                parameter.uniform_(-bound, bound, generator=generator)

    def forward(self, matrix: Tensor, config: Tensor, latent: Tensor) -> Tensor:
        """Score n configurations from vectors (n, width): (n,)."""
        states, _ = self.recurrent(self.steps((matrix, config, latent)))
        return self.last(states[:, -1]).squeeze(1)


class TransformerPredictor(_SequencePredictor):
    """Let matrix, configuration and latent vector attend to each other and score the mean of the results.

    The paper only names "Transformer (TF)". Here every vector is one token, projected by its own linear layer, so no
    positional encoding is needed; layers are pre-norm and have no dropout.

    Args:
        matrix_width, config_width, latent_width: widths of the vectors; a vector of width 0 is ignored.
        width: width of tokens, a multiple of `heads`.
        hidden: width of the feed-forward network after each attention.
    """

    def __init__(
        self, *, matrix_width: int, config_width: int, latent_width: int, width: int, heads: int, hidden: int,
        layers: int,
    ) -> None:
        if width % heads:
            raise ValueError(f"width {width} of the tokens is not a multiple of heads {heads}")
        super().__init__(matrix_width, config_width, latent_width, width=width, heads=heads, hidden=hidden,
                         layers=layers)
        self.layers = nn.ModuleList(_Layer(width, heads, hidden) for _ in range(layers))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 1)

    def reset(self, generator: torch.Generator) -> None:
        """Reset the normalisations; linear layers are drawn by `initialise`."""
        for part in self.modules():
            if isinstance(part, nn.LayerNorm):
                part.reset_parameters()

    def forward(self, matrix: Tensor, config: Tensor, latent: Tensor) -> Tensor:
        """Score n configurations from vectors (n, width): (n,)."""
        x = self.steps((matrix, config, latent))
        for layer in self.layers:
            x = layer(x)
        return self.last(self.norm(x).mean(1)).squeeze(1)


class _Layer(nn.Module):
    """Pre-norm attention between the tokens of a row, then a feed-forward network on each, both with residuals."""

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
