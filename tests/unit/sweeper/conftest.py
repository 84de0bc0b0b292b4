"""A study in a temporary folder, and a program to sweep in processes of its own."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

APP = Path(__file__).parent / "sweep_app" / "app.py"
CONF = Path(__file__).parents[3] / "conf"


class Sweeps:
    """Runs the program in one folder and reads what it left there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "SPARLOOM_CONF": str(CONF)}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(APP), *arguments]

    def start(self, *arguments: str) -> subprocess.Popen:
        """Begin in a process group of its own."""
        return subprocess.Popen(self.command(*arguments), cwd=self.folder, env=self.environment,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(self.command(*arguments), cwd=self.folder, env=self.environment, capture_output=True,
                              text=True, timeout=900, check=False)

    def trials(self, study: str = "sweep/study.db") -> list:
        import optuna

        storage = optuna.storages.RDBStorage(f"sqlite:///{self.folder / study}")
        found = optuna.load_study(study_name="sweep", storage=storage).trials
        storage.remove_session()
        storage.engine.dispose()
        return found

    def rows(self) -> list[dict[str, str]]:
        """Lines of trials.csv."""
        with (self.folder / "sweep" / "trials.csv").open(encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def unfinished(self, trials: int) -> list[str]:
        """Names of those of so many trials that have left no metrics."""
        names = [f"trial_{number:04d}" for number in range(trials)]
        return [name for name in names if not (self.folder / "sweep" / name / "metrics.json").exists()]

    def notes(self, word: str) -> list[str]:
        """Names of the trials about which the program noted `word`, in the order of time."""
        path = self.folder / "runs.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1] for line in lines if line.split()[0] == word]


@pytest.fixture
def sweep(tmp_path) -> Sweeps:
    pytest.importorskip("optuna", reason="Optuna is in the extra scale")
    return Sweeps(tmp_path)
