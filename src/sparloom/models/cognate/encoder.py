"""Latent encoders: map the hardware-specific parameters of a configuration to a vector of fixed width (COGNATE §3.3).

`Autoencoder` is the paper's (table 4). Figure 9 compares it with `VariationalAutoencoder`, `PrincipalComponents` and
the two that learn nothing, `FeatureAugmentation` and `FeatureMapping`. Each fits a `FrozenEncoder`, which is stored
like a network, with kind "encoder". `encoder_module` makes the Lightning module that trains any of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.models.cognate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sparloom.space import ConfigSpace


class FrozenEncoder(nn.Module):
    """A fitted encoder: standardise codes, then apply affine layers with ReLU in between; it is not trained further.

    Args:
        mean, deviation: (h,), of the codes.
        layers: (weight (out, in), bias (out,)) in order.
        slot: index of the platform, for networks with separate parameters per platform (see `WacoNet`); None for
            encoders whose vector means the same on all platforms.
    """

    def __init__(
        self, mean: Tensor, deviation: Tensor, layers: Sequence[tuple[Tensor, Tensor]], *, slot: int | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        for index, (weight, bias) in enumerate(layers):
            self.register_buffer(f"weight{index}", weight)
            self.register_buffer(f"bias{index}", bias)
        self.depth, self.slot = len(layers), slot
        if slot is not None:
            self.register_buffer("platform", torch.tensor(slot))

    @property
    def width(self) -> int:
        return len(getattr(self, f"bias{self.depth - 1}"))

    def check(self, codes: Float[Tensor, "n h"]) -> None:
        """Check that codes have the width of the platform that the encoder was fitted on.

        Raises:
            ValueError: they have another width.
        """
        if codes.ndim != 2 or codes.shape[1] != len(self.mean):
            raise ValueError(f"codes of shape {tuple(codes.shape)} do not fit an encoder of {len(self.mean)} numbers: "
                             "fit the encoder on this platform's codes")

    def forward(self, codes: Float[Tensor, "n h"]) -> Float[Tensor, "n width"]:
        """Map codes to latent vectors; raises as `check` does."""
        self.check(codes)
        x = (codes - self.mean) / self.deviation
        for index in range(self.depth):
            x = torch.relu(x) if index else x
            x = torch.addmm(getattr(self, f"bias{index}"), x, getattr(self, f"weight{index}").t())
        return x

    @classmethod
    def restore(cls, state: Mapping[str, Tensor]) -> "FrozenEncoder":
        """Rebuild an encoder from its `state_dict()`."""
        depth = sum(name.startswith("weight") for name in state)
        layers = [(state[f"weight{index}"], state[f"bias{index}"]) for index in range(depth)]
        slot = int(state["platform"]) if "platform" in state else None
        return cls(state["mean"], state["deviation"], layers, slot=slot)


class LatentEncoder(Protocol):
    """Fits an encoder to all distinct codes of one platform and operation."""

    width: int

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder: ...


def save_encoder(path: Path, encoder: FrozenEncoder, space: ConfigSpace, *, notes: Mapping[str, Any]) -> None:
    """Write the encoder of one platform and operation as a checkpoint."""
    save_checkpoint(path, Checkpoint(
        kind="encoder", op=space.op, platform=space.name, space=space.digest(),
        settings={"codes": len(encoder.mean), "width": encoder.width}, weights=encoder.state_dict(), notes=notes,
    ))


def load_encoder(path: Path, space: ConfigSpace) -> FrozenEncoder:
    """Read an encoder that `save_encoder` wrote.

    Raises:
        SchemaError: it was made for another op, platform or version of the space.
    """
    stored = load_checkpoint(path, kind="encoder", op=space.op, platform=space.name, space=space.digest())
    return FrozenEncoder.restore(stored.weights)


class Autoencoder:
    """Half of an autoencoder (§3.3); over-complete where a platform has fewer codes than `width`.

    Args:
        width: width of the latent vector, 64 in table 6.
        hidden: width of the one hidden layer on either side; the paper gives no depth.
        epochs, batch_size, learning_rate: table 4; the loss is the mean squared error, the optimizer Adam.
    """

    outputs = 1  # of the encoder, per entry of the latent vector

    def __init__(self, *, width: int, hidden: int, epochs: int, batch_size: int, learning_rate: float) -> None:
        self.width, self.hidden = width, hidden
        self.epochs, self.batch_size, self.learning_rate = epochs, batch_size, learning_rate

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder:
        """Train on every distinct code of the platform, in shuffled batches, as `AutoencoderModule` does."""
        net = AutoencoderNet(self, codes, seed=seed)
        optimizer = net.optimizer()
        for _ in range(self.epochs):
            for batch in net.batches():
                optimizer.zero_grad(set_to_none=True)
                net(batch).backward()
                optimizer.step()
        return net.frozen()

    def loss(
        self, encoder: nn.Sequential, decoder: nn.Sequential, batch: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Compute the loss of a batch of standardised codes."""
        return nn.functional.mse_loss(decoder(encoder(batch)), batch)


