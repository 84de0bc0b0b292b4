"""Train a ranking network once, from scratch or from a checkpoint, and keep its last or its best epoch.

`Autoencode` fits the latent encoder of a platform (COGNATE §3.3), `Pretrain` trains on the source platform (§4.1).
"""

import copy
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping

from sparloom import models
from sparloom.data import MatrixInput, MatrixSamples, SampleSource, draw_labels, matrix_samples
from sparloom.data.lightning import RankingData
from sparloom.experiments.cognate.evaluation_data import EvaluationData, with_statistics
from sparloom.experiments.harness import (
    PRETRAIN,
    Checkpoints,
    experiment_for,
    labels_with_noise,
    samples_name,
    samples_of,
)
from sparloom.files import atomic_path, write_json
from sparloom.ops import Op
from sparloom.report import draw_curves
from sparloom.space import ConfigSpace

if TYPE_CHECKING:
    from sparloom.platforms import Platform

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """Settings of the trainings of one task; every training starts from a copy of `module`.

    Args:
        module: network, optimiser and loss.
        trainer: keyword arguments out and logger -> Lightning trainer.
        logger: keyword argument save_dir -> Lightning logger; None: no logger.
        configs_per_step: labelled configurations of a matrix per step; None: all.
        stopping_tau: end a training after the first epoch with this mean Kendall's tau on its own matrices, so that
            networks with and without transfer are trained equally well; None: train all epochs.
        scratch_freeze: parameters that are not trained where all weights are drawn at random: none, or the
            convolutions, as `freeze` does with those of a pre-trained network.
    """

    module: models.RankingModule
    trainer: Callable[..., Trainer]
    logger: Callable[..., Any] | None
    configs_per_step: int | None
    matrices_per_step: int
    stopping_tau: float | None = None
    scratch_freeze: Literal["none", "convolutions"] = "none"

    def __post_init__(self) -> None:
        """Refuse an unknown option before anything is trained."""
        if self.scratch_freeze not in ("none", "convolutions"):
            raise ValueError(f"task.recipe.scratch_freeze={self.scratch_freeze!r} is not one of none, convolutions")


@dataclass(frozen=True)
class Trained:
    """A trained module, its curves (one row per logged epoch), its wall seconds and number of steps."""

    module: models.RankingModule
    curves: pd.DataFrame
    seconds: float
    steps: int


def train(
    recipe: Recipe,
    *,
    start: Path | None,
    encoder: models.FrozenEncoder,
    train: Sequence[MatrixSamples],
    validation: Sequence[MatrixSamples],
    keep: Literal["last", "best"],
    seed: int,
    out: Path,
    convolutions: Path | None = None,
) -> Trained:
    """Fit a network to the order of the times in `train`.

    Args:
        start: checkpoint to start from; None: weights drawn from the seed, scales taken from `train`.
        convolutions: without `start`, checkpoint whose convolutions are taken and not trained further; None: they are
            drawn and trained, too.
        validation: for curves; with keep="best" the epoch with the least validation loss is kept.
    """
    began = time.monotonic()
    module = copy.deepcopy(recipe.module)
    if start is None:
        module.freeze = recipe.scratch_freeze if convolutions is None else "convolutions"
        models.initialise(module.net, seed)
        if convolutions is not None:
            models.load_convolutions(module.net, models.load_checkpoint(convolutions, kind="cognate"), convolutions)
        module.net.standardise([item.input for item in train])
    else:
        models.load_weights(module.net, models.load_checkpoint(start, kind="cognate"), start)
    module.net.use_encoder(encoder)
    handed = out / "ended.pt"
    curves = _Curves(keep_best=keep == "best" and bool(validation), handed=handed)
    data = RankingData(train, validation, configs_per_step=recipe.configs_per_step,
                       matrices_per_step=recipe.matrices_per_step, seed=seed)
    torch.manual_seed(seed)
    written = recipe.logger(save_dir=out) if recipe.logger else False
    trainer = recipe.trainer(out=out, logger=written, callbacks=[curves, *_stop_at(recipe.stopping_tau)])
    models.fit(trainer, module, data)
    ended = torch.load(handed, weights_only=True)
    handed.unlink()
    if ended["best"] is not None:
        module.net.load_state_dict(ended["best"])
    return Trained(module.to("cpu"), pd.DataFrame(ended["rows"]), time.monotonic() - began, ended["steps"])


