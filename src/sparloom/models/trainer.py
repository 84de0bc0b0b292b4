"""Lightning without what costs more than a step here: bars in logs, a checkpoint per epoch, sanity checks, advice."""

import logging
import warnings
from pathlib import Path
from typing import Any

from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import Logger

from sparloom.log import console
from sparloom.models.sparseconv import retain_memory

__all__ = ["fit", "make_trainer"]

ADVICE = (
    ".*does not have many workers.*",          # batches are in memory; a worker would copy them
    ".*`IterableDataset` has `__len__` defined.*",
    ".*GPU available but not used.*",
    ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",  # inside lightning 2.6 with torch 2.13
)


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
        epochs: passes over the training matrices.
        validate_every: epochs between two validations.
        out: folder for whatever the logger or callbacks write.
        more: further arguments of lightning.Trainer.

    Raises:
        ValueError: the strategy would start the program once more for each device, to do all of it again.
    """
    with _quiet():
        trainer = Trainer(
            accelerator=accelerator, devices=devices, strategy=strategy, precision=precision, max_epochs=epochs,
            check_val_every_n_epoch=validate_every, default_root_dir=out, logger=logger, enable_checkpointing=False,
            enable_progress_bar=console.is_terminal, enable_model_summary=False, num_sanity_val_steps=0,
            log_every_n_steps=1, **more,
        )
    if trainer.world_size > 1 and not strategy.startswith("ddp_spawn"):
        raise ValueError(f"trainer.strategy={strategy} would do the whole run once for each of {trainer.world_size} "
                         "devices: choose trainer=ddp, which shares out the training alone, or trainer.devices=1")
    return trainer


def fit(trainer: Trainer, module: LightningModule, data: LightningDataModule) -> None:
    """Run `trainer.fit` without Lightning's advice on workers and devices."""
    retain_memory()
    with _quiet():
        trainer.fit(module, datamodule=data)


class _quiet(warnings.catch_warnings):  # noqa: N801 (reads as a statement)
    """Hide advice and device banners until the block ends."""

    def __enter__(self) -> None:
        super().__enter__()
        for text in ADVICE:
            warnings.filterwarnings("ignore", message=text)
        self._loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
        self._levels = [logger.level for logger in self._loggers]
        for logger in self._loggers:
            logger.setLevel(logging.WARNING)

    def __exit__(self, *problem: object) -> None:
        for logger, level in zip(self._loggers, self._levels, strict=True):
            logger.setLevel(level)
        super().__exit__(*problem)
