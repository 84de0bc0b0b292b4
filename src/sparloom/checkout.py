"""The state of the code: which commit a checkout is at, and whether its files differ from it."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Revision", "revision"]


@dataclass(frozen=True)
class Revision:
    """A commit, 40 hexadecimal digits; `dirty`: tracked files differ from it."""

    commit: str
    dirty: bool


def revision(folder: Path) -> Revision | None:
    """Ask git for the state of the checkout that `folder` is in; None outside of one."""
    try:
        return Revision(_git(folder, "rev-parse", "HEAD"),
                        bool(_git(folder, "status", "--porcelain", "--untracked-files=no")))
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
