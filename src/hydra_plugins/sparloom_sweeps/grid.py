"""The sweeper of grids: every combination of values, each a run of its own, compared at the end."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from hydra_plugins.sparloom_sweeps._jobs import Grid, Job, Once, State, metrics, read_grid
from hydra_plugins.sparloom_sweeps._results import Composer, conclude, flat, plain
from hydra_plugins.sparloom_sweeps._study import written
from sparloom import log
from sparloom.cli import Reported, UsageError, suggestion

LONGEST, DEEPEST = 240, 1000  # bytes of a folder's name, and of all names below the sweep's folder
SHORTENED = 80                 # bytes of a name that is too long
UNNAMED = "hydra.job.config.override_dirname.exclude_keys"  # options that are not in names of folders


class JobSweeper(Sweeper):
    """Base of sweepers that run jobs in batches."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra gives and make the launcher."""
        self.config = config
        self.hydra_context = hydra_context
        self._settings = _settings_of_sweep(config)
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=Once(task_function), config=config)
        self.compose = Composer(hydra_context.config_loader, config.hydra.job.config_name)

    def folder(self, swept: Mapping[str, Sequence[str]]) -> Path:
        """Name the folder of the sweep, after its experiments where there are several.

        Args:
            swept: parameter -> its values, if they can be listed.
        """
        hydra = self.config.hydra
        with open_dict(hydra):
            if hydra.runtime.choices.get("experiment") is None:  # Hydra calls the folder None
                names = swept.get("experiment") or swept.get("task") or [hydra.runtime.choices.get("task") or "sweep"]
                hydra.runtime.choices.experiment = folder_name(",".join(names))
            hydra.sweep.dir = str(Path(hydra.sweep.dir).absolute())
        return Path(hydra.sweep.dir)

    def load_job(self, fixed: Sequence[str], point: Sequence[str]) -> DictConfig:
        """Compose the configuration of a job, with Hydra's own node.

        Args:
            fixed, point: overrides of all jobs, and of this one.

        Raises:
            HydraException: an override does not fit.
            UsageError: a swept option chooses a launcher, a sweeper or a folder, for which it is too late.
        """
        whole = self.hydra_context.config_loader.load_sweep_config(self.config, [*fixed, *point])
        for name, settings in _settings_of_sweep(whole).items():
            before = self._settings[name]
            if settings != before:
                chosen = whole.hydra.runtime.choices.get(f"hydra/{name}")
                if chosen is None:
                    remedy = f"hydra.{name}=<folder>"
                elif chosen != self.config.hydra.runtime.choices.get(f"hydra/{name}"):
                    remedy = f"hydra/{name}={chosen}"
                else:
                    key = next(key for key in settings if settings[key] != before.get(key))
                    remedy = f"hydra.{name}.{key}={settings[key]}"
                raise UsageError(f"{' '.join(point)} chooses a {name} of its own, and a sweep has one {name} for all "
                                 f"runs: give {remedy} on the command line, or run it by itself")
        return whole

    def launch(self, jobs: Sequence[Job]) -> Sequence[JobReturn | Exception]:
        """Run jobs at once; if the launcher fails, as when a worker was killed, its exception stands for every job."""
        try:
            return self.launcher.launch([job.overrides for job in jobs], initial_job_idx=jobs[0].trial.number)
        except Exception as error:
            return [error] * len(jobs)


