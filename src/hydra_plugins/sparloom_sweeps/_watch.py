"""Pruning: reads the intermediate values that running jobs write into their folders, and asks the hopeless to stop."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sparloom.intermediate import REPORTED, STOP

if TYPE_CHECKING:
    from optuna.trial import Trial

__all__ = ["Watch"]


class Watch:
    """Watches folders of running trials from a thread of the sweeper, whatever the launcher.

    So jobs know nothing of Optuna, and only the sweeper opens the study, which may not lie on a network file system.

    Args:
        trials: folder -> trial.
        seconds: between two looks.
    """

    def __init__(self, trials: Mapping[Path, "Trial"], seconds: float) -> None:
        self._trials, self._seconds = trials, seconds
        self._read = dict.fromkeys(trials, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_often, name="intermediate values", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for folder, trial in self._trials.items():
            self._take(folder, trial)

    def _look_often(self) -> None:
        while not self._ended.wait(self._seconds):
            for folder, trial in self._trials.items():
                if self._take(folder, trial) and trial.should_prune():
                    (folder / STOP).touch()

    def _take(self, folder: Path, trial: "Trial") -> bool:
        """Hand new values to the trial; says whether there were any."""
        new = _complete_lines(folder / REPORTED)[self._read[folder]:]
        self._read[folder] += len(new)
        for line in new:
            step, _, value = line.partition(",")
            trial.report(float(value), int(step))
        return bool(new)


def _complete_lines(path: Path) -> Sequence[str]:
    """Leave out a last line that is still being written."""
    try:
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return ()
