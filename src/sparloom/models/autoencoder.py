"""The paper's latent encoder: half of an autoencoder (COGNATE §3.3, table 4)."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from sparloom.models.encoder import FrozenEncoder, affine_layers, standard

__all__ = ["Autoencoder", "mlp"]


class Autoencoder:
    """Reconstruct the codes through a vector of `width`; over-complete where the codes are short.

    Args:
        width: of the latent vector, 64 in table 6.
        hidden: one hidden layer on either side; the paper gives no depth.
        epochs, batch_size, learning_rate: table 4; mean squared error, Adam.
    """

    def __init__(self, *, width: int, hidden: int, epochs: int, batch_size: int, learning_rate: float) -> None:
        self.width, self.hidden = width, hidden
        self.epochs, self.batch_size, self.learning_rate = epochs, batch_size, learning_rate

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder:
        """Train on every distinct code of the platform."""
        mean, deviation = standard(codes)
        x = (torch.as_tensor(codes, dtype=torch.float32) - mean) / deviation
        generator = torch.Generator().manual_seed(seed)
        encoder, decoder = self._halves(x.shape[1], generator)
        parameters = [*encoder.parameters(), *decoder.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=self.learning_rate)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(x), generator=generator).split(self.batch_size):
                optimizer.zero_grad(set_to_none=True)
                batch = x[rows]
                nn.functional.mse_loss(decoder(encoder(batch)), batch).backward()
                optimizer.step()
        return FrozenEncoder(mean, deviation, affine_layers(encoder))

    def _halves(self, inputs: int, generator: torch.Generator) -> tuple[nn.Sequential, nn.Sequential]:
        encoder = mlp((inputs, self.hidden, self.width), generator)
        return encoder, mlp((self.width, self.hidden, inputs), generator)


def mlp(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear layers with ReLU between them, drawn by PyTorch's rule from a generator."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        linear = nn.Linear(inputs, outputs)
        bound = 1 / inputs**0.5
        with torch.no_grad():
            linear.weight.uniform_(-bound, bound, generator=generator)
            linear.bias.uniform_(-bound, bound, generator=generator)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
