"""Loggers that belong to other programs: TensorBoard, Weights & Biases; what they lack is told before anything runs."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

__all__ = ["TensorBoard", "Wandb"]


@dataclass(frozen=True)
class TensorBoard:
    """Event files in the folder of each training, the metrics of the run in its own.

    Raises:
        ImportError: TensorBoard is not installed.
    """

    def __post_init__(self) -> None:
        _require("tensorboard")

    def __call__(self, *, save_dir: Path) -> Logger:
        """Open the logger of one training, or of the metrics of a run."""
        return TensorBoardLogger(save_dir, name="", version="", default_hp_metric=False)


@dataclass(frozen=True)
class Wandb:
    """One run of Weights & Biases per training and one with the metrics, grouped by the folder of the run.

    Server, key and the like are read by wandb itself, from its environment variables or from what `wandb login` noted.

    Args:
        project, entity: where the runs go; entity None: the default of the account.
        offline: nothing leaves the machine; `wandb sync` can send the folders `wandb` beside the results later.

    Raises:
        ImportError: wandb is not installed.
        ValueError: it would be online, and there is no key.
    """

    project: str
    entity: str | None
    offline: bool

    def __post_init__(self) -> None:
        _require("wandb")
        if not self.offline:
            _log_in()

    def __call__(self, *, save_dir: Path) -> Logger:
        """Open the logger of one training, or of the metrics of a run."""
        if self.offline:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would send statistics of its own
        run = next((folder for folder in (save_dir, *save_dir.parents) if (folder / "command.txt").exists()), save_dir)
        name = save_dir.relative_to(run).as_posix() if run != save_dir else "metrics"
        save_dir.mkdir(parents=True, exist_ok=True)  # wandb falls back to other folders
        return _Ended(project=self.project, entity=self.entity, offline=self.offline, save_dir=save_dir, name=name,
                      group="/".join(run.parts[-2:]))


class _Ended(WandbLogger):
    """A run that ends with its training: Lightning leaves it open, and the next training would go on with it."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave opening to the process that trains."""
        return self.__dict__.copy()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        super().finalize(status)
        if self._experiment is not None:
            self._experiment.finish(exit_code=0 if status == "success" else 1)


def _require(package: str) -> None:
    if find_spec(package) is None:
        raise ImportError(f"logger={package} needs the package {package}: pip install -e .[track]")


def _log_in() -> None:
    """Look for a key without asking for one."""
    import wandb

    try:
        found = wandb.login(prompt=False)
    except wandb.errors.Error as error:
        raise ValueError(f"Weights & Biases refuses the key: {error}") from error
    if not found:
        raise ValueError("logger.offline=false needs a key of Weights & Biases: set WANDB_API_KEY, run `wandb login`, "
                         "or stay offline")
