"""Record a run beside its results (command, environment, metrics), and run or reuse the arms of a comparison."""

import hashlib
import json
import logging
import math
import os
import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sparloom import log
from sparloom.cli.messages import Reported, UsageError, program
from sparloom.cli.options import key_of, merge_overrides
from sparloom.files import (
    append_lines,
    check_sum,
    json_text,
    locked,
    remove_leftovers,
    sha256,
    write_json,
    write_sums,
    write_text,
)
from sparloom.measure import code_changes, code_revision, describe_machine
from sparloom.resources import CHECKOUT, package_versions

METRICS = "metrics.json"
ENVIRONMENT = "environment.json"
SHOWN_METRICS = 4  # of runs without an objective, in the table of a sweep
PACKAGES = ("sparloom", "numpy", "scipy", "pandas", "pyarrow", "torch", "lightning", "lightgbm", "scikit-learn",
            "hydra-core", "omegaconf")
COMPARISON_KEYS = ("experiment", "task", "hparams", "objective")  # not passed on to the arms
NEUTRAL_KEYS = ("paths", "objective", "prepare", "debug", "space", "backend", "backends")  # do not change results

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """Record of a run in progress; the end of the run appends a line to `runs.jsonl`.

    Args:
        out: folder of the run.
        root: the checkout.
        ledger: file with one line per finished run.
        overrides: of its configuration.
        environment: content of `environment.json`.
        began: `time.monotonic()` at its start.
    """

    out: Path
    root: Path
    ledger: Path
    overrides: Sequence[str]
    environment: Mapping[str, Any]
    began: float

    def finish(self, metrics: Mapping[str, float]) -> None:
        """Write checksums of JSON and CSV files, then `metrics.json`: flat, numbers only, null for NaN and infinity."""
        self._compare_revision()
        numbers = {key: _number(value) for key, value in metrics.items()}
        text = json_text(numbers)
        write_sums(self.out, {METRICS: text})
        write_text(self.out / METRICS, text)
        self._end("finished", metrics=numbers)

    def fail(self, reason: str) -> None:
        """Record why the run has no metrics."""
        self._compare_revision()
        self._end("failed", reason=reason)

    def _compare_revision(self) -> None:
        """Write to `environment.json` how long the run took and whether the checkout changed; null: not known."""
        now = _revision(self.root)
        is_unknown = None in (self.environment["commit"], now["commit"])
        changed = None if is_unknown else any(self.environment[key] != now[key] for key in now)
        if changed:
            logger.warning("the checkout %s changed while this run went on: commit the code and run it again if the "
                           "result is to belong to a commit", self.root)
        ended = {f"{key}_at_end": value for key, value in now.items()} if changed else {}
        write_json(self.out / ENVIRONMENT, {
            **self.environment, "wall_seconds": self._seconds(), "changed_during_run": changed, **ended})

    def _seconds(self) -> float:
        return round(time.monotonic() - self.began, 3)

    def _end(
        self, status: str, *, metrics: Mapping[str, float | None] | None = None, reason: str | None = None
    ) -> None:
        root, folder = self.ledger.parent.resolve(), self.out.resolve()
        chosen = [text.partition("=")[2] for text in self.overrides if key_of(text) == "experiment"]
        line = {
            "experiment": chosen[-1] if chosen else None,
            "overrides": list(self.overrides),
            "folder": str(folder.relative_to(root) if folder.is_relative_to(root) else folder),
            "wall_seconds": self._seconds(),
            **{key: self.environment[key] for key in ("started", "commit", "dirty", "seed")},
            "status": status, "reason": reason, "metrics": metrics,
        }
        append_lines(self.ledger, [json.dumps(line, allow_nan=False)])


