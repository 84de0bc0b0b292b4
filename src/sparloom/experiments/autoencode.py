"""Fit the latent encoder of one platform and operation (COGNATE §3.3, table 4)."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sparloom.data import SampleSource
from sparloom.experiments.checkpoints import Checkpoints
from sparloom.models import save_encoder
from sparloom.ops import Op

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["Autoencode"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Autoencode:
    """Learn latent vectors of the hardware-specific parameters: all their values, no measurement.

    Args:
        platform: whose space is encoded.
        samples: kind of samples the checkpoint is filed under.
    """

    op: Op
    platform: "Platform"
    samples: SampleSource
    checkpoints: Checkpoints

    def run(self, out: Path) -> Mapping[str, float]:
        """Fit, save, and return how far apart the nearest two latent vectors are."""
        began = time.monotonic()
        space = self.platform.space(self.op)
        codes = space.heterogeneous_codes()
        seed = self.checkpoints.seed
        encoder = self.checkpoints.encoder.fit(codes, platform=self.platform.name, seed=seed)
        path = self.checkpoints.path(self.checkpoints.latent(self.platform, self.op), self.samples)
        save_encoder(path, encoder, space, notes={"seed": seed, "names": list(space.heterogeneous_names)})
        with torch.no_grad():
            points = encoder(torch.as_tensor(codes, dtype=torch.float32))
        apart = torch.pdist(points).min() if len(points) > 1 else torch.tensor(float("inf"))
        logger.info("%s: %d codes of %d numbers to %d", path, *codes.shape, encoder.width)
        return {"codes": len(codes), "least_distance": float(apart), "seconds": time.monotonic() - began}
