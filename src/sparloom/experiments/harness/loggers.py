"""Connect runs to TensorBoard and Weights & Biases; missing packages and keys are reported before anything runs."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from sparloom.lazy import install_command


@dataclass(frozen=True)
class TensorBoard:
    """Write event files to the folder of each training, and the metrics of the run to its own folder.

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
    """Log one run of Weights & Biases per training and one with the metrics, grouped by the folder of the run.

    wandb itself reads server and key, from its environment variables or from `wandb login`.

    Args:
        project, entity: where the runs go; entity None: the default of the account.
        offline: write to folders named wandb beside the results; `wandb sync` can upload them later.

    Raises:
        ImportError: wandb is not installed.
        ValueError: offline is false and no key is configured.
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
    """Logger whose run ends with its training; Lightning would leave it open for the next training."""

    def __getstate__(self) -> dict[str, Any]:
        """Let the training process open the run."""
        return self.__dict__.copy()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        super().finalize(status)
        if self._experiment is not None:
            self._experiment.finish(exit_code=0 if status == "success" else 1)


def _require(package: str) -> None:
    if find_spec(package) is None:
        raise ImportError(f"logger={package} needs the package {package}: {install_command('track')}")


def _log_in() -> None:
    """Look for a key without prompting for it."""
    import wandb

    try:
        found = wandb.login(prompt=False)
    except wandb.errors.Error as error:
        raise ValueError(f"Weights & Biases refuses the key: {error}") from error
    if not found:
        raise ValueError("logger.offline=false needs a key of Weights & Biases: set WANDB_API_KEY, run `wandb login`, "
                         "or stay offline")
