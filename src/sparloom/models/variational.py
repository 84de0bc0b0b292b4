"""A variational latent encoder: the mean of an approximate posterior (COGNATE figure 9)."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.models.autoencoder import mlp
from sparloom.models.encoder import FrozenEncoder, affine_layers, standard

__all__ = ["VariationalAutoencoder"]


class VariationalAutoencoder:
    """Reconstruct the codes through a noisy vector that is held near a standard normal one.

    Loss per code: half the squared error plus `noise` times the divergence from the prior, that is a Gaussian decoder
    with this variance. The encoder that is kept gives the mean.

    Args:
        width, hidden, epochs, batch_size, learning_rate: as in `Autoencoder`; the paper says of this one only that it
            was tried.
        noise: variance of a decoded number, where standardised codes have 1; at 1 no code is worth its divergence and
            all fall together.
    """

    def __init__(
        self, *, width: int, hidden: int, epochs: int, batch_size: int, learning_rate: float, noise: float
    ) -> None:
        self.width, self.hidden, self.noise = width, hidden, noise
        self.epochs, self.batch_size, self.learning_rate = epochs, batch_size, learning_rate

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder:
        """Train on every distinct code of the platform."""
        mean, deviation = standard(codes)
        x = (torch.as_tensor(codes, dtype=torch.float32) - mean) / deviation
        generator = torch.Generator().manual_seed(seed)
        encoder = mlp((x.shape[1], self.hidden, 2 * self.width), generator)
        decoder = mlp((self.width, self.hidden, x.shape[1]), generator)
        optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=self.learning_rate)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(x), generator=generator).split(self.batch_size):
                optimizer.zero_grad(set_to_none=True)
                self._loss(encoder, decoder, x[rows], generator).backward()
                optimizer.step()
        *hidden, (weight, bias) = affine_layers(encoder)
        return FrozenEncoder(mean, deviation, [*hidden, (weight[:self.width].clone(), bias[:self.width].clone())])

    def _loss(
        self, encoder: nn.Sequential, decoder: nn.Sequential, batch: Tensor, generator: torch.Generator
    ) -> Tensor:
        centre, spread = encoder(batch).chunk(2, dim=1)  # the spread as the logarithm of the variance
        drawn = centre + (spread / 2).exp() * torch.randn(centre.shape, generator=generator)
        error = (decoder(drawn) - batch).square().sum(1) / 2
        divergence = (centre.square() + spread.exp() - 1 - spread).sum(1) / 2
        return (error + self.noise * divergence).mean()