def _stop_at(tau: float | None) -> list[Callback]:
    """End after the first epoch in which the mean Kendall's tau on the training matrices is at least `tau`."""
    if tau is None:
        return []
    if not 0 < tau < 1:
        raise ValueError(f"task.recipe.stopping_tau={tau} is not between 0 and 1: leave it null to train all epochs")
    return [EarlyStopping("train/kendall_tau", mode="max", stopping_threshold=tau, patience=sys.maxsize,
                          check_on_train_epoch_end=True)]


def with_anchors(net: models.Network, space: ConfigSpace, inputs: Sequence[MatrixInput]) -> models.CognateModel:
    """Wrap a network with the embeddings of the matrices it was trained on."""
    bare = models.CognateModel(net, space)
    anchors = {item.name: bare.embedding(models.MatrixFeatures.from_stored(item)) for item in inputs}
    return models.CognateModel(net, space, anchors=anchors)


def write_curves(out: Path, curves: Sequence[pd.DataFrame]) -> None:
    """Write `curves.csv` with columns method, seed, epoch and every logged metric, and draw it."""
    frame = pd.concat(curves, ignore_index=True)
    with atomic_path(out / "curves.csv") as partial:
        frame.to_csv(partial, index=False)
    draw_curves(frame, out / "curves")


def ends(curves: pd.DataFrame) -> dict[str, float]:
    """Return the last value of every logged metric, and the least validation loss."""
    last = {name: float(values.dropna().iloc[-1]) for name, values in curves.items()
            if name != "epoch" and values.notna().any()}
    if "validation/prl" in curves and curves["validation/prl"].notna().any():
        best = curves.loc[curves["validation/prl"].idxmin()]
        last |= {"best/epoch": float(best["epoch"]), "best/validation_prl": float(best["validation/prl"])}
    return last


