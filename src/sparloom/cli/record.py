"""What a run leaves behind beside its results: command, conditions, metrics."""

import json
import math
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sparloom import log
from sparloom.checkout import revision
from sparloom.cli.prerequisites import key_of
from sparloom.files import append_lines, json_text, remove_leavings, write_json, write_sums, write_text

__all__ = ["Record", "begin", "data_hash"]

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
    from sparloom.measure import describe_machine  # it loads NumPy, which listing and help do without

    found = revision(root)
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