class GridSweeper(JobSweeper):
    """Runs a grid as Hydra's own sweeper does; a run that fails does not hide the others.

    Started again in the same folder, it runs what has not finished with the same configuration.

    Args:
        params: key -> values, joined by commas; the command line wins.
        max_batch_size: how many the launcher gets at once; None: all.
        direction: maximize or minimize the metric that the root key `objective` names, if it names one.
    """

    def __init__(self, *, params: Mapping[str, Any] | None, max_batch_size: int | None, direction: str) -> None:
        self.params, self.max_batch_size, self.direction = params or {}, max_batch_size, direction

    def sweep(self, arguments: list[str]) -> None:
        """Run what has not finished, then print and draw what came of all."""
        if self.direction not in ("maximize", "minimize"):
            raise UsageError(f"hydra.sweeper.direction={self.direction} is not one of maximize, minimize")
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        grid = read_grid(self.params, arguments, parser.parse_overrides)
        folder = self.folder(grid.values)
        jobs = self._jobs(grid, folder)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        waiting = [job for job in jobs if job.trial.state is State.WAITING]
        if len(waiting) < len(jobs):
            log.console.print(f"grid: {len(jobs) - len(waiting)} of {len(jobs)} runs done", markup=False)
        size = self.max_batch_size or len(jobs)
        for begin in range(0, len(waiting), size):
            batch = waiting[begin: begin + size]
            for job in batch:
                job.clear()
            for job, returned in zip(batch, self.launch(batch), strict=True):
                _end(job, returned)
        points = [job.trial for job in jobs]
        objectives = {job.objective for job in jobs}  # values of different ones are not compared
        conclude(points, objective=objectives.pop() if len(objectives) == 1 else None, fixed=grid.fixed, folder=folder,
                 maximize=self.direction == "maximize", compose=self.compose)
        failed = sum(point.state is State.FAIL for point in points)
        if failed:
            log.errors.print(f"error: {failed} of {len(points)} runs failed", markup=False)
            raise Reported(f"{failed} of {len(points)} runs failed")

    def _jobs(self, grid: Grid, folder: Path) -> list[Job]:
        """Make the jobs of all points; those that another process has finished are known at once.

        Raises:
            HydraException: a combination does not compose; nothing has run yet.
        """
        jobs: dict[Path, Job] = {}
        unnamed = [key for key in self.config.hydra.job.config.override_dirname.exclude_keys if key not in grid.varied]
        for point in grid.points():
            changes = point.user_attrs["point"]
            whole = self.load_job([*grid.fixed, f"{UNNAMED}={written(unnamed)}"], changes)
            with open_dict(whole):
                whole.hydra.job.num = point.number
            name, config = folder_name(str(whole.hydra.sweep.subdir)), plain(whole)
            job = Job(point, [*grid.fixed, *changes, *in_folder(folder, name)], folder / name,
                      OmegaConf.select(config, "objective"))
            if job.folder in jobs:
                raise UsageError(f"{' '.join(changes)} has the folder of another run, {job.folder}: give each value "
                                 "once, and leave hydra.sweep.subdir out or name in it what differs")
            jobs[job.folder] = job
            if _finished(job.folder, config):
                _end(job, None)
        return list(jobs.values())


def in_folder(folder: Path, name: str) -> list[str]:
    """Return the overrides that put a run into the folder of the sweep; ++ tells them from those of the user."""
    return [f"++hydra.sweep.dir={written(str(folder))}", f"hydra.sweep.subdir={written(name)}"]


def _settings_of_sweep(whole: DictConfig) -> dict[str, Any]:
    """Return what a sweep has once for all its runs, with interpolations as they are written."""
    hydra = OmegaConf.to_container(whole.hydra, resolve=False)
    return {"launcher": hydra["launcher"], "sweeper": hydra["sweeper"], "sweep.dir": hydra["sweep"]["dir"]}


def folder_name(changes: str) -> str:
    """Name the folder of a run by what it changes; what is too long, or leads elsewhere, ends in a digest.

    Args:
        changes: key=value, joined by commas; slashes in values make folders in folders.
    """
    parts = changes.split("/")
    if all(part not in (".", "..") and len(part.encode()) <= LONGEST for part in parts) and len(changes) <= DEEPEST:
        return changes
    digest = hashlib.sha256(changes.encode()).hexdigest()[:8]
    return f"{changes.replace('/', '_').encode()[:SHORTENED].decode(errors='ignore')}_{digest}"


def _finished(folder: Path, config: DictConfig) -> bool:
    """Tell whether a run with this configuration has ended well in the folder."""
    saved = folder / ".hydra" / "config.yaml"
    return bool(metrics(folder)) and saved.exists() and flat(OmegaConf.load(saved)) == flat(config)


def _end(job: Job, done: JobReturn | Exception | None) -> None:
    """Note what came of a job.

    Args:
        done: what the launcher gave back; None: the job had ended before.
    """
    point, found = job.trial, metrics(job.folder)
    point.value = job.value()
    reason = job.failure(done) if done is not None else None
    if reason is None and job.objective is not None and point.value is None:
        reason = f"no finite metric {job.objective!r}: {suggestion(job.objective, found)}"
    point.state = State.FAIL if reason else State.COMPLETE
    point.user_attrs |= {"folder": str(job.folder), "seconds": job.seconds(), "metrics": found}
    if reason:
        point.user_attrs["reason"] = reason
