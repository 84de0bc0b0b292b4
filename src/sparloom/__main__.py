"""Run one experiment: `sparloom experiment=<name>`, with options from conf/. Without arguments: list experiments.

`python -m sparloom` and, in a checkout, `python run.py` are the same program. This is the only module of the package
that knows Hydra.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sparloom.lazy import install_command

try:
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from hydra.utils import instantiate
    from omegaconf import DictConfig, OmegaConf

    from sparloom import cli, log
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing.name} is not installed, which experiments need: {install_command('experiments')}")

from sparloom.errors import MissingArtifact
from sparloom.resources import CHECKOUT, FOLDERS

LOCAL_LOGGERS = ("csv", "none")  # loggers that write only curves


def main(cfg: DictConfig) -> float | None:
    """Run the chosen task in the folder that Hydra made for it; a job of a sweep that has finished is not repeated."""
    settings = HydraConfig.get()
    options = cli.RunOptions(list(settings.overrides.task), dict(settings.runtime.choices), cfg)
    out = Path(settings.runtime.output_dir)
    is_sweep = settings.mode == RunMode.MULTIRUN
    try:
        if is_sweep:
            refuse_late_launcher(settings, out, debug=cfg.debug)
        if is_sweep and (metrics := finished_metrics(cfg, out)) is not None:
            return metrics.get(cfg.objective)
        check(cfg, options, out)
        return execute(cfg, out, options).get(cfg.objective)
    except cli.Reported:
        if is_sweep:
            raise  # the sweeper records the failure of this job
        sys.exit(1)


def refuse_late_launcher(settings: DictConfig, out: Path, *, debug: bool) -> None:
    """Refuse a launcher that a swept experiment chooses: Hydra has taken one before it reads that experiment."""
    sweep = Path(settings.sweep.dir) / "multirun.yaml"
    if not sweep.exists():
        return
    running = OmegaConf.load(sweep).hydra.runtime.choices["hydra/launcher"]
    wanted = settings.runtime.choices["hydra/launcher"]
    if wanted != running:
        cli.fail(cli.UsageError(f"this experiment chooses the launcher {wanted}, but the sweep runs by {running}: add "
                                f"hydra/launcher={wanted}, or hydra/launcher={running} for all of them"), out,
                 debug=debug)


def finished_metrics(cfg: DictConfig, out: Path) -> dict[str, float] | None:
    """Read the metrics of an earlier run with the same configuration in a folder; None if there is none."""
    if not (out / "metrics.json").exists() or not (out / "config.yaml").exists() or cli.stale(out):
        return None
    if OmegaConf.load(out / "config.yaml") != OmegaConf.create(OmegaConf.to_container(cfg, resolve=True)):
        return None
    return json.loads((out / "metrics.json").read_text(encoding="utf-8"))


def check(cfg: DictConfig, options: cli.RunOptions, out: Path) -> None:
    """Refuse ignored options that would choose data, and warn about other ignored ones."""
    if is_comparison(cfg):
        return  # options go to the arms, which refuse those that none of them reads
    tree, resolved = OmegaConf.to_container(cfg, resolve=False), OmegaConf.to_container(cfg, resolve=True)
    try:
        cli.refuse_unseen_width(tree, resolved, options.overrides)
        cli.refuse_other_machines(tree, options.overrides)
        cli.check_threads(resolved)
    except (cli.UsageError, TypeError, ValueError) as error:
        cli.fail(error, out, debug=cfg.debug)
    for text in cli.unused_overrides(tree, options.overrides):
        log.errors.print(f"warning: {text} changes nothing: this experiment does not read it", markup=False)


def is_comparison(cfg: DictConfig) -> bool:
    """Tell whether the task compares runs of other experiments."""
    return "arms" in cfg.task


def execute(
    cfg: DictConfig, out: Path, options: cli.RunOptions, made: tuple[str, ...] = (), command: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> dict[str, float]:
    """Run a task; if an artifact is missing, run the experiment that makes it and try again.

    Args:
        made: overrides of the prerequisites that ran already.
        command, overrides: recorded in place of those of this process.
    """
    try:
        record = cli.begin(out, root=Path(cfg.paths.root), ledger=Path(cfg.paths.outputs) / "runs.jsonl", seed=cfg.seed,
                           command=[*(command or sys.argv)], overrides=[*(overrides or options.overrides)])
    except OSError as error:
        cli.fail(error, out, debug=cfg.debug)
    try:
        (out / "metrics.json").unlink(missing_ok=True)  # of an earlier run with another configuration
        OmegaConf.save(cfg, out / "config.yaml", resolve=True)
        publish = make_publisher(cfg, out, options)
        metrics = build_task(cfg, out, options).run(out)
    except MissingArtifact as missing:
        if not has_samples(cfg, options):
            fail(record, cli.UsageError(f"{missing.message}: stored samples come with a checkout of sparloom, set "
                                        "SPARLOOM_ROOT to one; or set paths.mirror to matrices to collect from"), cfg)
        wanted = prerequisite(missing, options)
        if not cfg.prepare or " ".join(wanted) in made:
            fail(record, missing, cfg)
        log.console.print(f"{missing.message}: running {' '.join(wanted)} first", markup=False)
        other = hydra.compose("config", wanted)
        folder = Path(cfg.paths.outputs) / missing.experiment / datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")
        try:
            execute(other, folder, options, (*made, " ".join(wanted)), command, wanted)
        except cli.Reported as failure:
            record.fail(f"experiment={missing.experiment} failed: {failure}")
            raise
        return execute(cfg, out, options, (*made, " ".join(wanted)), command, overrides)
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


def has_samples(cfg: DictConfig, options: cli.RunOptions) -> bool:
    """Tell whether there are stored samples of real matrices if a run reads those, or matrices to collect them from."""
    stored = [Path(cfg.paths.data), Path(cfg.paths.root) / "data.dvc"]
    return options.chosen.get("samples") != "real" or cfg.paths.mirror is not None or any(map(Path.exists, stored))


def fail(record: cli.Record, error: Exception, cfg: DictConfig) -> None:
    """Record a failure and report it to the user."""
    with suppress(OSError):  # a full disk, which is reported below
        record.fail(cli.failure_reason(error))
    cli.fail(error, record.out, debug=cfg.debug)


def make_publisher(cfg: DictConfig, out: Path, options: cli.RunOptions) -> Callable[[Mapping[str, float]], None]:
    """Make a function that sends the metrics of the run to its logger; a library that it lacks is reported now."""
    if options.chosen.get("logger") in LOCAL_LOGGERS:
        return lambda metrics: None
    make = instantiate(cfg.logger)

    def publish(metrics: Mapping[str, float]) -> None:
        try:
            logger = make(save_dir=out)
            logger.log_hyperparams(OmegaConf.to_container(cfg, resolve=True))
            logger.log_metrics(metrics)
            logger.finalize("success")
        except Exception as error:
            log.errors.print(f"the logger did not accept the metrics ({cli.failure_reason(error)}): they are in "
                             "metrics.json", markup=False)

    return publish


def build_task(cfg: DictConfig, out: Path, options: cli.RunOptions) -> Any:
    """Build the task; a comparison first runs its arms, except those whose finished runs are given."""
    task = instantiate(cfg.task)
    arms = task.arms if is_comparison(cfg) else {}
    missing = {name: {"experiment": arm.experiment, "overrides": arm.overrides}
               for name, arm in arms.items() if name not in task.runs}
    if not missing:
        return task
    root = Path(cfg.paths.root).resolve()
    results = cli.run_arms(
        missing, common=list(cfg.task.common), given=options.overrides,
        compose=lambda overrides: compose_arm(overrides, cfg), folder=Path(cfg.paths.artifacts) / "runs",
        data=cli.data_hash(root) if Path(cfg.paths.data).resolve() == root / "data" else cfg.paths.data, out=out)
    return replace(task, runs={**task.runs, **results.runs}, failures=results.failures)


def compose_arm(overrides: list[str], comparison: DictConfig) -> cli.ArmRun:
    """Compose the run of an arm."""
    try:
        whole = hydra.compose("config", overrides, return_hydra_config=True)
        cfg = OmegaConf.masked_copy(whole, [key for key in whole if key != "hydra"])
        bare = OmegaConf.merge(cfg, {"paths": {name: name for name in cfg.paths}})
        tree = OmegaConf.to_container(bare, resolve=True)
    except Exception as error:
        keys = OmegaConf.to_container(comparison)
        raise cli.Reported(cli.explain(error, lambda: cli.dotted_keys(keys))) from error
    options = cli.RunOptions(overrides, dict(whole.hydra.runtime.choices), cfg)
    return cli.ArmRun(tree, lambda folder: execute(cfg, folder, options, command=["run.py", *overrides]))


def prerequisite(missing: MissingArtifact, options: cli.RunOptions) -> list[str]:
    """Return the overrides of the experiment that makes a missing artifact, with the data and platforms of this run."""
    wanted = cli.merge_overrides(options.inherited(), [f"experiment={missing.experiment}", *missing.overrides])
    platforms = options.platforms(OmegaConf.to_container(hydra.compose("config", wanted), resolve=True))
    merged = cli.merge_overrides(wanted, platforms)
    return [*(text for text in merged if text not in platforms), *platforms]


def known_keys(conf: Path) -> list[str]:
    """List the keys of the configuration that the groups on the command line make."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf), version_base="1.3"):
        chosen = [text for text in cli.overrides_of(sys.argv[1:])
                  if re.match(r"(hydra/)?[\w@]+=[\w/]+$", text) and not text.startswith("seed=")]
        while True:
            try:
                cfg = hydra.compose("config", chosen, return_hydra_config=True)
                return list(cli.dotted_keys(OmegaConf.to_container(cfg)))
            except HydraException:
                chosen = chosen[:-1]


