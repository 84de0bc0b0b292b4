"""Train a ranking network once, from scratch or from a checkpoint, and keep its last or its best epoch.

`Reports` passes validation metrics on while a network trains, so that a sweep can stop a hopeless run.
"""

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from lightning import Callback, LightningModule, Trainer

from sparloom.data import MatrixInput, MatrixSamples
from sparloom.data.lightning import RankingData
from sparloom.files import atomic_path
from sparloom.log import Stopped, report_value
from sparloom.models import (
    CognateModel,
    FrozenEncoder,
    MatrixFeatures,
    Network,
    RankingModule,
    fit,
    initialise,
    load_checkpoint,
    load_weights,
)
from sparloom.report import draw_curves
from sparloom.space import ConfigSpace

STRIDE = 100_000  # between the steps of two trainings, more than the epochs of any
logger = logging.getLogger(__name__)


class Reports:
    """Report one metric to the sweep at every validation.

    Trials of a sweep are compared at equal steps, so every training of a run has steps of its own: the epoch, plus
    STRIDE for each earlier training.

    Args:
        metric: name of the logged metric; None: report nothing.
    """

    def __init__(self, out: Path, metric: str | None) -> None:
        self.out = out
        self.metric = metric
        self._trainings = 0

    def begin(self) -> None:
        """Start counting the steps of another training."""
        self._trainings += 1

    def add(self, epoch: int, logged: Mapping[str, float]) -> bool:
        """Report the metric of an epoch; returns whether the run should stop."""
        if self.metric is None:
            return False
        if self.metric not in logged:
            logger.warning("task.recipe.reported=%s is not logged, so no sweep can end this run: choose from %s",
                           self.metric, ", ".join(logged))
            self.metric = None
            return False
        return report_value(self.out, step=(self._trainings - 1) * STRIDE + epoch, value=logged[self.metric])


@dataclass(frozen=True)
class Recipe:
    """Settings of the trainings of one task; every training starts from a copy of `module`.

    Args:
        module: network, optimiser and loss.
        trainer: keyword arguments out and logger -> Lightning trainer.
        logger: keyword argument save_dir -> Lightning logger; None: no logger.
        configs_per_step: labelled configurations of a matrix per step; None: all.
        reported: metric by which a sweep may stop a run, such as validation/opa; it must improve in the direction of
            the objective. None: no metric.
    """

    module: RankingModule
    trainer: Callable[..., Trainer]
    logger: Callable[..., Any] | None
    configs_per_step: int | None
    matrices_per_step: int
    reported: str | None


@dataclass(frozen=True)
class Trained:
    """A trained module, its curves (one row per logged epoch), its wall seconds and number of steps."""

    module: RankingModule
    curves: pd.DataFrame
    seconds: float
    steps: int


def train(
    recipe: Recipe,
    *,
    start: Path | None,
    encoder: FrozenEncoder,
    train: Sequence[MatrixSamples],
    validation: Sequence[MatrixSamples],
    keep: Literal["last", "best"],
    seed: int,
    out: Path,
    reports: Reports,
) -> Trained:
    """Fit a network to the order of the times in `train`.

    Args:
        start: checkpoint to start from; None: weights drawn from the seed, scales taken from `train`.
        validation: for curves; with keep="best" the epoch with the least validation loss is kept.
        reports: receives the metrics of every validation.

    Raises:
        Stopped: a sweep asked the run to end.
    """
    began = time.monotonic()
    module = copy.deepcopy(recipe.module)
    if start is None:
        initialise(module.net, seed)
        module.net.standardise([item.input for item in train])
    else:
        load_weights(module.net, load_checkpoint(start, kind="cognate"), start)
    module.net.use_encoder(encoder)
    reports.begin()
    handed = out / "ended.pt"
    curves = _Curves(reports, keep_best=keep == "best" and bool(validation), handed=handed)
    data = RankingData(train, validation, configs_per_step=recipe.configs_per_step,
                       matrices_per_step=recipe.matrices_per_step, seed=seed)
    torch.manual_seed(seed)
    written = recipe.logger(save_dir=out) if recipe.logger else False
    trainer = recipe.trainer(out=out, logger=written, callbacks=[curves])
    fit(trainer, module, data)
    ended = torch.load(handed, weights_only=True)
    handed.unlink()
    if ended["stopped"]:
        raise Stopped(f"ended after epoch {len(ended['rows'])}, as the sweep asked")
    if ended["best"] is not None:
        module.net.load_state_dict(ended["best"])
    return Trained(module.to("cpu"), pd.DataFrame(ended["rows"]), time.monotonic() - began, ended["steps"])


def with_anchors(net: Network, space: ConfigSpace, inputs: Sequence[MatrixInput]) -> CognateModel:
    """Wrap a network with the embeddings of the matrices it was trained on."""
    bare = CognateModel(net, space)
    anchors = {item.name: bare.embedding(MatrixFeatures.from_stored(item)) for item in inputs}
    return CognateModel(net, space, anchors=anchors)


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
    """Keep logged metrics by epoch and the weights with the least validation loss; report validations.

    Args:
        handed: file for the results, read by the process that started the training: with `trainer=ddp` others train.
    """

    def __init__(self, reports: Reports, *, keep_best: bool, handed: Path) -> None:
        self._rows: list[dict[str, float]] = []
        self._best: dict[str, torch.Tensor] | None = None
        self._stopped = False
        self._reports, self._handed = reports, handed
        self._keep_best, self._least = keep_best, float("inf")

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Record the previous epoch: its sums are logged after the end-of-epoch hooks of callbacks."""
        if trainer.current_epoch:
            self._note(trainer)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self._note(trainer)
        if trainer.is_global_zero:
            self._handed.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"rows": self._rows, "best": self._best, "stopped": self._stopped, "steps": trainer.global_step},
                       self._handed)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        asked = trainer.is_global_zero and self._reports.add(trainer.current_epoch + 1, logged)
        self._stopped = trainer.strategy.reduce_boolean_decision(asked, all=False)
        trainer.should_stop |= self._stopped
        loss = logged.get("validation/prl", float("inf"))
        if self._keep_best and loss < self._least:
            self._least = loss
            self._best = {name: value.detach().cpu().clone() for name, value in module.net.state_dict().items()}

    def _note(self, trainer: Trainer) -> None:
        finished = trainer.current_epoch
        validated = finished % trainer.check_val_every_n_epoch == 0
        row = {name: float(value) for name, value in trainer.callback_metrics.items()}
        kept = {name: value for name, value in row.items() if validated or not name.startswith("validation/")}
        self._rows.append({"epoch": finished, **kept})