class VariationalAutoencoder(Autoencoder):
    """Mean of the approximate posterior of a variational autoencoder (figure 9).

    The loss per code is half the squared error plus `noise` times the divergence from the standard normal prior, which
    corresponds to a Gaussian decoder with this variance.

    Args:
        width, hidden, epochs, batch_size, learning_rate: as in `Autoencoder`; the paper gives no details.
        noise: variance of a decoded number, relative to standardised codes; at 1 the posterior collapses.
    """

    outputs = 2  # mean and logarithm of the variance

    def __init__(
        self, *, width: int, hidden: int, epochs: int, batch_size: int, learning_rate: float, noise: float
    ) -> None:
        super().__init__(width=width, hidden=hidden, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
        self.noise = noise

    def loss(
        self, encoder: nn.Sequential, decoder: nn.Sequential, batch: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Compute the loss of a batch of standardised codes."""
        centre, spread = encoder(batch).chunk(2, dim=1)  # the spread as the logarithm of the variance
        drawn = centre + (spread / 2).exp() * torch.randn(centre.shape, generator=generator).to(centre)
        error = (decoder(drawn) - batch).square().sum(1) / 2
        divergence = (centre.square() + spread.exp() - 1 - spread).sum(1) / 2
        return (error + self.noise * divergence).mean()


class AutoencoderNet(nn.Module):
    """Encoder and decoder in training, with their codes and random numbers: weights, then batches and noise in turn.

    Args:
        settings: widths, loss and learning rate.
        codes: all distinct codes of the platform.
    """

    def __init__(self, settings: Autoencoder, codes: Float[np.ndarray, "n h"], *, seed: int) -> None:
        super().__init__()
        mean, deviation = _moments(codes)
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        self.settings, self.codes = settings, (torch.as_tensor(codes, dtype=torch.float32) - mean) / deviation
        self.generator = torch.Generator().manual_seed(seed)
        self.encoder = _mlp((len(mean), settings.hidden, settings.outputs * settings.width), self.generator)
        self.decoder = _mlp((settings.width, settings.hidden, len(mean)), self.generator)

    def batches(self) -> Iterator[Float[Tensor, "n h"]]:
        """Draw the batches of one epoch, of standardised codes."""
        for rows in torch.randperm(len(self.codes), generator=self.generator).split(self.settings.batch_size):
            yield self.codes[rows]

    def forward(self, batch: Float[Tensor, "n h"]) -> Tensor:
        """Compute the loss of a batch."""
        return self.settings.loss(self.encoder, self.decoder, batch, self.generator)

    def optimizer(self) -> torch.optim.Optimizer:
        """Make the optimizer of all weights."""
        return torch.optim.Adam([*self.encoder.parameters(), *self.decoder.parameters()],
                                lr=self.settings.learning_rate)

    def frozen(self) -> FrozenEncoder:
        """Copy the encoder as trained so far; of a variational one, the part that gives the mean."""
        *hidden, (weight, bias) = ((part.weight.detach().clone(), part.bias.detach().clone())
                                   for part in self.encoder if isinstance(part, nn.Linear))
        width = self.settings.width
        return FrozenEncoder(self.mean, self.deviation, [*hidden, (weight[:width].clone(), bias[:width].clone())])

    def get_extra_state(self) -> Tensor:
        """Return the state of the generator, so that training can continue from a checkpoint."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())


class PrincipalComponents:
    """Project standardised codes onto their principal axes, largest variance first, and pad the vector with zeros.

    Platforms have fewer codes than a latent vector has entries, so this is a rotation without loss. The sign of an axis
    makes its largest entry positive. Axes of equal variance are an arbitrary basis of their plane.

    Args:
        width: width of the latent vector; further axes are dropped.
    """

    def __init__(self, *, width: int) -> None:
        self.width = width

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder:
        """Compute the axes from every distinct code of the platform; the seed is not used."""
        mean, deviation = _moments(codes)
        x = (np.asarray(codes, np.float64) - mean.numpy()) / deviation.numpy()
        _, _, axes = np.linalg.svd(x, full_matrices=False)
        axes = axes[:self.width]
        largest = np.take_along_axis(axes, np.abs(axes).argmax(1, keepdims=True), axis=1)
        weight = torch.zeros(self.width, codes.shape[1])
        weight[:len(axes)] = torch.from_numpy(axes * np.sign(largest)).float()
        return FrozenEncoder(mean, deviation, ((weight, torch.zeros(self.width)),))


class FeatureAugmentation:
    """Give each platform its own entries of the vector, zeros elsewhere (the paper's baseline FA).

    Args:
        slots: platform -> index of its first entry.
    """

    mapped = False

    def __init__(self, *, width: int, slots: Mapping[str, int]) -> None:
        self.width, self.slots = width, dict(slots)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platforms with a slot, in the order of their entries."""
        return tuple(sorted(self.slots, key=self.slots.__getitem__))

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder:
        """Copy the codes to the platform's entries; nothing is learned."""
        if platform not in self.slots:
            raise ValueError(f"no slot for platform {platform}: slots are {', '.join(sorted(self.slots))}")
        start, count = self.slots[platform], codes.shape[1]
        if start + count > self.width:
            raise ValueError(f"{count} codes of {platform} from entry {start} on exceed the width {self.width}")
        weight = torch.zeros(self.width, count)
        weight[start:start + count] = torch.eye(count)
        return FrozenEncoder(torch.zeros(count), torch.ones(count), ((weight, torch.zeros(self.width)),),
                             slot=self.platforms.index(platform))


class FeatureMapping:
    """Drop the hardware-specific codes: the latent vector is 0, and only shared loops are read (baseline FM).

    The paper gives only the name. WACO's program embedder has no latent vector and still reads the codes of each
    platform through tables of their own: see `ProgramEmbedder`.

    Args:
        platforms: every platform that a network may read, in a fixed order.
    """

    mapped = True

    def __init__(self, *, width: int, platforms: Sequence[str]) -> None:
        self.width, self.platforms = width, tuple(platforms)

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder:
        """Drop the codes; nothing is learned."""
        if platform not in self.platforms:
            raise ValueError(f"platform {platform} has no slot: platforms are {', '.join(self.platforms)}")
        count = codes.shape[1]
        nothing = (torch.zeros(self.width, count), torch.zeros(self.width))
        return FrozenEncoder(torch.zeros(count), torch.ones(count), (nothing,), slot=self.platforms.index(platform))


def _moments(codes: Float[np.ndarray, "n h"]) -> tuple[Tensor, Tensor]:
    """Compute mean and standard deviation (h,) of codes; the deviation of a constant column is 1.

    Raises:
        ValueError: there is no row of codes.
    """
    codes = torch.as_tensor(np.asarray(codes), dtype=torch.float32)
    if codes.ndim != 2 or not len(codes):
        raise ValueError(f"codes of shape {tuple(codes.shape)}: an encoder needs at least one row of codes")
    deviation = codes.std(0, unbiased=False)
    return codes.mean(0), torch.where(deviation > 1e-6, deviation, 1.0)


def _mlp(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Build linear layers with ReLU in between, drawn from the generator by PyTorch's rule."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        linear = nn.Linear(inputs, outputs)
        bound = 1 / inputs**0.5
        with torch.no_grad():
            linear.weight.uniform_(-bound, bound, generator=generator)
            linear.bias.uniform_(-bound, bound, generator=generator)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