def describe(arguments: Sequence[str], conf: Path) -> None:
    """Print the header and the file of the chosen experiment."""
    name = next(text.partition("=")[2] for text in arguments if text.startswith("experiment="))
    entries = {entry.name: entry for entry in cli.experiments(conf)}
    if name not in entries:
        raise cli.UsageError(f"experiment {name!r} does not exist: {cli.suggestion(name, entries)}")
    cli.describe_experiment(entries[name], conf)


def run(root: Path | None = None) -> int:
    """Run the command line of this process and return its exit status.

    Args:
        root: checkout whose conf/, data/ and outputs/ are used. None: configurations of the installed package, stored
            data of the checkout that it is imported from, if any, and outputs/ in the current folder.
    """
    conf = FOLDERS["conf"] if root is None else root / "conf"

    def start() -> None:
        for name in [name for name, value in os.environ.items() if name.startswith("SPARLOOM_") and not value]:
            del os.environ[name]  # treat as unset: an empty path would be the root folder
        if root is None:
            os.environ.setdefault("SPARLOOM_OUTPUTS", str(Path("outputs").absolute()))
        folder = CHECKOUT if root is None else root
        if folder is not None:
            os.environ.setdefault("SPARLOOM_ROOT", str(folder))
        sys.argv = cli.prepare(sys.argv, conf)
        if cli.asks_help(sys.argv):
            describe(sys.argv[1:], conf)
            return
        hydra.main(version_base="1.3", config_path=str(conf), config_name="config")(main)()

    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises errors, which cli.guard shows in one line
    return cli.guard(start, lambda: known_keys(conf))


if __name__ == "__main__":
    sys.exit(run())
