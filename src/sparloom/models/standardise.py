"""Centring and scaling over matrices: what tells matrices apart, without what they share."""

from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn

__all__ = ["AsIs", "Norm", "Standardise", "norm_of"]

Norm = Literal["none", "standard"]
REACH = 5.0  # standard deviations beyond which a feature counts no further
TINY = 1e-6


class AsIs(nn.Module):
    """Leave features as they are."""

    def fit(self, features: Iterable[Tensor]) -> None:
        """Look at none of them."""

    def forward(self, features: Tensor) -> Tensor:
        return features


class Standardise(nn.Module):
    """Centre and scale nonnegative features over the matrices of training, in logarithms.

    `fit` takes mean and variance from matrices. From then on they follow the features in training, as convolutions
    change them, until `tracking` is unset; a network that is loaded from a file was not fitted, so its moments stay.
    Neither passes a gradient. Processes that train together follow the features of all, one after the other, as one
    process would to which their batches are given in turn.

    Reasoning: global averages of rectified channels are nonnegative, so they may have much in common on all matrices.
    Read raw, that could outweigh what tells matrices apart, and the sizes beside it; `swapped_accuracy` says whether it
    does.

    Args:
        width: of the features.
        gain: of the result; below 1, channels, which are many, weigh less against the few features beside them.
        momentum: weight of the newest matrices in mean and variance while tracking.
    """

    def __init__(self, width: int, *, gain: float, momentum: float = 0.01) -> None:
        super().__init__()
        self.gain, self.momentum = gain, momentum
        self.tracking = False
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    @torch.no_grad()
    def fit(self, features: Iterable[Float[Tensor, "matrices width"]]) -> None:
        """Take mean and variance of all these matrices; in training they follow the features from now on."""
        logs = torch.cat(list(features)).log1p()
        self.mean.copy_(logs.mean(0))
        self.variance.copy_(logs.var(0, unbiased=False))
        self.tracking = True

    def forward(self, features: Float[Tensor, "matrices width"]) -> Float[Tensor, "matrices width"]:
        logs = features.log1p()
        if not (self.training and self.tracking):
            return self._scaled(logs)
        own, every = _gathered(logs.detach())
        for seen in every[:own + 1]:
            self._track(seen)
        scaled = self._scaled(logs)
        for seen in every[own + 1:]:
            self._track(seen)
        return scaled

    def _scaled(self, logs: Tensor) -> Tensor:
        return ((logs - self.mean) / (self.variance.sqrt() + TINY)).clamp(-REACH, REACH) * self.gain

    def _track(self, logs: Tensor) -> None:
        """Move the running moments towards the newest matrices."""
        step = logs.mean(0) - self.mean
        scatter = (logs - self.mean).square().mean(0)
        self.mean.add_(step, alpha=self.momentum)
        self.variance.lerp_(scatter, self.momentum)


def norm_of(name: Norm, width: int, *, gain: float) -> AsIs | Standardise:
    """Make the normalisation of pooled features that an option names.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in ("none", "standard"):
        raise ValueError(f"norm={name!r} is not one of none, standard")
    return Standardise(width, gain=gain) if name == "standard" else AsIs()


def _gathered(logs: Tensor) -> tuple[int, list[Tensor]]:
    """Number of this process among those that train together, and the features of all, which have one shape."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, [logs]
    every = [torch.empty_like(logs) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, logs.contiguous())
    return distributed.get_rank(), every
