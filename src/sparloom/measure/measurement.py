"""Measurements of configurations, the protocol by which they are timed, and the commit of the code that is measured."""

import hashlib
import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

REPEATS = 2
"""Further measurements of the baseline in a round, beside the first: they show the drift (A/A)."""

Kind = Literal["wall", "device", "simulated"]
"""How seconds were obtained: by a clock, by events of a device, or by a simulator."""


@dataclass(frozen=True)
class Measurement:
    """Seconds of one configuration in one round: raw repetitions, no statistics.

    Args:
        seconds: one per repetition; empty if the measurement failed.
        kind: clock; seconds of different clocks never share a column.
        failure: why there are no seconds, or None.
        cpu_seconds: processor time of all threads, one per repetition; empty where no such clock exists.
        stolen: other processes took the machine during every attempt (wall time far above processor time per thread);
            the seconds are kept, but cannot be trusted.
    """

    seconds: tuple[float, ...]
    kind: Kind
    failure: str | None = None
    cpu_seconds: tuple[float, ...] = ()
    stolen: bool = False

    def __post_init__(self) -> None:
        if bool(self.seconds) == (self.failure is not None):
            raise ValueError("a measurement has seconds or a failure, not both or neither: "
                             f"{len(self.seconds)} seconds, failure {self.failure!r}")
        if not all(math.isfinite(value) and value > 0 for value in self.seconds):
            raise ValueError(f"seconds {self.seconds} must be finite and above 0: give a failure instead")
        if self.cpu_seconds and len(self.cpu_seconds) != len(self.seconds):
            raise ValueError(f"{len(self.cpu_seconds)} cpu_seconds for {len(self.seconds)} seconds: one per repetition")

    @classmethod
    def failed(cls, reason: str, kind: Kind) -> "Measurement":
        """Record a failed measurement and its reason."""
        return cls(seconds=(), kind=kind, failure=reason)

    @classmethod
    def joined(cls, parts: "Sequence[Measurement]") -> "Measurement":
        """Concatenate the repetitions of several rounds; a failure in any round is the failure of the whole."""
        failed = [part for part in parts if part.failure is not None]
        if failed:
            return failed[0]
        return cls(
            tuple(value for part in parts for value in part.seconds), parts[0].kind,
            cpu_seconds=tuple(value for part in parts for value in part.cpu_seconds),
            stolen=any(part.stolen for part in parts),
        )

    @property
    def best(self) -> float:
        """Return the minimum of the repetitions, in seconds.

        Raises:
            ValueError: the measurement failed.
        """
        if self.failure is not None:
            raise ValueError(f"no seconds: the measurement failed ({self.failure})")
        return min(self.seconds)


@dataclass(frozen=True)
class TimingProtocol:
    """Rounds of fresh packing and allocation, each with a few repetitions, interleaved over configurations.

    Args:
        rounds: independent passes over all configurations; operands are packed and allocated anew in each.
        repetitions: runs of a configuration per round, after one warm-up run that is discarded.
        short_seconds: a configuration is repeated until this time has passed in its round (short runs are noisy), ...
        most_repetitions: ... at most this often.
        slow_factor: a configuration whose warm-up takes more than `short_seconds` and more than this many times the
            default is run once per round; beyond the square of this factor the warm-up itself is that run.
            The first round decides for all. Infinity: never.
        steal_ratio: a repetition whose wall seconds exceed this many times its processor seconds per thread is
            repeated (the machine ran something else).
        retakes: maximum of such further runs; after that the row is kept and marked as stolen.
        seed: determines the order of the configurations in each round, and the values of the dense operands.

    Source: our measurements of the noise of packing and of repetition: beyond three repetitions per packing, more gain
    nothing.
    """

    rounds: int
    repetitions: int
    short_seconds: float
    most_repetitions: int
    slow_factor: float
    steal_ratio: float
    retakes: int
    seed: int

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.repetitions < 1 or self.retakes < 0:
            raise ValueError(f"rounds {self.rounds}, repetitions {self.repetitions}, retakes {self.retakes}: "
                             "at least 1, 1 and 0")
        if self.most_repetitions < self.repetitions or self.short_seconds < 0:
            raise ValueError(f"most_repetitions {self.most_repetitions} is below repetitions {self.repetitions}, or "
                             f"short_seconds {self.short_seconds} below 0")
        if self.slow_factor <= 1 or self.steal_ratio <= 1:
            raise ValueError(f"slow_factor {self.slow_factor} and steal_ratio {self.steal_ratio} must be above 1")


@dataclass(frozen=True)
class Revision:
    """State of a checkout: a commit, 40 hexadecimal digits; `dirty`: tracked files differ from it."""

    commit: str
    dirty: bool


def code_revision(folder: Path) -> Revision | None:
    """Ask git for the state of the checkout that contains `folder`; None outside of one."""
    try:
        return Revision(_git(folder, "rev-parse", "HEAD"),
                        bool(_git(folder, "status", "--porcelain", "--untracked-files=no")))
    except (OSError, subprocess.SubprocessError):
        return None


def code_changes(folder: Path, *paths: str) -> str:
    """Hash the changes since the commit to some paths of a checkout: "+" and 12 digits; "" without changes."""
    try:
        root = _git(folder, "rev-parse", "--show-toplevel")
        text = _git(Path(root), "diff", "HEAD", "--no-ext-diff", "--binary", "--", *paths)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"+{hashlib.sha256(text.encode()).hexdigest()[:12]}" if text else ""


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="backslashreplace", timeout=10,
                          check=True).stdout.strip()
