"""A study in a temporary folder, and a program to sweep in processes of its own."""

import csv
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm_python import WarmProgram, warm_python

APP = Path(__file__).parent / "sweep_app" / "app.py"
CONF = Path(__file__).parents[3] / "conf"
MODULES = (
    "hydra._internal.hydra", "hydra.core.override_parser.overrides_parser", "optuna.storages", "alembic.command",
    "alembic.migration", "sqlalchemy.dialects.sqlite", "sqlalchemy.orm", "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg", "PIL.JpegImagePlugin", "hydra_plugins.sparloom_sweeps.search",
    "hydra_plugins.sparloom_sweeps._figures", "hydra_plugins.sparloom_sweeps._results",
    "hydra_plugins.sparloom_sweeps._study", "sparloom.cli", "parsed_once",
)


class Sweeps:
    """Run the program in one folder and read its files.

    Args:
        python: what programs are started with.
    """

    def __init__(self, folder: Path, python: list[str]) -> None:
        self.folder, self._python = folder, python
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "SPARLOOM_CONF": str(CONF)}

    def start(self, *arguments: str) -> WarmProgram:
        """Begin in a process group of its own."""
        with open(os.devnull, "wb") as null:
            return WarmProgram(self._python, [str(APP), *arguments], folder=self.folder, environment=self.environment,
                               outputs=[null, null])

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([*self._python, str(APP), *arguments], cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, timeout=900, check=False)

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
        """Return the trials, of the given number, that have written no metrics."""
        names = [f"trial_{number:04d}" for number in range(trials)]
        return [name for name in names if not (self.folder / "sweep" / name / "metrics.json").exists()]

    def notes(self, word: str) -> list[str]:
        """Names of the trials about which the program noted `word`, in the order of time."""
        path = self.folder / "runs.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1] for line in lines if line.split()[0] == word]


@pytest.fixture(scope="session")
def python_of_sweeps() -> Iterator[list[str]]:
    pytest.importorskip("optuna", reason="Optuna is in the extra scale")
    with warm_python(MODULES) as command:
        yield command


@pytest.fixture
def sweep(tmp_path, python_of_sweeps) -> Sweeps:
    return Sweeps(tmp_path, python_of_sweeps)
