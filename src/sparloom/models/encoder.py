"""Latent encoders: hardware-specific parts of configurations to vectors of one width (COGNATE §3.3, table 4)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["Autoencoder", "FeatureAugmentation", "FrozenEncoder", "LatentEncoder"]


class FrozenEncoder(nn.Module):
    """A fitted encoder: standardise, then affine layers with ReLU between them; all tensors are buffers, none trained.

    Args:
        mean, deviation: (h,) of the codes.
        layers: (weight (out, in), bias (out,)) in order.
    """

    def __init__(self, mean: Tensor, deviation: Tensor, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        for place, (weight, bias) in enumerate(layers):
            self.register_buffer(f"weight{place}", weight)
            self.register_buffer(f"bias{place}", bias)
        self.depth = len(layers)

    @property
    def width(self) -> int:
        return len(getattr(self, f"bias{self.depth - 1}"))

    def forward(self, codes: Float[Tensor, "n h"]) -> Float[Tensor, "n width"]:
        """Map codes to latent vectors.

        Raises:
            ValueError: the codes have another width than those it was fitted on.
        """
        if codes.ndim != 2 or codes.shape[1] != len(self.mean):
            raise ValueError(f"codes of shape {tuple(codes.shape)} do not fit an encoder of {len(self.mean)} numbers: "
                             "fit the encoder on this platform's codes")
        x = (codes - self.mean) / self.deviation
        for place in range(self.depth):
            x = torch.relu(x) if place else x
            x = torch.addmm(getattr(self, f"bias{place}"), x, getattr(self, f"weight{place}").t())
        return x

    @classmethod
    def restore(cls, state: Mapping[str, Tensor]) -> "FrozenEncoder":
        """Rebuild from `state_dict()`."""
        depth = sum(name.startswith("weight") for name in state)
        layers = [(state[f"weight{place}"], state[f"bias{place}"]) for place in range(depth)]
        return cls(state["mean"], state["deviation"], layers)


class LatentEncoder(Protocol):
    """A way to fit an encoder to all distinct codes of one platform and operation."""

    width: int

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder: ...


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
        mean, deviation = _standard(codes)
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
        layers = [(part.weight.detach(), part.bias.detach()) for part in encoder if isinstance(part, nn.Linear)]
        return FrozenEncoder(mean, deviation, layers)

    def _halves(self, inputs: int, generator: torch.Generator) -> tuple[nn.Sequential, nn.Sequential]:
        encoder = _mlp((inputs, self.hidden, self.width), generator)
        return encoder, _mlp((self.width, self.hidden, inputs), generator)


class FeatureAugmentation:
    """Put the codes of each platform in places of their own and zeros elsewhere (the paper's baseline FA).

    Args:
        slots: platform -> first place of its codes.
    """

    def __init__(self, *, width: int, slots: Mapping[str, int]) -> None:
        self.width, self.slots = width, dict(slots)

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder:
        """Reserve the places; nothing is learned."""
        if platform not in self.slots:
            raise ValueError(f"no slot for platform {platform}: slots are {', '.join(sorted(self.slots))}")
        start, count = self.slots[platform], codes.shape[1]
        if start + count > self.width:
            raise ValueError(f"{count} codes of {platform} from place {start} exceed the width {self.width}")
        weight = torch.zeros(self.width, count)
        weight[start:start + count] = torch.eye(count)
        return FrozenEncoder(torch.zeros(count), torch.ones(count), ((weight, torch.zeros(self.width)),))


def _standard(codes: np.ndarray) -> tuple[Tensor, Tensor]:
    codes = torch.as_tensor(np.asarray(codes), dtype=torch.float32)
    if codes.ndim != 2 or not len(codes):
        raise ValueError(f"codes of shape {tuple(codes.shape)}: an encoder needs at least one row of codes")
    deviation = codes.std(0, unbiased=False)
    return codes.mean(0), torch.where(deviation > 1e-6, deviation, 1.0)


def _mlp(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        linear = nn.Linear(inputs, outputs)
        bound = 1 / inputs**0.5
        with torch.no_grad():
            linear.weight.uniform_(-bound, bound, generator=generator)
            linear.bias.uniform_(-bound, bound, generator=generator)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
