"""docs/extending.md, followed word by word: its files, its command, a fine-tuned model of a new platform."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([^`\n]+)`:\n\n```(?:python|yaml)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
FINETUNE = re.compile(r"^python (run\.py experiment=finetune_chip .*task\.pretrained=(\S+))$", re.MULTILINE)
COMMAND, SOURCE = FINETUNE.search(PAGE).groups()
SHORT = ("trainer=smoke", "logger=none", "encoder.epochs=20")
TRAINED = ("data/checkpoints/source_cpu_many_workers_32_single_spmm_cognate-ff8d3794.pt",
           "artifacts/checkpoints/real/source_cpu_many_workers_32_single_spmm_cognate-ff8d3794.pt")
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", "test_extending.py", "test_documented_commands.py",
                                 "test_documented_code.py", "test_claims.py")  # they read pages outside of the copy

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Checkout:
    """A copy of the project with the page's files in it."""

    folder: Path

    def python(self, *arguments: str) -> str:
        """Run Python in the copy and return its output."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPARLOOM_")}
        environment = {**kept, "PYTHONPATH": str(self.folder / "src"), "SPARLOOM_ROOT": str(self.folder)}
        done = subprocess.run([sys.executable, *arguments], cwd=self.folder, env=environment, capture_output=True,
                              text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Checkout:
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("src", "conf", "kernels"):
        shutil.copytree(ROOT / name, folder / name, ignore=IGNORED)
    for name in ("run.py", "pyproject.toml", "dvc.yaml"):
        shutil.copy(ROOT / name, folder / name)
    for name, text in FILES.items():
        assert not (folder / name).exists(), f"docs/extending.md would overwrite {name}"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return Checkout(folder)


@pytest.fixture(scope="module")
def source(checkout) -> Path:
    """Return the source model at the path that the page names: the one trained on real samples, or one made here."""
    path = checkout.folder / SOURCE
    trained = next((ROOT / name for name in TRAINED if (ROOT / name).is_file()), None)
    if trained is None:
        checkout.python("run.py", "experiment=pretrain_cpu", "samples=tiny", *SHORT)
        made = checkout.folder / "artifacts" / "checkpoints" / "tiny"
        trained, = made.glob("source_cpu_many_workers_32_single_spmm_cognate-*.pt")
    path.parent.mkdir(parents=True)
    shutil.copy(trained, path)
    return path


def test_page_writes_code_a_platform_and_its_experiments():
    assert list(FILES) == [
        "src/sparloom/space/chip.py", "src/sparloom/platforms/chip.py", "conf/platform/chip.yaml",
        "conf/experiment/collect_chip.yaml", "conf/experiment/autoencode_chip.yaml",
        "conf/experiment/finetune_chip.yaml",
    ]


def test_command_fine_tunes_and_leaves_the_source_alone(checkout, source):
    before = source.read_bytes()
    printed = checkout.python(*COMMAND.split(), *SHORT, "corpus.rows=[200]", "task.seeds=[0]",
                              "trees.bags=2", "trees.rounds=20", "trees.threads=1")
    for prerequisite in ("collect_chip", "prepare_inputs", "autoencode_chip"):
        assert f"running experiment={prerequisite} " in printed
    assert "pretrain_cpu" not in printed
    assert source.read_bytes() == before
    out, = (checkout.folder / "outputs" / "finetune_chip").iterdir()
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["test/top1_speedup"] > 0
    assert metrics["test/zero_shot_top1_speedup"] > 0
    assert metrics["test/labels_per_seed"] == 5 * 36
    assert list((checkout.folder / "artifacts/checkpoints/synthetic").glob("finetuned_chip_toy_spmm_cognate-*.pt"))


def test_listing_shows_the_new_experiments(checkout):
    printed = checkout.python("run.py")
    for name in ("collect_chip", "autoencode_chip", "finetune_chip"):
        title = FILES[f"conf/experiment/{name}.yaml"].splitlines()[1].removeprefix("# ").removesuffix(".")
        row = next(line.strip() for line in printed.splitlines() if line.strip().startswith(f"{name} "))
        assert title.startswith(row.removeprefix(name).strip().split("  ")[0].removesuffix("..."))


@pytest.mark.exhaustive
def test_new_files_pass_the_contracts_of_all(checkout):
    tests = checkout.folder / "tests"
    shutil.copytree(ROOT / "tests" / "contract", tests / "contract", ignore=IGNORED)
    for path in (ROOT / "tests").glob("*.py"):
        shutil.copy(path, tests)
    printed = checkout.python("-m", "pytest", "-v", "-p", "no:cacheprovider", "tests/contract",
                              "-k", "chip or imports_go_downwards")
    for case in ("experiment_composes_and_binds[finetune_chip]", "imports_go_downwards"):
        assert f"test_{case} PASSED" in printed
