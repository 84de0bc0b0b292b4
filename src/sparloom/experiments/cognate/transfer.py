"""Load what learning on a target starts from: its latent encoder and a network pre-trained on the source.

`LearnerConfig` configures models without a network: which labels are drawn, and whether the source network votes.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from sparloom import models
from sparloom.data import SampleSource, Selection, Uncertainty, ensure_data, select_labels
from sparloom.experiments.cognate.evaluation_data import EvaluationData
from sparloom.experiments.harness import PRETRAIN, Checkpoints, experiment_for
from sparloom.files import sha256, write_json
from sparloom.space import ConfigSpace

if TYPE_CHECKING:
    from sparloom.platforms import Platform

REFERENCE_LABELS = 25  # number of labels at which the source has source_votes votes


@dataclass(frozen=True)
class TransferInit:
    """Encoder of the target and checkpoint of the pre-trained network, with its platform and notes, and their files."""

    encoder: models.FrozenEncoder
    latent: Path
    source: Path
    notes: Mapping[str, Any]

    def write(self, out: Path, checkpoints: Checkpoints, samples: SampleSource) -> None:
        """Write hashes of both files to made_from.json, and null for files that would have taken precedence."""
        paths = (self.latent, self.source)
        own = [*checkpoints.own_paths(self.latent.stem, samples),
               *checkpoints.own_paths(self.source.stem, samples, base_of(samples))]
        absent = {str(path): None for path in own if not path.exists()}
        write_json(out / "made_from.json", absent | {str(path): sha256(path) for path in paths})

    def zero_shot(self, net: models.Network, space: ConfigSpace) -> models.CognateModel:
        """Return the pre-trained network with the encoder of the target, without further training.

        Args:
            net: network with the settings of the pre-trained one; a copy is filled.
        """
        net = copy.deepcopy(net)
        models.load_weights(net, models.load_checkpoint(self.source, kind="cognate"), self.source)
        net.use_encoder(self.encoder)
        return models.CognateModel(net, space)


def load_transfer(
    study: EvaluationData, *, source: "Platform", net: models.Network, checkpoints: Checkpoints, pretrained: str | None
) -> TransferInit:
    """Find the encoder and the pre-trained network for the platform of an evaluation.

    Args:
        net: network with the settings of the pre-trained one.
        pretrained: path of a pre-trained network of any samples; None: the network of the evaluation's samples.

    Raises:
        MissingArtifact: a file is missing; names the experiment that makes it.
        ValueError: the network has learned from a judged matrix.
    """
    existing = None if pretrained is None else _existing(Path(pretrained), checkpoints)
    latent = checkpoints.find(checkpoints.latent(study.platform, study.op), study.samples,
                              experiment=experiment_for("autoencode", study.platform),
                              overrides=checkpoints.overrides(study.platform, study.op, "target"))
    trained = existing or checkpoints.find(checkpoints.source(source, study.op, net), study.samples,
                                           experiment=PRETRAIN,
                                           overrides=checkpoints.overrides(source, study.op, "source"),
                                           base=base_of(study.samples))
    space = source.space(study.op)
    stored = models.load_checkpoint(trained, kind="cognate", op=study.op.name, platform=space.name,
                                    space=space.digest())
    _refuse_seen(trained, stored, study)
    return TransferInit(models.load_encoder(latent, study.space), latent, trained,
                        {"platform": space.name, **stored.notes})


def base_of(samples: SampleSource) -> SampleSource | None:
    """Return the source from which CSV and joined samples take those of other platforms; None for other samples."""
    return getattr(samples, "base", None)


def _existing(path: Path, checkpoints: Checkpoints) -> Path:
    if not path.is_file():
        ensure_data(Path(checkpoints.data))
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: task.pretrained is the path of a checkpoint of "
                                f"experiment={PRETRAIN}; null takes the one of these samples")
    return path


def _refuse_seen(source: Path, stored: models.Checkpoint, study: EvaluationData) -> None:
    """Refuse a pre-trained network that has learned from a judged matrix, or from another version of one.

    Raises:
        ValueError: names the first of these matrices.
    """
    families = study.samples.families()

    def marks(name: str) -> set[str]:
        """Return what versions of one input share: the family, or the pattern under another name."""
        patterns = {study.inputs[name].digest} if name in study.inputs else set()
        return {families.get(name, name)} | patterns

    judging = {mark for name in study.truth.matrices for mark in marks(name)}
    seen = [name for name in stored.notes.get("matrices", ()) if judging & marks(name)]
    if seen:
        raise ValueError(f"{source} was trained on {len(seen)} of the matrices that judge, or on versions of them "
                         f"({', '.join(seen[:3])}{', ...' if len(seen) > 3 else ''}): train it on others "
                         f"(experiment={PRETRAIN}), or choose another task.eval_role")


@dataclass(frozen=True)
class LearnerConfig:
    """Configure a model without a network: its labels, and the votes of the source network.

    Args:
        source: platform on which the voting network was pre-trained.
        net: network with the settings of the pre-trained one.
        source_votes: votes of the source network beside one of each member, times 25 / labels, so that it counts most
            when labels are few; a formula that the labels confirm has many more. 0: no source network.
        estimate: learn what the formula of the platform leaves unexplained, where it has one and the model can.
    """

    selection: Selection
    model: models.Learner
    source: "Platform"
    net: models.Network
    checkpoints: Checkpoints
    source_votes: float
    estimate: bool

    def begin(self, study: EvaluationData) -> tuple[models.Learner, TransferInit | None]:
        """Return the model, with the estimate of the platform, and the source network that votes in it, if it does.

        Raises:
            MissingArtifact: the source network is missing; names the experiment that trains it.
            ValueError: the model has no members to vote with, or the samples have other widths only.
        """
        study.refuse_other_widths()
        model = models.with_estimate(self.model, study.estimator if self.estimate else None)
        if not self.source_votes:
            return model, None
        if not isinstance(self.model, models.Ensemble):
            raise ValueError("task.source_votes lets the source vote with the members of a model, and this model "
                             "has none: take model=ensemble, or task.source_votes=0")
        beginning = load_transfer(study, source=self.source, net=self.net, checkpoints=self.checkpoints,
                                  pretrained=None)
        budget = self.selection.matrices * self.selection.configs_per_matrix
        votes = self.source_votes * REFERENCE_LABELS / budget
        return model.with_pretrained(beginning.zero_shot(self.net, study.space), votes), beginning

    def learn(self, study: EvaluationData, learner: models.Learner, seed: int) -> tuple[pd.DataFrame, models.CostModel]:
        """Draw labels, in rounds if the selection queries the model, and fit the model to all of them."""
        learner = learner.with_seed(seed)
        if not isinstance(self.selection, Uncertainty):
            labels = study.draw(self.selection, seed)
            return labels, learner.fit(labels, space=study.space, matrices=study.views)
        if not isinstance(learner, models.Ensemble):
            raise ValueError("selection=uncertainty asks where members of a model disagree, and this model has none: "
                             "take model=ensemble, or selection=spread")
        configs = list(study.space)
        labels = study.draw(self.selection.initial(), seed)
        model = learner.fit(labels, space=study.space, matrices=study.views)
        for count in self.selection.quotas():
            fresh = sorted(set(study.names("train")) - set(labels["matrix"]))
            opinions = {name: model.member_scores(study.views[name], configs) for name in fresh}
            chosen = self.selection.most_uncertain(opinions, count)
            keys = {name: [configs[index].key for index in indices] for name, indices in chosen.items()}
            labels = pd.concat([labels, select_labels(study.labels, keys)], ignore_index=True)
            model = learner.fit(labels, space=study.space, matrices=study.views)
        return labels, model
