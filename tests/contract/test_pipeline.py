"""dvc.yaml on generated samples: which stages run after which change, and clones; the real pipeline is up to date."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparloom.data import TinySamples
from sparloom.experiments import Gather

ROOT = Path(__file__).resolve().parents[2]
STAGES = ["collect", "pretrain", "finetune", "evaluate", "tables"]
SMALL = {
    "conf/pipeline.yaml": [("src/sparloom/sparse/suitesparse.csv", "manifest.csv"), ("trainer: auto", "trainer: smoke"),
                           ('"trainer.epochs=40"', '""'), ('finetune: ""', "finetune: \"'task.seeds=[0]'\"")],
    "conf/options/models.yaml": [
        ("epochs: 1000", "epochs: 20"), ("threads: 2", "threads: 1"), ("bags: 20", "bags: 2"),
        ("rounds: 80", "rounds: 10"),
        ("[32, 32, 64, 64, 64, 128, 128, 128, 256, 256, 256, 256]", "[4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]")],
    "conf/experiment/finetune_spade.yaml": [("matrices: 5", "matrices: 3"), ("matrix: 100", "matrix: 20")],
}

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Checkout:
    """A checkout with a pipeline, and the home of its user."""

    folder: Path
    home: Path

    def call(self, *command: str) -> str:
        """Run a command and return its output."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPARLOOM_")}
        named = {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, env={
            **kept, **named, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HOME": str(self.home),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "DVC_SITE_CACHE_DIR": str(self.folder / ".dvc" / "tmp" / "site"),
        })
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def dvc(self, *arguments: str) -> str:
        return self.call(sys.executable, "-m", "dvc", *arguments)

    def repro(self) -> list[str]:
        """Bring the pipeline up to date and return the stages that ran."""
        return re.findall(r"^Running stage '(\w+)'", self.dvc("repro"), re.MULTILINE)

    def replace(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def commit(self) -> None:
        self.dvc("push", "-q")
        self.call("git", "add", "-A")
        self.call("git", "commit", "-qm", "state")

    def clone(self, folder: Path) -> "Checkout":
        """Clone to a folder from which this checkout cannot be reached, and fetch the data of DVC."""
        self.call("git", "clone", "-q", str(self.folder), str(folder))
        made = replace(self, folder=folder)
        made.call("git", "remote", "remove", "origin")
        made.dvc("pull", "-q")
        return made


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Checkout:
    """A project whose pipeline has run on a data store of made-up samples; all is pushed and committed."""
    checkout = Checkout(tmp_path_factory.mktemp("pipeline") / "project", tmp_path_factory.mktemp("home"))
    shutil.copytree(ROOT / "conf", checkout.folder / "conf", ignore=shutil.ignore_patterns("local"))
    (checkout.folder / ".dvc").mkdir()
    for name in ("run.py", "dvc.yaml", ".gitignore", ".dvcignore", ".dvc/config", ".dvc/.gitignore"):
        shutil.copy(ROOT / name, checkout.folder / name)
    platforms = [SimpleNamespace(name="cpu_many", preset="workers_32_single"),
                 SimpleNamespace(name="spade", preset="cognate32")]
    samples = TinySamples(matrices=24, configs=256, seed=0)
    Gather(SimpleNamespace(name="spmm"), platforms, samples, manifest=None).run(checkout.folder / "data")
    (checkout.folder / "data" / "manifest.csv").rename(checkout.folder / "manifest.csv")
    for name, changes in SMALL.items():
        for old, new in changes:
            checkout.replace(name, old, new)
    checkout.call("git", "init", "-q", ".")
    checkout.dvc("add", "-q", "data")
    assert checkout.repro() == STAGES
    checkout.commit()
    return checkout


@pytest.fixture(scope="module")
def pulled(finished, tmp_path_factory) -> Checkout:
    """Make a clone with all data of DVC; tests must not change it."""
    return finished.clone(tmp_path_factory.mktemp("far") / "clone")


@pytest.fixture
def clone(pulled, tmp_path) -> Checkout:
    """A copy of the pulled clone, to change."""
    shutil.copytree(pulled.folder, tmp_path / "clone", symlinks=True)
    return replace(pulled, folder=tmp_path / "clone")


def test_every_stage_has_outputs_without_times_or_paths(finished):
    kept = finished.folder / "artifacts"
    table = (kept / "tables" / "spmm.md").read_text(encoding="utf-8")
    assert table.startswith("SpMM: speedup over the default on ")
    assert "**COGNATE**" in table
    lock = (finished.folder / "dvc.lock").read_text(encoding="utf-8")
    outputs = re.findall(r"- path: (artifacts/\S+)", lock)
    assert {path.split("/")[1] for path in outputs} == set(STAGES)
    files = [file for path in outputs for file in [finished.folder / path, *(finished.folder / path).rglob("*")]]
    texts = [file.read_bytes() for file in files if file.is_file()]
    assert not [text for text in texts if bytes(finished.folder) in text]
    assert not [text for text in texts if re.search(rb"20[2-9]\d-\d\d-\d\d[T ]\d\d:\d\d", text)]


def test_a_repeated_run_and_a_pulled_clone_are_up_to_date(finished, pulled):
    assert "Data and pipelines are up to date." in finished.dvc("repro")
    assert "Data and pipelines are up to date." in pulled.dvc("status")
    assert "Data and pipelines are up to date." in pulled.dvc("repro")
    assert pulled.call("git", "status", "--porcelain") == ""


def test_a_comment_runs_nothing(clone):
    clone.replace("conf/options/data.yaml", "# COGNATE §4.1; figure 11", "# figure 11")
    assert clone.repro() == []


def test_a_parameter_of_fine_tuning_runs_it_and_what_follows(clone):
    clone.replace("conf/experiment/finetune_spade.yaml", "matrix: 20", "matrix: 30")
    assert clone.repro() == ["finetune", "evaluate", "tables"]
    assert '"spmm/cognate/target_labels": 90' in (clone.folder / "artifacts/evaluate/metrics.json").read_text()


@pytest.mark.exhaustive
def test_a_parameter_of_pre_training_runs_all_but_the_collection(clone):
    clone.replace("conf/options/data.yaml", "matrices: 100", "matrices: 6")
    assert clone.repro() == STAGES[1:]
    assert '"spmm/cognate/source_matrices": 6' in (clone.folder / "artifacts/evaluate/metrics.json").read_text()


def test_a_column_of_the_tables_runs_the_tables_only(clone):
    clone.replace("conf/pipeline.yaml", 'tables: ""', "tables: task.bold=static")
    assert clone.repro() == ["tables"]
    assert "**static**" in (clone.folder / "artifacts/tables/spmm.md").read_text()


def test_the_manifest_decides_what_is_collected(clone):
    first, *lines = (clone.folder / "manifest.csv").read_text().splitlines()
    (clone.folder / "manifest.csv").write_text("\n".join([first, *lines[:-1]]) + "\n")
    clone.dvc("repro", "collect")
    assert (clone.folder / "artifacts/collect/manifest.csv").read_text().count("\n") == len(lines)
    changed = clone.dvc("status")
    assert "pretrain" in changed
    assert "finetune" in changed


def test_a_pulled_clone_of_this_repository_is_up_to_date(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("no repository: this is an unpacked archive")
    made = Checkout(tmp_path / "clone", tmp_path)
    subprocess.run(["git", "clone", "-q", str(ROOT), str(made.folder)], check=True)
    made.dvc("pull", "-q")
    assert "Data and pipelines are up to date." in made.dvc("status")
