"""Training of a ranking network: a step takes all pairs of configurations of a matrix (COGNATE A.4, table 3)."""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from lightning import LightningModule
from torch import Tensor, nn

from sparloom.data.lightning import RankingBatch
from sparloom.models.network import Network
from sparloom.models.ranking import order_signs, ranking_loss, ranking_quality

__all__ = ["RankingModule"]

LOGGED = ("prl", "opa", "kendall_tau")


class RankingModule(LightningModule):
    """Fit a network to orders of times; the same class pre-trains, fine-tunes and trains without transfer.

    Logged per epoch for train and validation: `prl` (the loss), `opa`, `kendall_tau`, means over the matrices of all
    processes that train together. A training matrix that two processes were given counts twice.

    Args:
        net: what is trained.
        optimizer: parameters -> optimizer.
        margin: of the loss.
        convolution_rate: learning rate of the convolutions, as a share of the optimizer's.
        freeze: parameters that stay as they are: none, the convolutions, or the whole matrix side.
        warmup_steps: over which the learning rate rises linearly.
        decay: learning rate after that: constant (the paper), or down to 0 along half a cosine.
        clip: largest norm of the gradient; None for no limit.
    """

    def __init__(
        self,
        *,
        net: Network,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        margin: float,
        convolution_rate: float,
        freeze: Literal["none", "convolutions", "featurizer"],
        warmup_steps: int,
        decay: Literal["constant", "cosine"],
        clip: float | None,
    ) -> None:
        super().__init__()
        if freeze not in ("none", "convolutions", "featurizer"):
            raise ValueError(f"freeze={freeze!r} is not one of none, convolutions, featurizer")
        if decay not in ("constant", "cosine"):
            raise ValueError(f"decay={decay!r} is not one of constant, cosine")
        self.net, self.optimizer, self.margin, self.freeze = net, optimizer, margin, freeze
        self.convolution_rate = convolution_rate
        self.warmup_steps, self.decay, self.clip = warmup_steps, decay, clip
        self._values = {"train": _nothing(), "validation": _nothing()}

    def setup(self, stage: str) -> None:
        """Freeze before processes join: each waits for the gradients of all parameters that are free by then."""
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

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self._groups())
        for group in optimizer.param_groups:
            group["lr"] *= group["rate"]
        if self.decay == "constant" and self.warmup_steps == 0:
            return optimizer
        total = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self._rate(step, total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, **_: Any) -> None:
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)

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
        """Log means over the matrices of all processes, in one order: a process may know no finite value of a name."""
        values = self._values[stage]
        sums = torch.tensor([[sum(values[name]), len(values[name])] for name in LOGGED], dtype=torch.float64)
        totals = self.trainer.strategy.reduce(sums.to(self.device), reduce_op="sum")
        for name, (total, count) in zip(LOGGED, totals.tolist(), strict=True):
            if count:
                self.log(f"{stage}/{name}", total / count, sync_dist=True)
        self._values[stage] = _nothing()

    def _rate(self, step: int, total: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.decay == "constant":
            return 1.0
        return (1 + math.cos(math.pi * (step - self.warmup_steps) / max(1, total - self.warmup_steps))) / 2

    def _groups(self) -> list[dict[str, Any]]:
        """What is trained, by share of the learning rate."""
        slow = set(self._convolutions()) if self.convolution_rate != 1 else set()
        trained = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        groups = [{"params": [parameter for parameter in trained if (parameter in slow) == inside], "rate": rate}
                  for inside, rate in ((False, 1.0), (True, self.convolution_rate))]
        return [group for group in groups if group["params"]]

    def _convolutions(self) -> list[nn.Parameter]:
        return self.net.featurizer.convolutions()

    def _matrix_side(self) -> list[nn.Parameter]:
        return [*self.net.featurizer.parameters(), *self.net.side.parameters()]


def _nothing() -> dict[str, list[float]]:
    return {name: [] for name in LOGGED}