def begin(
    out: Path, *, root: Path, ledger: Path, seed: int, command: Sequence[str], overrides: Sequence[str]
) -> Record:
    """Open the log of a run and write `command.txt` and `environment.json`.

    Args:
        root: the checkout, for its commit and the hash in data.dvc.
        ledger: file to which the end of the run is appended.
        command: as it was typed; `overrides` are those of this run, which may be one of many in a sweep.

    Raises:
        OSError: the folder or the ledger cannot be written.
    """
    log.start(out)
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with ledger.open("a"):
        pass  # fails now rather than at the end of the run
    for folder in (out, *out.parent.glob("*/")):  # of this run, and of killed runs of its experiment
        remove_leftovers(folder)
    write_text(out / "command.txt", shlex.join([*program(command[0]).split(), *command[1:]]) + "\n")
    described = environment(root, seed)
    write_json(out / ENVIRONMENT, described)
    return Record(out, root, ledger, overrides, described, time.monotonic())


def environment(root: Path, seed: int) -> dict[str, object]:
    """Describe commit, versions, machine, threads, seed and data of this run."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **_revision(root),
        "python": platform.python_version(),
        "versions": dict.fromkeys(PACKAGES) | package_versions(PACKAGES),
        "machine": dict(describe_machine()),
        "threads": _threads(os.environ.get("OMP_NUM_THREADS", "")),
        "seed": seed,
        "data": data_hash(root),
        "executable": Path(sys.executable).name,
    }


def _revision(root: Path) -> dict[str, object]:
    """Return the commit of a checkout, and a hash of what differs from it; a wheel belongs to no commit."""
    revision = code_revision(root) if CHECKOUT is not None else None
    dirty = bool(revision and revision.dirty)
    return {"commit": revision and revision.commit, "dirty": dirty, "changes": code_changes(root) if dirty else ""}


def _threads(setting: str) -> int:
    """Return the threads that OpenMP takes from OMP_NUM_THREADS: the outermost level; invalid values are ignored."""
    outermost = setting.partition(",")[0].strip()
    allowed = outermost.isascii() and outermost.isdigit() and 0 < len(outermost) <= 9 and int(outermost) > 0
    return int(outermost) if allowed else len(os.sched_getaffinity(0))


def _number(value: float) -> float | int | None:
    if isinstance(value, bool | int):
        return int(value)
    return float(value) if math.isfinite(value) else None


def data_hash(root: Path) -> str | None:
    """Read the hash in data.dvc of a checkout; None if there is none."""
    pointer = root / "data.dvc"
    if not pointer.exists():
        return None
    found = re.search(r"md5:\s*(\S+)", pointer.read_text(encoding="utf-8"))
    return found[1] if found else None


@dataclass(frozen=True)
class ArmRun:
    """Composed run of an arm.

    Args:
        tree: resolved configuration, in which folders under `paths` are replaced by their names.
        execute: runs it in a folder.
    """

    tree: Mapping[str, Any]
    execute: Callable[[Path], object]


@dataclass(frozen=True)
class Arms:
    """Outcome of the arms: folder of each finished run, reason of each failure."""

    runs: Mapping[str, str]
    failures: Mapping[str, str]


def run_arms(
    arms: Mapping[str, Mapping[str, Any]],
    *,
    common: Sequence[str],
    given: Sequence[str],
    compose: Callable[[list[str]], ArmRun],
    folder: Path,
    data: str | None,
    out: Path,
) -> Arms:
    """Run every arm, or reuse the run of an equal configuration; a failing arm does not stop the others.

    Args:
        arms: name -> `experiment` and `overrides`.
        common: overrides of all arms.
        given: overrides of the command line of the comparison.
        compose: raises Reported if overrides do not fit.
        folder: holds the runs, each in a folder named by `digest`.
        data: hash of the data that runs read.
        out: folder of the comparison, to whose log this function writes.

    Raises:
        UsageError: an override of the command line would change no arm.
    """
    _refuse_unused(given, common, arms)
    runs, failures = {}, {}
    for number, (name, arm) in enumerate(arms.items(), 1):
        overrides = arm_overrides(arm, common=common, given=given)
        command = shlex.join([*program().split(), *overrides])
        logger.info("arm %d of %d, %s: %s", number, len(arms), name, command)
        try:
            run = compose(overrides)
            result = folder / digest(run.tree, data)
            with locked(folder / f".{result.name}.lock"):
                _run_or_reuse(run, result, out)
            runs[name] = str(result)
        except Reported as error:
            log.start(out)
            failures[name] = str(error)
            logger.warning("arm %s failed, the others continue: %s", name, error)
    return Arms(runs, failures)


def arm_overrides(arm: Mapping[str, Any], *, common: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return the overrides of an arm: its own win over the common ones, and these over the command line."""
    passed = [text for text in given if _passes(text)]
    own = [f"experiment={arm['experiment']}", *arm.get("overrides", ())]
    return merge_overrides(merge_overrides(passed, common), own)


