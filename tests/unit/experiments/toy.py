"""Platform with times by a formula, and corpus of a few small matrices, for tests of tasks."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparloom.measure import Measurement, TimingProtocol
from sparloom.space import Config, SpadeSpace
from sparloom.sparse import MatrixEntry, Pattern, SparseMatrix, row_bin

NEVER = float("inf")
SIMULATED = TimingProtocol(rounds=1, repetitions=1, short_seconds=0.0, most_repetitions=1, slow_factor=NEVER,
                           steal_ratio=NEVER, retakes=0, seed=0)
ROLES = ("train", "train", "validation", "test")


@dataclass(frozen=True)
class ToyPlatform:
    """Platform whose times grow with the index of a configuration in its space.

    Args:
        calls: file that gets a line for every measured sample, or "". Where there is a file of this name and `.most`,
            it holds how many lines there may be: who would add another one waits until its process is killed.
        fails: substring of the keys that fail.
    """

    calls: str = ""
    sleep_seconds: float = 0.0
    fails: str = "-"
    kind: str = "simulated"
    name: str = "toy"
    preset: str = "only"

    def space(self, op):
        return SpadeSpace(op.name)

    def measure_many(
        self, op, operands, configs: Sequence[Config], timing: TimingProtocol
    ) -> Iterator[tuple[Config, int, Measurement]]:
        for config in configs:
            time.sleep(self.sleep_seconds)
            if self.calls:
                while lines(self.calls) >= most_lines(self.calls):
                    time.sleep(0.01)
                with Path(self.calls).open("a") as file:
                    file.write(f"{config.key}\n")
                    file.flush()
                    os.fsync(file.fileno())
            if self.fails in config.key:
                yield config, 0, Measurement.failed("does not fit", self.kind)
            else:
                yield config, 0, Measurement((1e-3 * (1 + len(config.key)),), self.kind)


def lines(path: str) -> int:
    """Count the lines of a file, which need not be there."""
    return Path(path).read_bytes().count(b"\n") if Path(path).exists() else 0


def most_lines(path: str) -> float:
    """Read how many lines a file may have."""
    limit = Path(f"{path}.most")
    return int(limit.read_text()) if limit.exists() else NEVER


class ToyCorpus:
    """Four diagonal matrices: two to train, one to validate, one to test."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def entries(self) -> tuple[MatrixEntry, ...]:
        sizes = (8, 9, 10, 11)
        return tuple(MatrixEntry(f"toy/m{n}", f"m{n}", n, n, n, True, "diagonal", row_bin(n)) for n in sizes)

    def load(self, name: str) -> SparseMatrix:
        if name == self.broken:
            raise OSError(f"{name}: not readable")
        size = int(name.removeprefix("toy/m"))
        pattern = Pattern((size, size), np.arange(size + 1, dtype=np.int64), np.arange(size, dtype=np.int32))
        return SparseMatrix(pattern, np.ones(size, np.float32))

    def split(self) -> dict[str, str]:
        return {entry.name: role for entry, role in zip(self.entries(), ROLES, strict=True)}
