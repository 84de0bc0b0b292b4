"""The two encoders that learn nothing: feature augmentation and feature mapping (COGNATE §1, §3.3, figures 2 and 9)."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float

from sparloom.models.encoder import FrozenEncoder

__all__ = ["FeatureAugmentation", "FeatureMapping"]


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
