"""Latent encoders: hardware-specific parts of configurations to vectors of one width (COGNATE §3.3).

Latent encoders on disk: the same format as networks, kind "encoder".

The paper's latent encoder: half of an autoencoder (COGNATE §3.3, table 4).

A variational latent encoder: the mean of an approximate posterior (COGNATE figure 9).

A linear latent encoder: principal components of the codes (COGNATE figure 9).

The two encoders that learn nothing: feature augmentation and feature mapping (COGNATE §1, §3.3, figures 2 and 9).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.models.cognate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sparloom.space import ConfigSpace

__all__ = [
    "Autoencoder", "FeatureAugmentation", "FeatureMapping", "FrozenEncoder", "LatentEncoder", "PrincipalComponents",
    "VariationalAutoencoder", "affine_layers", "load_encoder", "mlp", "save_encoder", "standard",
]


class FrozenEncoder(nn.Module):
    """A fitted encoder: standardise, then affine layers with ReLU between them; all tensors are buffers, none trained.

    Args:
        mean, deviation: (h,) of the codes.
        layers: (weight (out, in), bias (out,)) in order.
        slot: which platform this is, for networks that give each platform places of its own (see `WacoNet`); None for
            encoders that give all platforms the same vector.
    """

    def __init__(
        self, mean: Tensor, deviation: Tensor, layers: Sequence[tuple[Tensor, Tensor]], *, slot: int | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        for place, (weight, bias) in enumerate(layers):
            self.register_buffer(f"weight{place}", weight)
            self.register_buffer(f"bias{place}", bias)
        self.depth, self.slot = len(layers), slot
        if slot is not None:
            self.register_buffer("platform", torch.tensor(slot))

    @property
    def width(self) -> int:
        return len(getattr(self, f"bias{self.depth - 1}"))

    def check(self, codes: Float[Tensor, "n h"]) -> None:
        """Refuse codes of another platform.

        Raises:
            ValueError: the codes have another width than those it was fitted on.
        """
        if codes.ndim != 2 or codes.shape[1] != len(self.mean):
            raise ValueError(f"codes of shape {tuple(codes.shape)} do not fit an encoder of {len(self.mean)} numbers: "
                             "fit the encoder on this platform's codes")

    def forward(self, codes: Float[Tensor, "n h"]) -> Float[Tensor, "n width"]:
        """Map codes to latent vectors; see `check` for what is refused."""
        self.check(codes)
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
        slot = int(state["platform"]) if "platform" in state else None
        return cls(state["mean"], state["deviation"], layers, slot=slot)


class LatentEncoder(Protocol):
    """A way to fit an encoder to all distinct codes of one platform and operation."""

    width: int

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder: ...


def standard(codes: Float[np.ndarray, "n h"]) -> tuple[Tensor, Tensor]:
    """Mean and deviation (h,) of codes; the deviation of a constant number is 1.

    Raises:
        ValueError: there is no row of codes.
    """
    codes = torch.as_tensor(np.asarray(codes), dtype=torch.float32)
    if codes.ndim != 2 or not len(codes):
        raise ValueError(f"codes of shape {tuple(codes.shape)}: an encoder needs at least one row of codes")
    deviation = codes.std(0, unbiased=False)
    return codes.mean(0), torch.where(deviation > 1e-6, deviation, 1.0)


def affine_layers(net: nn.Sequential) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of the linear layers of a network."""
    return [(part.weight.detach(), part.bias.detach()) for part in net if isinstance(part, nn.Linear)]


def save_encoder(path: Path, encoder: FrozenEncoder, space: ConfigSpace, *, notes: Mapping[str, Any]) -> None:
    """Write the encoder of one platform and operation."""
    save_checkpoint(path, Checkpoint(
        kind="encoder", op=space.op, platform=space.name, space=space.digest(),
        settings={"codes": len(encoder.mean), "width": encoder.width}, weights=encoder.state_dict(), notes=notes,
    ))


def load_encoder(path: Path, space: ConfigSpace) -> FrozenEncoder:
    """Read it back.

    Raises:
        SchemaError: made for another op, platform or version of the space.
    """
    stored = load_checkpoint(path, kind="encoder", op=space.op, platform=space.name, space=space.digest())
    return FrozenEncoder.restore(stored.weights)


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


class PrincipalComponents:
    """Turn standardised codes onto their principal axes, largest variance first; zeros fill the rest of the vector.

    A platform has fewer codes than a latent vector has places, so nothing is lost and this is a rotation. Each axis
    points to where its largest entry is positive. Axes of equal variance are any basis of their plane.

    Args:
        width: of the latent vector; axes beyond it are dropped.
    """

    def __init__(self, *, width: int) -> None:
        self.width = width

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder:
        """Decompose every distinct code of the platform; nothing depends on the seed."""
        mean, deviation = standard(codes)
        x = (np.asarray(codes, np.float64) - mean.numpy()) / deviation.numpy()
        _, _, axes = np.linalg.svd(x, full_matrices=False)
        axes = axes[:self.width]
        largest = np.take_along_axis(axes, np.abs(axes).argmax(1, keepdims=True), axis=1)
        weight = torch.zeros(self.width, codes.shape[1])
        weight[:len(axes)] = torch.from_numpy(axes * np.sign(largest)).float()
        return FrozenEncoder(mean, deviation, ((weight, torch.zeros(self.width)),))


class FeatureAugmentation:
    """Put the codes of each platform in places of their own and zeros elsewhere (the paper's baseline FA).

    Args:
        slots: platform -> first place of its codes.
    """

    mapped = False

    def __init__(self, *, width: int, slots: Mapping[str, int]) -> None:
        self.width, self.slots = width, dict(slots)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platforms with a slot, in the order of their places."""
        return tuple(sorted(self.slots, key=self.slots.__getitem__))

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder:
        """Reserve the places; nothing is learned."""
        if platform not in self.slots:
            raise ValueError(f"no slot for platform {platform}: slots are {', '.join(sorted(self.slots))}")
        start, count = self.slots[platform], codes.shape[1]
        if start + count > self.width:
            raise ValueError(f"{count} codes of {platform} from place {start} exceed the width {self.width}")
        weight = torch.zeros(self.width, count)
        weight[start:start + count] = torch.eye(count)
        return FrozenEncoder(torch.zeros(count), torch.ones(count), ((weight, torch.zeros(self.width)),),
                             slot=self.platforms.index(platform))


class FeatureMapping:
    """Keep what maps onto the loops that all platforms share, and nothing else: the latent vector is 0 (baseline FM).

    The paper says no more than the name. WACO's program embedder, which has no latent vector to lose, still reads the
    codes of each platform in a place of their own: see `ProgramEmbedder`.

    Args:
        platforms: every platform that a network may see, in a fixed order.
    """

    mapped = True

    def __init__(self, *, width: int, platforms: Sequence[str]) -> None:
        self.width, self.platforms = width, tuple(platforms)

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder:
        """Forget the codes; nothing is learned."""
        if platform not in self.platforms:
            raise ValueError(f"no place for platform {platform}: platforms are {', '.join(self.platforms)}")
        count = codes.shape[1]
        nothing = (torch.zeros(self.width, count), torch.zeros(self.width))
        return FrozenEncoder(torch.zeros(count), torch.ones(count), (nothing,), slot=self.platforms.index(platform))
