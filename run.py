"""Run one experiment: python run.py experiment=<name>; options in conf/. Without arguments: what can be run."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from sparloom import cli, log
from sparloom.errors import MissingArtifact
from sparloom.log import Stopped

ROOT = Path(__file__).resolve().parent
CONF = ROOT / "conf"
LOCAL_LOGGERS = ("csv", "none")  # write no more than curves


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float | None:
    """Run the chosen task in the folder that Hydra made for it."""
    settings = HydraConfig.get()
    given = cli.Given(list(settings.overrides.task), dict(settings.runtime.choices), cfg)
    try:
        check(cfg, given, Path(settings.runtime.output_dir))
        return execute(cfg, Path(settings.runtime.output_dir), given).get(cfg.objective)
    except cli.Reported:
        if settings.mode == RunMode.RUN:
            sys.exit(1)
        raise  # a sweep notes the failure of this job


def check(cfg: DictConfig, given: cli.Given, out: Path) -> None:
    """Refuse options that would be ignored where they choose data, and name others that nothing reads."""
    if "arms" in cfg.task:
        return  # options go to the arms; those that reach none are refused there
    tree = OmegaConf.to_container(cfg, resolve=False)
    try:
        cli.refuse_unseen_width(tree, OmegaConf.to_container(cfg, resolve=True), given.overrides)
        cli.refuse_other_machines(tree, given.overrides)
        cli.refuse_beside_shape(tree, given.overrides)
    except cli.UsageError as error:
        cli.fail(error, out, debug=cfg.debug)
    for text in cli.idle(tree, given.overrides):
        log.errors.print(f"warning: {text} changes nothing: this experiment does not read it", markup=False)


def execute(
    cfg: DictConfig, out: Path, given: cli.Given, made: tuple[str, ...] = (), command: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> dict[str, float]:
    """Run a task; what it lacks is made by the experiment that makes it, then it is tried again."""
    try:
        record = cli.begin(out, root=ROOT, ledger=Path(cfg.paths.outputs) / "runs.jsonl", seed=cfg.seed,
                           command=[*(command or sys.argv)], overrides=[*(overrides or given.overrides)])
    except OSError as error:
        cli.fail(error, out, debug=cfg.debug)
    try:
        OmegaConf.save(cfg, out / "config.yaml", resolve=True)
        publish = publisher(cfg, out, given)
        metrics = built(cfg, out, given).run(out)
    except Stopped as early:
        log.console.print(str(early))
        metrics = {"stopped": 1}
    except MissingArtifact as missing:
        wanted = prerequisite(missing, given)
        if not cfg.prepare or " ".join(wanted) in made:
            fail(record, missing, cfg)
        log.console.print(f"{missing}: running {' '.join(wanted)} first", markup=False)
        other = hydra.compose("config", wanted)
        folder = Path(cfg.paths.outputs) / missing.experiment / datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")
        try:
            execute(other, folder, given, (*made, " ".join(wanted)), command, wanted)
        except cli.Reported as failure:
            record.fail(f"experiment={missing.experiment} failed: {failure}")
            raise
        return execute(cfg, out, given, (*made, " ".join(wanted)), command, overrides)
    except (KeyboardInterrupt, SystemExit):  # Lightning turns the one into the other
        record.fail("interrupted")
        raise KeyboardInterrupt from None
    except Exception as error:
        fail(record, error, cfg)
    try:
        record.finish(metrics)
    except OSError as error:
        cli.fail(error, out, debug=cfg.debug)
    publish(metrics)
    log.console.print(f"results: {out}", markup=False)
    if metrics.get("failed_arms"):
        raise cli.Reported(f"{metrics['failed_arms']} arms failed")
    return dict(metrics)


def fail(record: cli.Record, error: Exception, cfg: DictConfig) -> None:
    """Note a failure and tell the user."""
    with suppress(OSError):  # a full disk, of which the user is told
        record.fail(cli.reason(error))
    cli.fail(error, record.out, debug=cfg.debug)


def publisher(cfg: DictConfig, out: Path, given: cli.Given) -> Callable[[Mapping[str, float]], None]:
    """Prepare to hand the metrics of the run to its logger, which says now what it lacks."""
    if given.chosen.get("logger") in LOCAL_LOGGERS:
        return lambda metrics: None
    make = instantiate(cfg.logger)

    def publish(metrics: Mapping[str, float]) -> None:
        try:
            logger = make(save_dir=out)
            logger.log_hyperparams(OmegaConf.to_container(cfg, resolve=True))
            logger.log_metrics(metrics)
            logger.finalize("success")
        except Exception as error:
            log.errors.print(f"the logger did not take the metrics ({cli.reason(error)}): metrics.json has them",
                             markup=False)

    return publish


def built(cfg: DictConfig, out: Path, given: cli.Given) -> Any:
    """Build the task; the arms of a comparison run before it, but for those whose finished runs are given."""
    cli.check_threads(OmegaConf.to_container(cfg, resolve=True))
    task = instantiate(cfg.task)
    if "arms" not in cfg.task:
        return task
    arms = OmegaConf.to_container(cfg.task.arms, resolve=True)
    missing = {name: arm for name, arm in arms.items() if name not in task.runs}
    if not missing:
        return task
    ran = cli.run_arms(
        missing, common=list(cfg.task.common), given=given.overrides,
        compose=lambda overrides: arm_run(overrides, cfg), folder=Path(cfg.paths.artifacts) / "runs",
        data=cli.data_hash(ROOT) if Path(cfg.paths.data).resolve() == ROOT / "data" else cfg.paths.data, out=out)
    return replace(task, runs={**task.runs, **ran.runs}, failures=ran.failures)


def arm_run(overrides: list[str], comparison: DictConfig) -> cli.ArmRun:
    """Compose the run of an arm."""
    try:
        whole = hydra.compose("config", overrides, return_hydra_config=True)
        cfg = OmegaConf.masked_copy(whole, [key for key in whole if key != "hydra"])
        bare = OmegaConf.merge(cfg, {"paths": {name: name for name in cfg.paths}})
        tree = OmegaConf.to_container(bare, resolve=True)
    except Exception as error:
        keys = OmegaConf.to_container(comparison)
        raise cli.Reported(cli.explain(error, lambda: cli.flat(keys))) from error
    given = cli.Given(overrides, dict(whole.hydra.runtime.choices), cfg)
    return cli.ArmRun(tree, lambda folder: execute(cfg, folder, given, command=["run.py", *overrides]))


def prerequisite(missing: MissingArtifact, given: cli.Given) -> list[str]:
    """Overrides of the experiment that makes what is missing, for the data and the platforms of the whole run."""
    wanted = cli.merged(given.inherited(), [f"experiment={missing.experiment}", *missing.overrides])
    return [*wanted, *given.platforms(OmegaConf.to_container(hydra.compose("config", wanted), resolve=True))]


def known_keys() -> list[str]:
    """List the keys of the configuration that the choices on the command line give."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        folders = cli.folders(sys.argv[1:], CONF)
        more = [f"'file://{folder.absolute()}'" for folder in folders[1:]]
        cfg = hydra.compose("config", [f"hydra.searchpath=[{','.join(more)}]", *cli.choices(sys.argv[1:], folders)])
    return list(cli.flat(OmegaConf.to_container(cfg)))


def start() -> None:
    """Read the command line and hand it to Hydra."""
    for name in [name for name, value in os.environ.items() if name.startswith("SPARLOOM_") and not value]:
        del os.environ[name]  # as if it were not set: an empty folder would be that of the system
    cli.check_places({"the current folder": str(Path.cwd()), **{
        name: value for name, value in os.environ.items() if name.startswith("SPARLOOM_")}})
    sys.argv = cli.prepare(sys.argv, CONF)
    main()


if __name__ == "__main__":
    os.environ.setdefault("SPARLOOM_ROOT", str(ROOT))
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises; cli.guard makes one line of it
    sys.exit(cli.guard(start, known_keys))