class _Curves(Callback):
    """Keep logged metrics by epoch and the weights with the least validation loss.

    Args:
        handed: file for the results, read by the process that started the training: with `trainer=ddp` others train.
    """

    def __init__(self, *, keep_best: bool, handed: Path) -> None:
        self._rows: list[dict[str, float]] = []
        self._best: dict[str, torch.Tensor] | None = None
        self._handed = handed
        self._keep_best, self._least = keep_best, float("inf")

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Record the previous epoch: its sums are logged after the end-of-epoch hooks of callbacks."""
        if trainer.current_epoch:
            self._note(trainer)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self._note(trainer)
        if trainer.is_global_zero:
            self._handed.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"rows": self._rows, "best": self._best, "steps": trainer.global_step}, self._handed)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        loss = float(trainer.callback_metrics.get("validation/prl", float("inf")))
        if self._keep_best and loss < self._least:
            self._least = loss
            self._best = {name: value.detach().cpu().clone() for name, value in module.net.state_dict().items()}

    def _note(self, trainer: Trainer) -> None:
        finished = trainer.current_epoch
        validated = finished % trainer.check_val_every_n_epoch == 0
        row = {name: float(value) for name, value in trainer.callback_metrics.items()}
        logged = {name: value for name, value in row.items() if validated or not name.startswith("validation/")}
        self._rows.append({"epoch": finished, **logged})


@dataclass(frozen=True)
class Autoencode:
    """Learn latent vectors of the hardware-specific parameters from all their values; nothing is measured.

    Args:
        platform: platform whose space is encoded.
        samples: sample source whose checkpoint folder is used.
        logger: keyword argument save_dir -> Lightning logger of the loss; None: no logger.
    """

    op: Op
    platform: "Platform"
    samples: SampleSource
    checkpoints: Checkpoints
    logger: Callable[..., Any] | None = None

    def run(self, out: Path) -> Mapping[str, float]:
        """Fit and save the encoder; return the least distance of two latent vectors."""
        began = time.monotonic()
        space = self.platform.space(self.op)
        codes = space.heterogeneous_codes()
        seed = self.checkpoints.seed
        module = models.encoder_module(self.checkpoints.encoder, codes, seed=seed,
                                       platform=getattr(self.platform, "codes_of", self.platform.name))
        models.train_on_cpu(module, out=out / "training", logger=self.logger)
        encoder = module.frozen()
        path = self.checkpoints.path(self.checkpoints.latent(self.platform, self.op), self.samples)
        models.save_encoder(path, encoder, space, notes={"seed": seed, "names": list(space.heterogeneous_names)})
        with torch.no_grad():
            points = encoder(torch.as_tensor(codes, dtype=torch.float32))
        apart = torch.pdist(points).min() if len(points) > 1 else torch.tensor(float("inf"))
        logger.info("%s: %d codes of %d numbers to %d", path, *codes.shape, encoder.width)
        return {"codes": len(codes), "least_distance": float(apart), "seconds": time.monotonic() - began}


@dataclass(frozen=True)
class Pretrain:
    """Train on matrices of the source; keep the epoch with the least loss on validation matrices.

    Args:
        checkpoints: also select the training matrices, at most those that are labelled.
        validation_matrices: largest number of validation matrices.
        convolutions: path of a pre-trained network with the same convolutions, which are taken and not trained, so that
            another part of the network is compared at a fraction of the cost; None: all parts are trained.
    """

    op: Op
    platform: "Platform"
    samples: SampleSource
    recipe: Recipe
    checkpoints: Checkpoints
    validation_matrices: int
    convolutions: str | None = None

    def run(self, out: Path) -> Mapping[str, float]:
        """Train, save checkpoint and curves; return last and best losses, and accuracies with swapped matrices."""
        space = self.platform.space(self.op)
        named = f"{self.platform.name}_{self.op.name}"
        EvaluationData(self.platform, self.op, self.samples, "validation").refuse_other_widths()
        latent = self.checkpoints.find(self.checkpoints.latent(self.platform, self.op), self.samples,
                                       experiment=experiment_for("autoencode", self.platform),
                                       overrides=self.checkpoints.overrides(self.platform, self.op, "target"))
        encoder = models.load_encoder(latent, space)
        table = samples_of(self.samples, self.platform, self.op)
        labels = labels_with_noise(table, space.default().key)
        split, statistics = self.samples.split(), self.samples.statistics()
        inputs = with_statistics(self.samples.inputs(), statistics)
        roles = {role: sorted(name for name in split if split[name] == role) for role in ("train", "validation")}
        labelled = set(labels["matrix"])
        candidates = [name for name in roles["train"] if name in labelled]
        wanted, seed = self.checkpoints.pretraining, self.checkpoints.seed
        selection = replace(wanted, matrices=min(wanted.matrices, len(candidates)))
        chosen = draw_labels(selection, labels, statistics=statistics, candidates=candidates, seed=seed)
        watched = [name for name in roles["validation"] if name in labelled][:self.validation_matrices]
        items = matrix_samples(chosen, inputs, space)
        held = matrix_samples(labels[labels["matrix"].isin(watched)], inputs, space)
        names = [item.input.name for item in items]
        write_json(out / "split.json", {"train": sorted(names), "validation": watched, "test": [], "families": {
            name: family for name, family in sorted(self.samples.families().items()) if name in {*names, *watched}}})
        logger.info("%s: %d matrices, %d labels; validation on %d", named, len(items), len(chosen), len(held))
        trained = train(self.recipe, start=None, encoder=encoder, train=items, validation=held,
                        keep="best", seed=seed, out=out / "training",
                        convolutions=self._taken_convolutions())
        path = self.checkpoints.path(
            self.checkpoints.source(self.platform, self.op, self.recipe.module.net), self.samples)
        notes = {"matrices": names, "labels": len(chosen), "seed": seed, "samples": samples_name(self.samples),
                 "preset": self.platform.preset, "epochs": int(trained.curves["epoch"].max())}
        with_anchors(trained.module.net, space, [item.input for item in items]).save(
            path, notes=notes, precision="float16")
        write_curves(out, [trained.curves.assign(method="pretrain", seed=seed)])
        logger.info("%s after %.0f s", path, trained.seconds)
        probe = models.swapped_accuracy(trained.module.net, held) if held else {}
        return {"matrices": len(items), "labels": len(chosen), "seconds": trained.seconds, **ends(trained.curves),
                **{f"kept/validation_{name}": value for name, value in probe.items()}}

    def _taken_convolutions(self) -> Path | None:
        """Return the checkpoint whose convolutions are taken: a network that is trained anew has the usual one's."""
        if self.convolutions is not None or self.checkpoints.variant is None:
            return None if self.convolutions is None else Path(self.convolutions)
        usual = replace(self.checkpoints, variant=None)
        return usual.find(usual.source(self.platform, self.op, self.recipe.module.net), self.samples,
                          experiment=PRETRAIN, overrides=usual.overrides(self.platform, self.op, "source"))
