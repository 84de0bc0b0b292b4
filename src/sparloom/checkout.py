"""The state of the code: which commit a checkout is at, and whether its files differ from it."""

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Revision", "changes", "revision"]


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


def changes(folder: Path, *paths: str) -> str:
    """Digest what differs from the commit in some paths of the checkout, "+" and 12 digits; "" where nothing does."""
    try:
        root = _git(folder, "rev-parse", "--show-toplevel")
        text = _git(Path(root), "diff", "HEAD", "--no-ext-diff", "--binary", "--", *paths)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"+{hashlib.sha256(text.encode()).hexdigest()[:12]}" if text else ""


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
