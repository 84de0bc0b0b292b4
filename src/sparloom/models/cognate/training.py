"""Training of ranking networks with a loss over all pairs of configurations of a matrix (COGNATE A.4, table 3).

`RankingModule` is the Lightning module; `make_trainer` and `fit` run it without checkpoints per epoch, sanity checks
and advice, which here would cost more than the steps. `swapped_accuracy` tests whether a network reads the matrix.
"""

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn

from sparloom.data import MatrixSamples
from sparloom.data.lightning import RankingBatch, collate
from sparloom.log import console
from sparloom.models.cognate.network import Network
from sparloom.models.sparseconv import retain_memory

LOGGED = ("prl", "opa", "kendall_tau")
HIDDEN_WARNINGS = (
    ".*does not have many workers.*",          # batches are in memory; a worker would copy them
    ".*`IterableDataset` has `__len__` defined.*",
    ".*GPU available but not used.*",
    ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",  # inside lightning 2.6 with torch 2.13
)


def order_signs(seconds: Float[Tensor, " n"], spread: Float[Tensor, " n"]) -> Float[Tensor, "n n"]:
    """Return the sign of t_i - t_j, 0 where they differ by at most the larger spread, relative to the faster."""
    gap = seconds[:, None] - seconds[None, :]
    limit = torch.maximum(spread[:, None], spread[None, :]) * torch.minimum(seconds[:, None], seconds[None, :])
    return torch.where(gap.abs() > limit, gap.sign(), 0.0)


def ranking_loss(scores: Float[Tensor, " n"], signs: Float[Tensor, "n n"], *, margin: float) -> Tensor:
    """Average max(0, margin - sign(t_i - t_j) (r_i - r_j)) over ordered pairs; 0 where no pair is ordered.

    Sums over all (i, j); the matrix is symmetric, so the mean equals the mean over i < j.
    """
    gap = (scores[:, None] - scores[None, :]) * signs
    weight = signs.abs()
    return ((margin - gap).clamp_min(0) * weight).sum() / weight.sum().clamp_min(1)


def ranking_quality(
    scores: Float[Tensor, " n"], seconds: Float[Tensor, " n"], signs: Float[Tensor, "n n"]
) -> dict[str, float]:
    """Compute ordered pair accuracy over the pairs in `signs` and Kendall's tau-b over all pairs; NaN if undefined."""
    predicted = (scores[:, None] - scores[None, :]).sign()
    pairs = signs.abs().sum()
    accuracy = (1 + (predicted * signs).sum() / pairs) / 2
    truth = (seconds[:, None] - seconds[None, :]).sign()
    tau = (predicted * truth).sum() / (predicted.abs().sum() * truth.abs().sum()).sqrt()
    return {"opa": float(accuracy), "kendall_tau": float(tau)}


class RankingModule(LightningModule):
    """Train a network to order run times: pre-training, fine-tuning, and training without transfer.

    Logs `prl` (the loss), `opa` and `kendall_tau` per epoch, for train and validation, as means over the matrices of
    all processes. A training matrix that two processes were given counts twice.

    Args:
        optimizer: parameters -> optimizer.
        convolution_rate: learning rate of the convolutions, relative to the optimizer's.
        freeze: parameters that are not trained: none, the convolutions, or featurizer and side vector.
    """

    def __init__(
        self,
        *,
        net: Network,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        margin: float,
        convolution_rate: float,
        freeze: Literal["none", "convolutions", "featurizer"],
    ) -> None:
        super().__init__()
        if freeze not in ("none", "convolutions", "featurizer"):
            raise ValueError(f"freeze={freeze!r} is not one of none, convolutions, featurizer")
        self.net, self.optimizer, self.margin, self.freeze = net, optimizer, margin, freeze
        self.convolution_rate = convolution_rate
        self._values = {"train": _empty_values(), "validation": _empty_values()}

    def setup(self, stage: str) -> None:
        """Freeze parameters before processes join: each then waits for the gradients of all that are not frozen."""
        frozen = {"none": list, "convolutions": self._convolutions, "featurizer": self._matrix_side}[self.freeze]()
        for parameter in self.net.parameters():
            parameter.requires_grad_(True)
        for parameter in frozen:
            parameter.requires_grad_(False)

    def training_step(self, batch: RankingBatch, index: int) -> Tensor:
        return self._step(batch, "train")

    def validation_step(self, batch: RankingBatch, index: int) -> None:
        self._step(batch, "validation")

    def on_train_epoch_end(self) -> None:
        self._log("train")

    def on_validation_epoch_end(self) -> None:
        self._log("validation")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = self.optimizer(self._groups())
        for group in optimizer.param_groups:
            group["lr"] *= group["rate"]
        return optimizer

    def _step(self, batch: RankingBatch, stage: str) -> Tensor:
        scores, counts = self.net(batch), torch.bincount(batch.owner, minlength=len(batch.inputs)).tolist()
        losses = []
        for part, seconds, spread in zip(
            scores.split(counts), batch.seconds.split(counts), batch.spread.split(counts), strict=True
        ):
            signs = order_signs(seconds, spread)
            losses.append(ranking_loss(part, signs, margin=self.margin))
            if not batch.repeated:
                with torch.no_grad():
                    self._note(stage, {"prl": float(losses[-1].detach()), **ranking_quality(part, seconds, signs)})
        return torch.stack(losses).mean()

    def _note(self, stage: str, values: dict[str, float]) -> None:
        for name, value in values.items():
            if math.isfinite(value):
                self._values[stage][name].append(value)

    def _log(self, stage: str) -> None:
        """Log means over the matrices of all processes, in a fixed order: a process may lack values of a name."""
        values = self._values[stage]
        sums = torch.tensor([[sum(values[name]), len(values[name])] for name in LOGGED], dtype=torch.float64)
        totals = self.trainer.strategy.reduce(sums.to(self.device), reduce_op="sum")
        for name, (total, count) in zip(LOGGED, totals.tolist(), strict=True):
            if count:
                self.log(f"{stage}/{name}", total / count, sync_dist=True)
        self._values[stage] = _empty_values()

    def _groups(self) -> list[dict[str, Any]]:
        """Group the trained parameters by their share of the learning rate."""
        slow = set(self._convolutions()) if self.convolution_rate != 1 else set()
        trained = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        groups = [{"params": [parameter for parameter in trained if (parameter in slow) == inside], "rate": rate}
                  for inside, rate in ((False, 1.0), (True, self.convolution_rate))]
        return [group for group in groups if group["params"]]

    def _convolutions(self) -> list[nn.Parameter]:
        return self.net.featurizer.convolutions()

    def _matrix_side(self) -> list[nn.Parameter]:
        return [*self.net.featurizer.parameters(), *self.net.side.parameters()]


