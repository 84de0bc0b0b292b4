"""Latent encoders: hardware-specific parts of configurations to vectors of one width (COGNATE §3.3)."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["FrozenEncoder", "LatentEncoder", "affine_layers", "standard"]


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