def digest(tree: Mapping[str, Any], data: str | None) -> str:
    """Hash the configuration and data that determine the result of a run to 8 hexadecimal digits."""
    deciding = {key: value for key, value in tree.items() if key not in NEUTRAL_KEYS}
    return hashlib.sha256(json.dumps([deciding, data], sort_keys=True).encode()).hexdigest()[:8]


def stale(folder: Path) -> str | None:
    """Return why the run in a folder cannot be reused, or None.

    A run is reused if its files are not damaged, every file in made_from.json that still exists has the listed hash,
    and files listed with null do not exist.
    """
    if not (folder / "metrics.json").exists():
        return "not finished"
    for name in ("metrics.json", "made_from.json"):
        if _object(folder / name) is None:
            return f"damaged ({name})"
    files = _object(folder / "made_from.json")
    existing = [path for path in files if Path(path).exists()]
    changed = [path for path in existing if files[path] is None or sha256(Path(path)) != files[path]]
    return f"older than {changed[0]}" if changed else None


def _run_or_reuse(run: ArmRun, folder: Path, out: Path) -> None:
    """Run in a folder unless it holds a finished run, and return to the log of the comparison."""
    reason = stale(folder)
    if reason is None:
        logger.info("%s is finished and is reused", folder)
        return
    if folder.exists():
        logger.info("%s is %s: running it again from the beginning", folder, reason)
        shutil.rmtree(folder)
    run.execute(folder)
    log.start(out)


def _object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; {} without a file, None if it is damaged."""
    if not path.exists():
        return {}
    try:
        content = path.read_bytes()
        check_sum(path, content)
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _refuse_unused(given: Sequence[str], common: Sequence[str], arms: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse an override of the command line that every arm overrides itself."""
    sets = [{key_of(text) for text in (*common, *arm.get("overrides", ()))} for arm in arms.values()]
    for text in given:
        if _passes(text) and all(key_of(text) in keys for keys in sets):
            raise UsageError(f"{text} would change nothing: all {len(arms)} arms of this comparison set "
                             f"{key_of(text)} themselves")


def _passes(text: str) -> bool:
    key = key_of(text)
    return key not in COMPARISON_KEYS and not key.startswith(("task.", "hydra"))


def sweep_table(folder: Path) -> None:
    """Print what the runs of a sweep changed and their objective, or else their first metrics; write trials.csv."""
    import pandas as pd

    rows, changes = [], {}
    for path in sorted(folder.glob("**/.hydra/overrides.yaml")):
        run = path.parent.parent
        changed = {key_of(text): text.partition("=")[2] for text in _yaml(path)}
        changes |= changed
        metrics = _object(run / METRICS) or {}
        objective = _yaml(run / "config.yaml").get("objective") if (run / "config.yaml").exists() else None
        shown = {objective: metrics.get(objective)} if objective else dict(list(metrics.items())[:SHOWN_METRICS])
        rows.append({**changed, **shown, "seconds": (_object(run / ENVIRONMENT) or {}).get("wall_seconds"),
                     "state": "finished" if metrics else "failed", "folder": run.name})
    table = pd.DataFrame(rows)
    table = table.drop(columns=[name for name in changes if table[name].nunique(dropna=False) == 1])
    write_text(folder / "trials.csv", table.to_csv(index=False))
    log.console.print(table.drop(columns="folder").to_string(index=False), markup=False)
    log.console.print(f"results: {folder / 'trials.csv'}", markup=False)