def _empty_values() -> dict[str, list[float]]:
    return {name: [] for name in LOGGED}


def make_trainer(
    *,
    accelerator: str,
    devices: int | str,
    strategy: str,
    precision: str,
    epochs: int,
    validate_every: int,
    out: Path,
    logger: Logger | bool = False,
    **more: Any,
) -> Trainer:
    """Build a trainer for one fit.

    Args:
        epochs: number of passes over the training matrices.
        validate_every: number of epochs between validations.
        out: folder for files of the logger and of callbacks.
        more: further arguments of lightning.Trainer; checkpoints are written only by the `callbacks` among them.

    Raises:
        ValueError: the strategy would restart the whole program for each device.
    """
    saves = any(isinstance(each, Checkpoint) for each in more.get("callbacks") or ())
    with _quiet():
        trainer = Trainer(
            accelerator=accelerator, devices=devices, strategy=strategy, precision=precision, max_epochs=epochs,
            check_val_every_n_epoch=validate_every, default_root_dir=out, logger=logger, enable_checkpointing=saves,
            enable_model_summary=False, num_sanity_val_steps=0, log_every_n_steps=1,
            **{"enable_progress_bar": console.is_terminal} | more,
        )
    if trainer.world_size > 1 and not strategy.startswith("ddp_spawn"):
        raise ValueError(f"trainer.strategy={strategy} would repeat the whole run for each of {trainer.world_size} "
                         "devices: choose trainer=ddp, which only distributes the training, or trainer.devices=1")
    return trainer


def fit(
    trainer: Trainer, module: LightningModule, data: LightningDataModule | None = None, *,
    checkpoint: Path | None = None,
) -> None:
    """Run `trainer.fit` without Lightning's advice about workers and devices.

    Args:
        data: batches; None: the module loads its own.
        checkpoint: Lightning checkpoint to continue from.
    """
    retain_memory()
    with _quiet():
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings and device banners until the block ends."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [each.level for each in loggers]
    try:
        with warnings.catch_warnings():
            for text in HIDDEN_WARNINGS:
                warnings.filterwarnings("ignore", message=text)
            for each in loggers:
                each.setLevel(logging.WARNING)
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


@torch.no_grad()
def swapped_accuracy(net: Network, items: Sequence[MatrixSamples]) -> dict[str, float]:
    """Compare the accuracy with each matrix's own embedding to that with the embedding of another matrix.

    The other matrix is half the list away. Both are equal if the network learned one order for all matrices.

    Returns:
        `opa` and `opa_swapped`, means over matrices with ordered pairs.
    """
    training = net.training
    net.eval()
    try:
        embeddings = [net.embed([item.input]) for item in items]
        shifted = [embeddings[(index + len(items) // 2) % len(items)] for index in range(len(items))]
        return {"opa": _accuracy(net, items, embeddings), "opa_swapped": _accuracy(net, items, shifted)}
    finally:
        net.train(training)


def _accuracy(net: Network, items: Sequence[MatrixSamples], embeddings: Sequence[Tensor]) -> float:
    accuracies = []
    for item, embedding in zip(items, embeddings, strict=True):
        batch = collate((item,))
        scores = net.score(embedding.expand(len(item), -1), batch.shared, batch.heterogeneous)
        signs = order_signs(batch.seconds, batch.spread)
        accuracies.append(ranking_quality(scores, batch.seconds, signs)["opa"])
    return float(np.nanmean(accuracies))
