"""The smallest program that can be swept: a function of x and n, which notes every begin and end of a run."""

import os
import signal
import sys
import time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from sparloom import cli
from sparloom.files import write_json
from sparloom.log import report_value


@hydra.main(version_base="1.3", config_path=".", config_name="config")
def main(cfg: DictConfig) -> float | None:
    """Minimise (x - 0.3)^2 + 0.1 (n - 4)^2 + offset; step values start 1 above it and sink towards it."""
    out = Path(HydraConfig.get().runtime.output_dir)
    note(cfg, f"begin {out.name}")
    while Path(cfg.runs).read_text(encoding="utf-8").count("begin") < cfg.meet:
        time.sleep(0.05)
    if cfg.shape.limit is not None and cfg.x > cfg.shape.limit:
        if cfg.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError(f"x {cfg.x} is above {cfg.shape.limit}:\ngive a smaller one")
    loss = (cfg.x - 0.3) ** 2 + 0.1 * (cfg.n - 4) ** 2 + cfg.shape.offset
    for step in range(cfg.steps):
        time.sleep(cfg.pause)
        if report_value(out, step=step, value=loss + 1 / (step + 1)):
            note(cfg, f"stopped {out.name} {step}")
            return None
    metrics = {"loss": loss, "gain": -loss}
    write_json(out / "metrics.json", metrics)
    note(cfg, f"end {out.name}")
    return metrics.get(cfg.objective)


def note(cfg: DictConfig, line: str) -> None:
    """Append one line, whole even if several processes write."""
    with Path(cfg.runs).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


if __name__ == "__main__":
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if any("submitit" in argument for argument in sys.argv):
        from submitit.core.core import Job

        Job._results_timeout_s = 1  # for files of a job that has died, which on this machine do not come late
    sys.exit(cli.guard(main, lambda: ["x", "n", "objective"]))
