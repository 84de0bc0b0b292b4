"""The state of the code that makes data."""

import subprocess
from functools import cache
from pathlib import Path

__all__ = ["commit"]


@cache
def commit() -> str:
    """Commit of the checkout this package is in, "+" appended when tracked files differ; "unknown" outside of one."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
