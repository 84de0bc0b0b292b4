"""COGNATE: a matrix embedding, a mapped configuration and a latent code meet in a predictor (COGNATE §3.1)."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Cognate", "RankingBatch", "initialise"]


@dataclass(frozen=True)
class RankingBatch:
    """One or several matrices with the configurations that were tried on each.

    Args:
        names: of the matrices.
        sites: map of the convolution backend over all of them.
        side: (matrices, s) raw side numbers.
        shared: (n, 53) encoded shared schedules, matrix after matrix.
        latent: (n, latent) codes of the hardware-specific parts.
        owner: (n,) matrix of every row.
        counts: configurations per matrix.
        seconds: (n,) labels.
        spread: (n,) relative differences below which a pair carries no order.
    """

    names: tuple[str, ...]
    sites: Any
    side: Tensor
    shared: Tensor
    latent: Tensor
    owner: Tensor
    counts: tuple[int, ...]
    seconds: Tensor
    spread: Tensor

    def to(self, device: torch.device | str) -> "RankingBatch":
        """Copy to a device."""
        moved = {name: getattr(self, name).to(device)
                 for name in ("sites", "side", "shared", "latent", "owner", "seconds", "spread")}
        return replace(self, **moved)


class Cognate(nn.Module):
    """The cost model's network, put together from parts that can each be replaced.

    Args:
        featurizer: (sites, side) -> (matrices, width).
        side: raw side numbers -> (matrices, side width).
        mapper: (n, 53) -> (n, config width).
        predictor: (n, matrix), (n, config), (n, latent) -> (n,).
    """

    def __init__(self, *, featurizer: nn.Module, side: nn.Module, mapper: nn.Module, predictor: nn.Module) -> None:
        super().__init__()
        self.featurizer, self.side, self.mapper, self.predictor = featurizer, side, mapper, predictor

    @property
    def settings(self) -> dict[str, Any]:
        """How the parts were made, as plain values."""
        return {name: {"class": type(part).__name__, **part.settings} for name, part in self.named_children()}

    def embed(self, sites: Any, side: Tensor) -> Tensor:
        """Embed matrices: (matrices, width)."""
        return self.featurizer(sites, self.side(side))

    def score(self, embedding: Tensor, shared: Tensor, latent: Tensor) -> Tensor:
        """Score configurations, one embedding row each: (n,), low = fast."""
        return self.predictor(embedding, self.mapper(shared), latent)

    def forward(self, batch: RankingBatch) -> Tensor:
        """Score all configurations of a batch: (n,); the convolutions run once per matrix."""
        embedding = self.embed(batch.sites, batch.side)
        return self.score(embedding.index_select(0, batch.owner), batch.shared, batch.latent)


def initialise(net: nn.Module, seed: int) -> None:
    """Draw all weights anew from a seed, in the order of the modules; buffers stay.

    Linear layers are drawn uniformly within 1 / sqrt(inputs), PyTorch's rule; a part with `reset(generator)` draws its
    own parameters.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in net.modules():
            if isinstance(part, nn.Linear):
                bound = 1 / max(1, part.in_features) ** 0.5
                part.weight.uniform_(-bound, bound, generator=generator)
                if part.bias is not None:
                    part.bias.uniform_(-bound, bound, generator=generator)
            elif hasattr(part, "reset"):
                part.reset(generator)
