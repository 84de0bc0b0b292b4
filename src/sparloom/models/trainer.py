"""A Lightning trainer without what costs more than a step here: bars in logs, a checkpoint per epoch, sanity checks."""

from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.loggers import Logger

from sparloom.log import console

__all__ = ["make_trainer"]


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
    """
    return Trainer(
        accelerator=accelerator, devices=devices, strategy=strategy, precision=precision, max_epochs=epochs,
        check_val_every_n_epoch=validate_every, default_root_dir=out, logger=logger, enable_checkpointing=False,
        enable_progress_bar=console.is_terminal, enable_model_summary=False, num_sanity_val_steps=0,
        use_distributed_sampler=True, log_every_n_steps=1, **more,
    )
