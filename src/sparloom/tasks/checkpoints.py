"""Where checkpoints lie: those trained here before those of the data store, each kind of samples by itself."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparloom.data import SampleSource, ensure_data
from sparloom.errors import MissingArtifact

__all__ = ["Checkpoints", "samples_name"]

logger = logging.getLogger(__name__)


def samples_name(samples: SampleSource) -> str:
    """Name a kind of samples as conf/samples does: real, synthetic, tiny, csv."""
    name = type(samples).__name__.removesuffix("Samples").lower()
    return getattr(samples, "folder", "") or "real" if name == "stored" else name


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of networks and encoders by name.

    Args:
        artifacts: folder for those trained here.
        data: folder of the data store; it holds those of the real samples.
    """

    artifacts: str
    data: str

    def path(self, name: str, samples: SampleSource) -> Path:
        """Where a newly trained one goes."""
        return Path(self.artifacts) / "checkpoints" / samples_name(samples) / f"{name}.pt"

    def find(self, name: str, samples: SampleSource, *, experiment: str, overrides: Sequence[str]) -> Path:
        """Find one that exists.

        Raises:
            MissingArtifact: names the experiment that trains it.
        """
        places = [self.path(name, samples)]
        if samples_name(samples) == "real":
            ensure_data(Path(self.data))
            places.append(Path(self.data) / "checkpoints" / f"{name}.pt")
        for place in places:
            if place.exists():
                logger.info("checkpoint %s", place)
                return place
        raise MissingArtifact(f"no checkpoint {name} of {samples_name(samples)} samples in "
                              f"{' or '.join(str(place.parent) for place in places)}",
                              experiment=experiment, overrides=tuple(overrides))
