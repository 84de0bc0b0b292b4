"""Name stored models and find them: models trained here come before those of the data store."""

import hashlib
import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sparloom.data import ROLES, SampleSource, Selection, ensure_data, verify_stored
from sparloom.errors import MissingArtifact
from sparloom.models import LatentEncoder, Network
from sparloom.ops import Op
from sparloom.space import Readings
from sparloom.sparse import Role

if TYPE_CHECKING:
    from sparloom.platforms import Platform

logger = logging.getLogger(__name__)

DEFAULT_WIDTH = 256
"""Columns of the dense operands in WACO and COGNATE."""

UNNAMED = ("cpu", "two_threads")
"""Platform and preset of source networks without a preset in their names, as the data store has them."""
PRETRAIN = "pretrain_cpu"
"""Experiment that pre-trains on any source, given by platform@source."""

FULL = "full"
"""Name of a model that was fitted to all samples."""

SMALL = "small"
"""Name of a model that was distilled to fewer trees."""

INTERVAL = "interval"
"""Name of a model that bounds its predictions."""


def samples_name(samples: SampleSource) -> str:
    """Return the folder of what is learned from a sample source: real, synthetic, tiny, csv.

    A source without a name of its own has that of its class.
    """
    return getattr(samples, "name", None) or type(samples).__name__.removesuffix("Samples").lower()


@dataclass(frozen=True)
class Checkpoints:
    """Name checkpoints of networks and encoders; each kind of samples has a folder of its own.

    A name ends in a digest of everything that tells two checkpoints apart for a run that looks for one: the settings of
    the network and of the latent encoder, and the matrices and the seed of pre-training. The preset of the platform is
    part of the name of a network, but not of that of a latent encoder: presets share their space. A width of the dense
    operands other than 256 and readings other than the recommended ones are part of the name, because spaces depend on
    them. Epochs and learning rate are not part of the name: training again replaces the checkpoint.

    Args:
        artifacts: folder of checkpoints that were trained here.
        data: folder of the data store, which has checkpoints of the real samples.
        encoder: latent encoder of every platform.
        pretraining: which samples of the source networks are pre-trained on.
        seed: of encoders and of pre-training.
        variant: "refit": the usual source network with its convolutions kept and all other layers trained anew, under
            a name of its own; None: the usual one.
    """

    artifacts: str
    data: str
    encoder: LatentEncoder
    pretraining: Selection
    seed: int
    variant: Literal["refit"] | None = None

    def __post_init__(self) -> None:
        if self.variant not in (None, "refit"):
            raise ValueError(f"checkpoints.variant={self.variant!r} is not null or refit")

    def latent(self, platform: "Platform", op: Op) -> str:
        return f"latent_{_named(platform, op)}_{op.name}{_space(platform)}_{self._encoder_tag()}"

    def source(self, platform: "Platform", op: Op, net: Network) -> str:
        preset = "" if (platform.name, platform.preset) == UNNAMED else f"_{platform.preset}"
        variant = "" if self.variant is None else f"_{self.variant}"
        return f"source_{_named(platform, op)}{preset}_{op.name}{_space(platform)}_{self._network_tag(net)}{variant}"

    def finetuned(self, platform: "Platform", op: Op, net: Network) -> str:
        return f"{_finetuned(platform, op)}_{self._network_tag(net)}"

    def overrides(self, platform: "Platform", op: Op, role: str) -> tuple[str, ...]:
        """List the overrides by which an experiment makes a checkpoint for this platform and operation.

        Args:
            role: of the platform, "source" or "target".
        """
        width, option = _columns(platform), getattr(platform, "option", None)
        chosen = () if option is None else (f"platform@{role}={option}",)
        refit = (f"+checkpoints.variant={self.variant}",) if role == "source" and self.variant else ()
        return (f"op={op.name}", *chosen, *((f"{role}.width={width}",) if width != DEFAULT_WIDTH else ()), *refit)

    def path(self, name: str, samples: SampleSource) -> Path:
        """Return the path of a newly trained checkpoint."""
        return Path(self.artifacts) / "checkpoints" / samples_name(samples) / f"{name}.pt"

    def find(
        self, name: str, samples: SampleSource, *, experiment: str, overrides: Sequence[str],
        base: SampleSource | None = None,
    ) -> Path:
        """Find an existing checkpoint.

        Args:
            base: source whose checkpoints serve too, because `samples` takes the samples of this platform from it.

        Raises:
            MissingArtifact: there is none; names the experiment that trains it.
        """
        folders = self._folders(samples, base)
        for folder in folders:
            path = folder / f"{name}.pt"
            if path.exists():
                if folder == Path(self.data) / "checkpoints":
                    verify_stored(Path(self.data), path)
                logger.info("checkpoint %s", path)
                return path
        raise MissingArtifact(f"no checkpoint {name} of {samples_name(samples)} samples in "
                              f"{' or '.join(map(str, folders))}",
                              experiment=experiment, overrides=tuple(overrides))

    def find_finetuned(
        self, platform: "Platform", op: Op, samples: SampleSource, *, experiment: str, overrides: Sequence[str],
    ) -> Path:
        """Find the network of any settings that was fine-tuned last; one that was trained here comes first.

        Raises:
            MissingArtifact: there is none; names the experiment that trains it.
        """
        prefix = _finetuned(platform, op)
        named = re.compile(re.escape(prefix) + r"_[a-z]+-[0-9a-f]{8}")
        for folder in self._folders(samples):
            found = [path for path in folder.glob("finetuned_*.pt") if named.fullmatch(path.stem)]
            if found:
                name = max(found, key=lambda path: (path.stat().st_mtime_ns, path.name)).stem
                break
        else:
            name = f"{prefix}_* (any network)"
        return self.find(name, samples, experiment=experiment, overrides=overrides)

    def _folders(self, samples: SampleSource, base: SampleSource | None = None) -> list[Path]:
        """List the folders of checkpoints, those trained here first; fetches the data store if it has some."""
        folders = [path.parent for path in self.own_paths("any", samples, base)]
        if samples_name(base or samples) == "real":
            ensure_data(Path(self.data))
            folders.append(Path(self.data) / "checkpoints")
        return folders

    def own_paths(self, name: str, samples: SampleSource, base: SampleSource | None = None) -> list[Path]:
        """List the paths of a checkpoint that was trained here, as `find` tries them."""
        return list(dict.fromkeys(self.path(name, each) for each in (samples, base) if each is not None))

    def _encoder_tag(self) -> str:
        made = {"encoder": _made(self.encoder), "seed": self.seed}
        return f"{type(self.encoder).__name__.lower()}-{_digest(made)}"

    def _network_tag(self, net: Network) -> str:
        pretraining = {"class": type(self.pretraining).__name__, **asdict(self.pretraining)}
        made = {"net": net.settings, "encoder": _made(self.encoder), "pretraining": pretraining, "seed": self.seed}
        return f"{type(net).__name__.lower()}-{_digest(made)}"


