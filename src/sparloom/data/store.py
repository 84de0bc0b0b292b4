"""The data of a clone: data/ is fetched from the DVC store inside the repository, offline, at first use."""

import logging
import os
import subprocess
import sys
from pathlib import Path

from sparloom.errors import MissingArtifact
from sparloom.files import locked, sha256, write_text

__all__ = ["ensure_data"]

log = logging.getLogger(__name__)


def ensure_data(folder: Path) -> None:
    """Bring `folder` to the state that `folder`.dvc beside it points to; without such a pointer do nothing.

    The state is remembered, so that later calls cost one checksum of the pointer. Files that were changed here are not
    overwritten: a warning says so.

    Raises:
        MissingArtifact: nothing could be fetched and there is no data.
    """
    folder = Path(folder).absolute()
    pointer = folder.with_name(f"{folder.name}.dvc")
    if not pointer.exists():
        return
    stamp = folder.parent / ".cache" / f"{folder.name}.version"
    with locked(stamp.with_suffix(".lock")):
        version = sha256(pointer)
        if folder.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == version:
            return
        log.info("fetching %s from the data store of this repository", folder.name)
        fault = _pull(pointer)
        if fault is None:
            write_text(stamp, version)
        elif folder.exists():
            log.warning("%s/ is not what %s says and was left as it is: %s", folder.name, pointer.name, fault)
        else:
            raise MissingArtifact(
                f"{folder.name}/ could not be fetched from the data store ({fault}); run `dvc pull` in {folder.parent}",
                experiment="collect_spade",
            )


def _pull(pointer: Path) -> str | None:
    """Run `dvc pull`; returns its last line when it fails."""
    private = pointer.parent / ".dvc" / "tmp"
    environment = {
        **os.environ,
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(private / "site"),  # its default is shared by all users of a machine
    }
    command = [sys.executable, "-m", "dvc", "pull", "--quiet", pointer.name]
    done = subprocess.run(command, cwd=pointer.parent, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
    return next((line for line in lines if "ERROR" in line), lines[-1])
