"""A trial runs once, though workers of a launcher may outlive the sweep that was killed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import TaskFunction
from omegaconf import DictConfig

from hydra_plugins.sparloom_sweeps._job import metrics
from sparloom.files import locked

__all__ = ["Once"]


@dataclass(frozen=True)
class Once:
    """The task, held off while another process is at the same trial, and left out when that one has ended well.

    Workers that outlive a killed sweep finish what is in their queue. The resumed sweep launches the same trials: of
    two processes the first to lock the folder runs the trial, the second waits and returns what the first has found.
    """

    task: TaskFunction

    def __call__(self, cfg: DictConfig) -> Any:
        """Run the task in the folder of the job, or give the objective that is there."""
        out = Path(HydraConfig.get().runtime.output_dir)
        with locked(out / "job.lock"):
            found = metrics(out).get(cfg.get("objective"))
            return self.task(cfg) if found is None else found
