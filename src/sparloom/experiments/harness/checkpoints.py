"""Where checkpoints lie and what they are called: those trained here before those of the data store.

Where performance models lie and what they are called: those trained here before those of the data store.
"""

import hashlib
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparloom.data import ROLES, SampleSource, Selection, ensure_data, verify_stored
from sparloom.errors import MissingArtifact
from sparloom.files import restore_folder
from sparloom.models import LatentEncoder, Network
from sparloom.ops import Op
from sparloom.renamed import stored_class_name
from sparloom.sparse import Role

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["Checkpoints", "TreeModels", "best_in", "samples_name"]

logger = logging.getLogger(__name__)

DEFAULT_WIDTH = 256  # columns of the dense operands in WACO and COGNATE


def samples_name(samples: SampleSource) -> str:
    """Name a kind of samples as conf/samples does: real, synthetic, tiny, csv."""
    name = stored_class_name(samples).removesuffix("Samples").lower()
    return getattr(samples, "folder", "") or "real" if name == "stored" else name


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of networks and encoders; each kind of samples has a folder of its own.

    A name ends in a digest of what a run that looks for the checkpoint knows of it: how the network and the latent
    encoder are made, which matrices and which seed the network was pre-trained with. So one network is never taken for
    another. Spaces depend on the columns of the dense operands: a number other than 256 is in the name. How long and at
    which rate it was trained is not: train again what is to replace it.

    Args:
        artifacts: folder for those trained here.
        data: folder of the data store; it holds those of the real samples.
        encoder: latent encoder of every platform.
        pretraining: which samples of the source networks are pre-trained on.
        seed: of encoders and of pre-training.
    """

    artifacts: str
    data: str
    encoder: LatentEncoder
    pretraining: Selection
    seed: int

    def latent(self, platform: "Platform", op: Op) -> str:
        """Name of the latent encoder of a platform."""
        return f"latent_{platform.name}_{op.name}{_width(platform)}_{self._encoder_tag()}"

    def source(self, platform: "Platform", op: Op, net: Network) -> str:
        """Name of a network pre-trained on a platform."""
        return f"source_{platform.name}_{op.name}{_width(platform)}_{self._network_tag(net)}"

    def finetuned(self, platform: "Platform", op: Op, net: Network) -> str:
        """Name of the network that recommends on a platform with its preset."""
        return f"finetuned_{platform.name}_{platform.preset}_{op.name}{_width(platform)}_{self._network_tag(net)}"

    def overrides(self, platform: "Platform", op: Op, role: str) -> tuple[str, ...]:
        """Say to an experiment what it shall make a checkpoint for.

        Args:
            role: of the platform, "source" or "target".
        """
        width = _columns(platform)
        return (f"op={op.name}", *((f"{role}.width={width}",) if width != DEFAULT_WIDTH else ()))

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
                if place is not places[0]:
                    verify_stored(Path(self.data), place)
                logger.info("checkpoint %s", place)
                return place
        raise MissingArtifact(f"no checkpoint {name} of {samples_name(samples)} samples in "
                              f"{' or '.join(str(place.parent) for place in places)}",
                              experiment=experiment, overrides=tuple(overrides))

    def _encoder_tag(self) -> str:
        made = {"encoder": _made(self.encoder), "seed": self.seed}
        return f"{stored_class_name(self.encoder).lower()}-{_digest(made)}"

    def _network_tag(self, net: Network) -> str:
        pretraining = {"class": stored_class_name(self.pretraining), **asdict(self.pretraining)}
        made = {"net": net.settings, "encoder": _made(self.encoder), "pretraining": pretraining, "seed": self.seed}
        return f"{stored_class_name(net).lower()}-{_digest(made)}"


def _width(platform: "Platform") -> str:
    return "" if _columns(platform) == DEFAULT_WIDTH else f"_{_columns(platform)}"


def _columns(platform: "Platform") -> int:
    return getattr(platform, "width", DEFAULT_WIDTH)


def _made(encoder: LatentEncoder) -> dict[str, Any]:
    """How an encoder was made: its class and the arguments, which it keeps."""
    return {"class": stored_class_name(encoder), **vars(encoder)}


def _digest(made: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:8]


FULL, SMALL, INTERVAL = "full", "small", "interval"


@dataclass(frozen=True)
class TreeModels:
    """Folders of performance models; each kind of samples has its own.

    A folder has `full`, the model that was scored, and maybe `small`, its distilled one, `interval` and a C header. The
    data store, which every clone copies, has the distilled one alone. Models that may not know the matrices of some
    roles lie beside those that know all, which alone are found unasked.

    Args:
        artifacts: folder for those trained here.
        data: folder of the data store; it holds those of the real samples.
    """

    artifacts: str
    data: str

    def name(self, platform: "Platform", op: Op) -> str:
        """Name of the models of a platform with its preset."""
        return f"performance_{platform.name}_{platform.preset}_{op.name}"

    def folder(self, platform: "Platform", op: Op, samples: SampleSource, roles: Collection[Role] = ROLES) -> Path:
        """Where newly trained ones go, which may know the matrices of these roles."""
        name = "_without_".join([self.name(platform, op), *(role for role in ROLES if role not in roles)])
        return Path(self.artifacts) / "checkpoints" / samples_name(samples) / name

    def find(self, platform: "Platform", op: Op, samples: SampleSource) -> Path:
        """Find the folder of trained ones; `best_in` names the best model in it.

        Raises:
            MissingArtifact: names the experiment that trains them.
        """
        places = [self.folder(platform, op, samples)]
        if samples_name(samples) == "real":
            ensure_data(Path(self.data))
            places.append(Path(self.data) / "checkpoints" / self.name(platform, op))
        for place in places:
            for name in (FULL, SMALL):
                restore_folder(place / name)
            if best_in(place).exists():
                for path in sorted(place.rglob("*")) if place is not places[0] else ():
                    verify_stored(Path(self.data), path)
                return place
        raise MissingArtifact(f"no performance model of {op.name} on {platform.name} {platform.preset} in "
                              f"{' or '.join(str(place.parent) for place in places)}", experiment="fit_trees")


def best_in(folder: Path) -> Path:
    """Name the model that was scored, or the distilled one where that is missing."""
    return folder / FULL if (folder / FULL).exists() else folder / SMALL
