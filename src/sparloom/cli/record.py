"""What a run leaves behind beside its results: command, conditions, metrics.

Runs of the arms of a comparison: what each is made of, where it is kept, when it is run again.
"""

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
from importlib import metadata
from pathlib import Path
from typing import Any

from sparloom import log
from sparloom.cli.arguments import UsageError
from sparloom.cli.failure import Reported
from sparloom.cli.overrides import key_of, merged
from sparloom.files import (
    append_lines,
    check_sum,
    json_text,
    locked,
    remove_leavings,
    sha256,
    write_json,
    write_sums,
    write_text,
)
from sparloom.measure import code_revision, describe_machine
from sparloom.renamed import first_name

__all__ = ["ArmRun", "Arms", "Record", "arm_overrides", "begin", "data_hash", "digest", "run_arms", "stale"]

METRICS = "metrics.json"
PACKAGES = ("numpy", "scipy", "pandas", "pyarrow", "torch", "lightning", "lightgbm", "scikit-learn", "hydra-core",
            "omegaconf")


@dataclass(frozen=True)
class Record:
    """A run that has begun; ending it appends a line to `runs.jsonl`.

    Args:
        out: folder of the run.
        ledger: file with a line for every run that has ended.
        overrides: that make its configuration.
        environment: what `environment.json` says.
        began: clock at its begin, `time.monotonic()`.
    """

    out: Path
    ledger: Path
    overrides: Sequence[str]
    environment: Mapping[str, Any]
    began: float

    def finish(self, metrics: Mapping[str, float]) -> None:
        """Write `metrics.json`, flat, numbers only, null for what is not a number, after the checksums of all files."""
        numbers = {key: _number(value) for key, value in metrics.items()}
        text = json_text(numbers)
        write_sums(self.out, {METRICS: text})
        write_text(self.out / METRICS, text)
        self._end("finished", metrics=numbers)

    def fail(self, reason: str) -> None:
        """Note why the run has no metrics."""
        self._end("failed", reason=reason)

    def _end(
        self, status: str, *, metrics: Mapping[str, float | None] | None = None, reason: str | None = None
    ) -> None:
        root, folder = self.ledger.parent.resolve(), self.out.resolve()
        chosen = [text.partition("=")[2] for text in self.overrides if key_of(text) == "experiment"]
        line = {
            "experiment": chosen[-1] if chosen else None,
            "overrides": list(self.overrides),
            "folder": str(folder.relative_to(root) if folder.is_relative_to(root) else folder),
            "wall_seconds": round(time.monotonic() - self.began, 3),
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
        ledger: where its end will be noted.
        command: as it was typed; `overrides`: what it means for this run, one of many in a sweep.

    Raises:
        OSError: the folder or the ledger cannot be written.
    """
    log.start(out)
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with ledger.open("a"):
        pass  # fails now rather than at the end of the run
    for folder in (out, *out.parent.glob("*/")):  # of this run, and of earlier ones of its experiment that were killed
        remove_leavings(folder)
    write_text(out / "command.txt", shlex.join(["python", Path(command[0]).name, *command[1:]]) + "\n")
    described = environment(root, seed)
    write_json(out / "environment.json", described)
    return Record(out, ledger, overrides, described, time.monotonic())


def environment(root: Path, seed: int) -> dict[str, object]:
    """Describe commit, versions, machine, threads, seed and data of this run."""
    found = code_revision(root)
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": found and found.commit,
        "dirty": bool(found and found.dirty),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("sparloom", *PACKAGES)},
        "machine": dict(describe_machine()),
        "threads": _threads(os.environ.get("OMP_NUM_THREADS", "")),
        "seed": seed,
        "data": data_hash(root),
        "executable": Path(sys.executable).name,
    }


def _threads(given: str) -> int:
    """Give the threads that OpenMP takes: of nested loops the outermost counts, and other texts are as if unset."""
    outermost = given.partition(",")[0].strip()
    allowed = outermost.isascii() and outermost.isdigit() and 0 < len(outermost) <= 9 and int(outermost) > 0
    return int(outermost) if allowed else len(os.sched_getaffinity(0))


def _number(value: float) -> float | int | None:
    if isinstance(value, bool | int):
        return int(value)
    return float(value) if math.isfinite(value) else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def data_hash(root: Path) -> str | None:
    """Read the hash in data.dvc of a checkout; None where there is none."""
    pointer = root / "data.dvc"
    if not pointer.exists():
        return None
    found = re.search(r"md5:\s*(\S+)", pointer.read_text(encoding="utf-8"))
    return found[1] if found else None


OWN = ("experiment", "task", "hparams", "objective")  # of the comparison, not of its arms
PASSING = ("paths", "objective", "prepare", "debug")  # keys of a configuration that change no result
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ArmRun:
    """A composed run.

    Args:
        tree: its resolved configuration; folders under `paths` stand in it by name.
        execute: runs it in a folder.
    """

    tree: Mapping[str, Any]
    execute: Callable[[Path], object]


@dataclass(frozen=True)
class Arms:
    """What became of the arms: the folder of each run that finished, the reason for each that did not."""

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
    """Run every arm, or take the run of an equal configuration; one that fails does not end the others.

    Args:
        arms: name -> `experiment` and `overrides`.
        common: overrides of all arms.
        given: overrides of the command line of the comparison.
        compose: raises Reported when overrides do not fit.
        folder: keeps runs, each in a folder named by `digest`; index.json says which is which.
        data: hash of the data that runs read.
        out: folder of the comparison, to whose log this function writes.

    Raises:
        UsageError: an override of the command line would change no arm.
    """
    _refuse_idle(given, common, arms)
    runs, failures = {}, {}
    for place, (name, arm) in enumerate(arms.items(), 1):
        overrides = arm_overrides(arm, common=common, given=given)
        command = shlex.join(["python", "run.py", *overrides])
        logger.info("arm %d of %d, %s: %s", place, len(arms), name, command)
        try:
            run = compose(overrides)
            kept = folder / digest(run.tree, data)
            with locked(folder / f".{kept.name}.lock"):
                _finish(run, kept, out)
            runs[name] = str(kept)
            _note(folder, kept.name, arm=f"{out.parent.name}/{name}", command=command)
        except Reported as error:
            log.start(out)
            failures[name] = str(error)
            logger.warning("arm %s failed, the others go on: %s", name, error)
    return Arms(runs, failures)


def arm_overrides(arm: Mapping[str, Any], *, common: Sequence[str], given: Sequence[str]) -> list[str]:
    """Overrides of an arm: its own before the common ones, both before those of the command line."""
    passed = [text for text in given if _passes(text)]
    own = [f"experiment={arm['experiment']}", *arm.get("overrides", ())]
    return merged(merged(passed, common), own)


def digest(tree: Mapping[str, Any], data: str | None) -> str:
    """Hash what decides the result of a run to 8 hexadecimal digits: its configuration and its data."""
    deciding = _first_names({key: value for key, value in tree.items() if key not in PASSING})
    return hashlib.sha256(json.dumps([deciding, data], sort_keys=True).encode()).hexdigest()[:8]


def _first_names(node: Any) -> Any:
    """Replace targets by the names that digests have hashed from the beginning."""
    if isinstance(node, Mapping):
        return {key: first_name(value) if key == "_target_" and isinstance(value, str) else _first_names(value)
                for key, value in node.items()}
    return [_first_names(value) for value in node] if isinstance(node, list) else node


def stale(folder: Path) -> str | None:
    """Say why the run in a folder cannot be taken; None: it can.

    A run with damaged files is made again. Others are taken only as long as the files they were made from, which
    made_from.json lists with their hashes, are as they were, and those listed with null are not there; files that are
    gone do not matter.
    """
    if not (folder / "metrics.json").exists():
        return "not finished"
    for name in ("metrics.json", "made_from.json"):
        if _object(folder / name) is None:
            return f"damaged ({name})"
    files = _object(folder / "made_from.json")
    there = [path for path in files if Path(path).exists()]
    changed = [path for path in there if files[path] is None or sha256(Path(path)) != files[path]]
    return f"older than {changed[0]}" if changed else None


def _finish(run: ArmRun, kept: Path, out: Path) -> None:
    """Run in the folder `kept` unless a finished run is there; then write to the log of the comparison again."""
    reason = stale(kept)
    if reason is None:
        logger.info("%s is finished and is taken as it is", kept)
        return
    if kept.exists():
        logger.info("%s is %s: once more from the beginning", kept, reason)
        shutil.rmtree(kept)
    run.execute(kept)
    log.start(out)


def _note(folder: Path, name: str, *, arm: str, command: str) -> None:
    """Note in index.json what a folder holds and which arms read it."""
    with locked(folder / ".index.lock"):
        path = folder / "index.json"
        index = _object(path)
        if index is None or not all(isinstance(entry, dict) for entry in index.values()):
            logger.warning("%s is damaged: it is begun anew, and arms that are not run now are missing in it", path)
            index = {}
        arms = {*index.get(name, {}).get("arms", ()), arm}
        write_json(path, index | {name: {"command": command, "arms": sorted(arms)}})


def _object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, {} where there is no file; None: it is damaged."""
    if not path.exists():
        return {}
    try:
        content = path.read_bytes()
        check_sum(path, content)
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse_idle(given: Sequence[str], common: Sequence[str], arms: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse what the command line sets and every arm sets otherwise."""
    sets = [{key_of(text) for text in (*common, *arm.get("overrides", ()))} for arm in arms.values()]
    for text in given:
        if _passes(text) and all(key_of(text) in keys for keys in sets):
            raise UsageError(f"{text} would change nothing: all {len(arms)} arms of this comparison set "
                             f"{key_of(text)} themselves")


def _passes(text: str) -> bool:
    key = key_of(text)
    return key not in OWN and not key.startswith(("task.", "hydra"))
