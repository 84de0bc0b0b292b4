"""What learning on a target begins with: the latent encoder of the target and a network pre-trained on the source."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparloom.data import SampleSource, ensure_data
from sparloom.experiments.checkpoints import Checkpoints
from sparloom.experiments.study import Study
from sparloom.files import sha256, write_json
from sparloom.models import Checkpoint, CognateModel, FrozenEncoder, Network, fill, load_checkpoint, load_encoder
from sparloom.space import ConfigSpace

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["Beginning", "begin"]


@dataclass(frozen=True)
class Beginning:
    """The target's encoder, and the pre-trained network with its notes; their files."""

    encoder: FrozenEncoder
    latent: Path
    source: Path
    notes: Mapping[str, Any]

    def write(self, out: Path, checkpoints: Checkpoints, samples: SampleSource) -> None:
        """Write hashes of both files to made_from.json; null for one that would have come first, had it been there."""
        paths = (self.latent, self.source)
        first = [checkpoints.path(path.stem, samples) for path in paths]
        absent = {str(path): None for path in first if not path.exists()}
        write_json(out / "made_from.json", absent | {str(path): sha256(path) for path in paths})

    def zero_shot(self, net: Network, space: ConfigSpace) -> CognateModel:
        """The pre-trained network with the target's encoder, as it is.

        Args:
            net: made as the pre-trained one was; a copy is filled.
            space: of the target.
        """
        net = copy.deepcopy(net)
        fill(net, load_checkpoint(self.source, kind="cognate"), self.source)
        net.use_encoder(self.encoder)
        return CognateModel(net, space)


def begin(
    study: Study, *, source: "Platform", net: Network, checkpoints: Checkpoints, pretrained: str | None
) -> Beginning:
    """Find the encoder and the pre-trained network for the platform of a study.

    Args:
        net: made as the pre-trained one was.
        pretrained: path of the pre-trained network, made from whatever samples; None: the one of the study's samples.

    Raises:
        MissingArtifact: names the experiment that makes what is missing.
        ValueError: the network has learned from a matrix that judges.
    """
    given = None if pretrained is None else _existing(Path(pretrained), source, checkpoints)
    latent = checkpoints.find(checkpoints.latent(study.platform, study.op), study.samples,
                              experiment=f"autoencode_{study.platform.name}",
                              overrides=checkpoints.overrides(study.platform, study.op, "target"))
    trained = given or checkpoints.find(checkpoints.source(source, study.op, net), study.samples,
                                        experiment=f"pretrain_{source.name}",
                                        overrides=checkpoints.overrides(source, study.op, "source"))
    space = source.space(study.op)
    stored = load_checkpoint(trained, kind="cognate", op=study.op.name, platform=space.name, space=space.digest())
    _refuse_seen(trained, stored, study)
    return Beginning(load_encoder(latent, study.space), latent, trained, stored.notes)


def _existing(path: Path, source: "Platform", checkpoints: Checkpoints) -> Path:
    if not path.is_file():
        ensure_data(Path(checkpoints.data))
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: task.pretrained is the path of a checkpoint of "
                                f"experiment=pretrain_{source.name}; null takes the one of these samples")
    return path


def _refuse_seen(source: Path, stored: Checkpoint, study: Study) -> None:
    """Refuse a pre-trained network that has learned from a matrix that judges, or from another version of one.

    Raises:
        ValueError: names the first of them.
    """
    families = study.samples.families()

    def marks(name: str) -> set[str]:
        """What versions of one input share: the family, or the pattern under another name."""
        patterns = {study.inputs[name].digest} if name in study.inputs else set()
        return {families.get(name, name)} | patterns

    judging = {mark for name in study.truth.matrices for mark in marks(name)}
    seen = [name for name in stored.notes.get("matrices", ()) if judging & marks(name)]
    if seen:
        raise ValueError(f"{source} was trained on {len(seen)} of the matrices that judge, or on versions of them "
                         f"({', '.join(seen[:3])}{', ...' if len(seen) > 3 else ''}): train it on others "
                         f"(experiment=pretrain_{stored.platform}), or choose another task.eval_role")
