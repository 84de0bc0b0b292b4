"""What a run leaves behind beside its results: command, conditions, metrics."""

import math
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from sparloom import log
from sparloom.checkout import revision
from sparloom.files import write_json, write_text

__all__ = ["begin", "data_hash", "finish"]

PACKAGES = ("numpy", "scipy", "pandas", "pyarrow", "torch", "lightning", "lightgbm", "scikit-learn", "hydra-core",
            "omegaconf")


def begin(out: Path, *, root: Path, seed: int, command: list[str]) -> None:
    """Open the log of a run and write `command.txt` and `environment.json`.

    Args:
        root: the checkout, for its commit and the hash in data.dvc.
    """
    log.start(out)
    write_text(out / "command.txt", shlex.join(["python", Path(command[0]).name, *command[1:]]) + "\n")
    write_json(out / "environment.json", environment(root, seed))


def finish(out: Path, metrics: Mapping[str, float]) -> None:
    """Write `metrics.json`: flat, numbers only, null for what is not a number."""
    write_json(out / "metrics.json", {key: _number(value) for key, value in metrics.items()})


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
        "threads": int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))),
        "seed": seed,
        "data": data_hash(root),
        "executable": Path(sys.executable).name,
    }


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
