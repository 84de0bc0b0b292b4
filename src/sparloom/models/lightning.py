"""Lightning modules of latent encoders and boosted trees; that of networks is `RankingModule`.

With them, `Trainer.fit` trains every model, so that callbacks, loggers, early stopping and checkpoints work alike. They
give the same models as `LatentEncoder.fit` and `BoostingConfig.train`, to the last digit.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import torch
from jaxtyping import Float
from lightning import Callback, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from sparloom.models.cognate.encoder import Autoencoder, AutoencoderNet, FrozenEncoder, LatentEncoder
from sparloom.models.cognate.training import fit, make_trainer
from sparloom.models.performance import BoostingConfig, Rows

ENCODER = "encoder."


def train_on_cpu(
    module: "AutoencoderModule | ClosedFormModule | BoostingModule", *, out: Path,
    logger: Callable[..., Any] | None = None, callbacks: Sequence[Callback] = (),
) -> None:
    """Run `Trainer.fit` with the module's own number of epochs on the CPU, where results do not depend on the device.

    Args:
        out: folder for files of the logger.
        logger: keyword argument save_dir -> Lightning logger; None: no logger.
        callbacks: Lightning callbacks.
    """
    trainer = make_trainer(
        accelerator="cpu", devices=1, strategy="auto", precision="32-true", epochs=module.epochs, validate_every=1,
        out=out, logger=logger(save_dir=out) if logger else False, callbacks=list(callbacks), enable_progress_bar=False)
    fit(trainer, module)


def encoder_module(
    method: LatentEncoder, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int
) -> "AutoencoderModule | ClosedFormModule":
    """Make the module that fits an encoder of any kind to the codes of a platform."""
    if isinstance(method, Autoencoder):
        return AutoencoderModule(method, codes, seed=seed)
    return ClosedFormModule(method, codes, platform=platform, seed=seed)


class AutoencoderModule(LightningModule):
    """Train an autoencoder or a variational autoencoder; logs `train/loss` per epoch.

    Args:
        method: settings, among them the number of epochs; see `epochs`.
        codes: all distinct codes of the platform; the module loads them itself.
        seed: of weights, batches and noise. A checkpoint has the state of their generator, so that training continues
            from it as if it had not been interrupted.
    """

    def __init__(self, method: Autoencoder, codes: Float[np.ndarray, "n h"], *, seed: int) -> None:
        super().__init__()
        self.epochs = method.epochs
        self.net = AutoencoderNet(method, codes, seed=seed)

    def frozen(self) -> FrozenEncoder:
        """Copy the encoder as trained so far."""
        return self.net.frozen()

    def forward(self, codes: Float[Tensor, "n h"]) -> Float[Tensor, "n width"]:
        return self.frozen()(codes)

    def train_dataloader(self) -> DataLoader:
        return _loader(_Epochs(self.net.batches))

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss = self.net(batch)
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(batch))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.net.optimizer()


class ClosedFormModule(LightningModule):
    """Fit an encoder that has a closed form (PCA, feature augmentation, feature mapping) in one step.

    Logs `train/loss`, the mean squared error of the codes that the best affine map reads back from the latent vectors,
    relative to the variance of the codes: 0 where nothing is lost, 1 where everything is.

    Args:
        method: encoder to fit; training ends after its only step.
        codes: all distinct codes of the platform; the module loads them itself.
        platform, seed: as in `LatentEncoder.fit`.
    """

    epochs = 1

    def __init__(self, method: LatentEncoder, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.method, self.codes, self.platform, self.seed = method, codes, platform, seed
        self.encoder: FrozenEncoder | None = None

    def frozen(self) -> FrozenEncoder:
        """Return the fitted encoder.

        Raises:
            ValueError: it is not fitted.
        """
        if self.encoder is None:
            raise ValueError("this encoder is not fitted: run Trainer.fit, or load a checkpoint")
        return self.encoder

    def forward(self, codes: Float[Tensor, "n h"]) -> Float[Tensor, "n width"]:
        return self.frozen()(codes)

    def train_dataloader(self) -> DataLoader:
        return _loader([torch.as_tensor(self.codes, dtype=torch.float32)])

    def training_step(self, codes: Tensor, index: int) -> None:
        self.optimizers().step(self._fit)
        self.log("train/loss", _unexplained(self(codes), codes), batch_size=len(codes))
        self.trainer.should_stop = True

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return _StepCounter()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Rebuild the encoder, whose layers the module does not know before it is fitted."""
        state = {name.removeprefix(ENCODER): value for name, value in checkpoint["state_dict"].items()
                 if name.startswith(ENCODER)}
        self.encoder = FrozenEncoder.restore(state) if state else None

    def _fit(self) -> None:
        self.encoder = self.method.fit(self.codes, platform=self.platform, seed=self.seed).to(self.device)


