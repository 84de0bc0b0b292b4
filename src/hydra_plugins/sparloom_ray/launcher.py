"""The launcher: every job of a sweep is a task of Ray, on this machine or on a cluster that shares its files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from sparloom.cli import UsageError
from sparloom.lazy import install_command

CARRIED = ("SPARLOOM_", "HYDRA_", "WANDB_")  # variables that workers, which others may have started, need as well


class RayLauncher(Launcher):
    """Runs jobs as tasks of Ray; results come in the order of the jobs, and a worker that dies takes one job along.

    Args:
        init: arguments of `ray.init`; address auto: the cluster that runs, local: a new one on this machine.
        remote: arguments of `ray.remote`, what each job needs.
    """

    def __init__(self, *, init: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
        self.init, self.remote = init, remote

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra gives."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        """Run all jobs, as many at once as the cluster has room for."""
        ray = _started(self.init)
        setup_globals()
        Path(self.config.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)
        run = ray.remote(**self.remote)(_run)
        tasks = [run.remote(self._job(list(overrides), number))
                 for number, overrides in enumerate(job_overrides, start=initial_job_idx)]
        return [_result(ray, task) for task in tasks]

    def _job(self, overrides: list[str], number: int) -> "_Job":
        config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = f"ray_{number}", number
        variables = {name: value for name, value in os.environ.items() if name.startswith(CARRIED)}
        return _Job(self.hydra_context, self.task_function, config, Singleton.get_state(), Path.cwd(), variables)


@dataclass(frozen=True)
class _Job:
    """All that a worker needs: what Hydra knows here, the folder that paths are relative to, the environment."""

    hydra_context: HydraContext
    task_function: TaskFunction
    config: DictConfig
    singletons: Mapping[Any, Any]
    folder: Path
    variables: Mapping[str, str]


def _started(init: Mapping[str, Any]) -> Any:
    """Join the cluster, once per process, and return the module."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UsageError(f"this launcher needs Ray: {install_command('scale')}") from None
    if not ray.is_initialized():
        try:
            ray.init(**init)
        except ConnectionError as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"no Ray cluster ({reason}): start one with `ray start --head`, name one in RAY_ADDRESS, "
                             "or choose hydra/launcher=ray_local") from None
    return ray


def _run(job: _Job) -> JobReturn:
    os.environ.update(job.variables)
    os.chdir(job.folder)
    setup_globals()
    Singleton.set_state(job.singletons)
    return run_job(hydra_context=job.hydra_context, task_function=job.task_function, config=job.config,
                   job_dir_key="hydra.sweep.dir", job_subdir_key="hydra.sweep.subdir")


def _result(ray: Any, task: Any) -> JobReturn:
    """Wait for a job; one whose worker died has failed."""
    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        return JobReturn(status=JobStatus.FAILED, _return_value=error)