def experiment_for(verb: str, platform: "Platform") -> str:
    """Return the experiment that makes something for a platform, such as autoencode_spade."""
    return f"{verb}_{getattr(platform, 'experiments', platform.name)}"


def _finetuned(platform: "Platform", op: Op) -> str:
    return f"finetuned_{_named(platform, op)}_{platform.preset}_{op.name}{_space(platform)}"


def _named(platform: "Platform", op: Op) -> str:
    """Return the name of a platform, with the version of its space where users may change that."""
    version = getattr(platform, "version", None)
    return platform.name if version is None else f"{platform.name}-{version(op)}"


def _space(platform: "Platform") -> str:
    """Return a suffix for what the space depends on: columns and readings, each only if it is not the usual one."""
    columns, readings = _columns(platform), getattr(platform, "readings", None)
    width = "" if columns == DEFAULT_WIDTH else f"_{columns}"
    return width if readings in (None, Readings()) else f"{width}_{_digest(asdict(readings))}"


def _columns(platform: "Platform") -> int:
    return getattr(platform, "width", DEFAULT_WIDTH)


def _made(encoder: LatentEncoder) -> dict[str, Any]:
    """Return the class of an encoder and its constructor arguments, which it keeps as attributes."""
    return {"class": type(encoder).__name__, **vars(encoder)}


def _digest(made: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class TreeModels:
    """Name folders of performance models; each kind of samples has its own.

    A folder has `full`, the model that was scored, and optionally `small`, its distilled form, `interval` and a C
    header. The data store, which every clone copies, has the distilled form only. Models that were trained without the
    matrices of some roles have folders of their own, which `find` does not search.

    Args:
        artifacts: folder of models that were trained here.
        data: folder of the data store, which has models of the real samples.
    """

    artifacts: str
    data: str

    def name(self, platform: "Platform", op: Op) -> str:
        """Return the folder name of the models of a platform with its preset."""
        return f"performance_{platform.name}_{platform.preset}_{op.name}"

    def folder(self, platform: "Platform", op: Op, samples: SampleSource, roles: Collection[Role] = ROLES) -> Path:
        """Return the folder of newly trained models that have learned from matrices of these roles."""
        name = "_without_".join([self.name(platform, op), *(role for role in ROLES if role not in roles)])
        return Path(self.artifacts) / "checkpoints" / samples_name(samples) / name

    def find(self, platform: "Platform", op: Op, samples: SampleSource) -> Path:
        """Find a folder of trained models; `best_in` names the best model in it.

        Raises:
            MissingArtifact: there is none; names the experiment that trains them.
        """
        folders = [self.folder(platform, op, samples)]
        if samples_name(samples) == "real":
            ensure_data(Path(self.data))
            folders.append(Path(self.data) / "checkpoints" / self.name(platform, op))
        for folder in folders:
            if best_in(folder).exists():
                for path in sorted(folder.rglob("*")) if folder is not folders[0] else ():
                    verify_stored(Path(self.data), path)
                return folder
        raise MissingArtifact(f"no performance model of {op.name} on {platform.name} {platform.preset} in "
                              f"{' or '.join(str(folder.parent) for folder in folders)}",
                              experiment="fit_trees_cuda" if platform.kind == "device" else "fit_trees",
                              overrides=(f"single.device={platform.preset}",) if platform.kind == "device" else ())


def best_in(folder: Path) -> Path:
    """Return the model that was scored, or its distilled form where that is missing."""
    return folder / FULL if (folder / FULL).exists() else folder / SMALL