class BoostingModule(LightningModule):
    """Let LightGBM train a model in one step, with early stopping on held-out rows if there are some.

    Logs `validation/loss`, the error on held-out rows, after every tree. A checkpoint has the trees.

    Args:
        growth: settings, among them the largest number of trees and the patience.
        names: names of the features.
        rows: rows to train on; None: the module only predicts.
        held: held-out rows.
        quantile: quantile of the target to predict instead of the mean.
        base: model whose trees come first.
    """

    epochs = 1

    def __init__(
        self, growth: BoostingConfig, names: tuple[str, ...], *, rows: Rows | None = None, held: Rows | None = None,
        quantile: float | None = None, base: lightgbm.Booster | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.growth, self.names, self.quantile, self.base = growth, names, quantile, base
        self.rows, self.held, self.booster = rows, held, None

    def forward(self, features: Float[Tensor, "rows features"]) -> Float[Tensor, " rows"]:
        """Predict on the scale of the target, with the number of trees that was best on held-out rows.

        Raises:
            ValueError: there is no tree.
        """
        if self.booster is None:
            raise ValueError("there are no trees yet: run Trainer.fit, or load a checkpoint")
        return torch.from_numpy(self.booster.predict(features.cpu().numpy(), num_threads=self.growth.threads))

    def on_fit_start(self) -> None:
        if self.rows is None:
            raise ValueError("there are no rows to train on: pass rows= to BoostingModule")

    def train_dataloader(self) -> DataLoader:
        return _loader([len(self.rows)])

    def training_step(self, batch: Any, index: int) -> None:
        self.optimizers().step(self._fit)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return _StepCounter()

    def get_extra_state(self) -> str | None:
        """Return the trees, which Lightning writes to a checkpoint."""
        return None if self.booster is None else self.booster.model_to_string()

    def set_extra_state(self, trees: str | None) -> None:
        self.booster = None if trees is None else lightgbm.Booster(model_str=trees)

    def _fit(self) -> None:
        options = {"base": self.base, "quantile": self.quantile}
        if self.held is None:
            self.booster = self.growth.train(self.rows, self.names, **options)
            return
        self.booster, losses = self.growth.train_until_best(self.rows, self.held, self.names, **options)
        for number, loss in enumerate(losses):
            for logger in self.loggers:
                logger.log_metrics({"validation/loss": loss}, step=number)
        self.log("validation/loss", torch.tensor(min(losses), dtype=torch.float64), batch_size=1, logger=False)


class _StepCounter(torch.optim.Optimizer):
    """Run a step that needs no gradients: Lightning saves checkpoints by the number of steps of optimizers."""

    def __init__(self) -> None:
        super().__init__([nn.Parameter(torch.zeros(()))], {})

    def step(self, closure: Callable[[], None]) -> None:
        closure()


class _Epochs(IterableDataset):
    """Draw new batches in every pass."""

    def __init__(self, draw: Callable[[], Iterator[Tensor]]) -> None:
        super().__init__()
        self._draw = draw

    def __iter__(self) -> Iterator[Tensor]:
        return self._draw()


def _loader(batches: Any) -> DataLoader:
    """Load ready batches; the generator of its own leaves PyTorch's global random numbers as they are."""
    return DataLoader(batches, batch_size=None, generator=torch.Generator())


def _unexplained(latent: Float[Tensor, "n width"], codes: Float[Tensor, "n h"]) -> Tensor:
    """Return the share of the variance of codes that an affine map of the latent vectors does not explain."""
    inputs, outputs = (values.double() - values.double().mean(0) for values in (latent, codes))
    rest = outputs - inputs @ (torch.linalg.pinv(inputs) @ outputs)
    return rest.square().sum() / outputs.square().sum().clamp_min(1e-12)
