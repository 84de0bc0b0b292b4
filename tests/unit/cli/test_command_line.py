"""run.py from the user's view: real processes, their output and exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


COLD = [sys.executable, str(ROOT / "run.py")]


def run(*arguments: str, folder: Path, command: list[str]) -> subprocess.CompletedProcess:
    settings = {f"SPARLOOM_{name}": str(folder / name.lower()) for name in ("ARTIFACTS", "OUTPUTS", "DATA")}
    return subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=folder, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **settings})


def test_without_arguments_it_lists_the_experiments(tmp_path):
    shown = run(folder=tmp_path, command=COLD)
    assert shown.returncode == 0
    assert "finetune_spade" in shown.stdout
    assert "min" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), [
    (["experiment=finetun_spade"], "did you mean finetune_spade"),
    (["experiment=finetune_spade", "selektion.matrices=3"], "unknown key 'selektion.matrices': did you mean sel"),
    (["experiment=finetune_spade", "selection.matrics=3"], "did you mean selection.matrices"),
    (["experiment=finetune_spade", "op=spm"], "op 'spm' does not exist: did you mean spmm"),
    (["experiment=recommend"], "no matrix given: add matrix=<path"),
    (["experiment=recommend", "matrix=/nowhere/a.mtx"], "/nowhere/a.mtx: no such file"),
    (["experiment=recommend", "matrix=/etc/hostname"], "not a matrix file: its name must end in .tar.gz"),
    (["experiment=recommend", "platform@target=spad"], "platform 'spad' does not exist: did you mean spade"),
    (["experiment=finetune_spade", "prepare=false", "samples=tiny"], "no checkpoint latent_spade_spmm"),
    (["experiment=collect_spade", "task.shard=9/4"], "shard '9/4' is not i/n"),
    (["experiment=finetune_spade", "platfrm@target=spade"], "config group 'platfrm' does not exist"),
    (["experiment=recommend", "matrix=/a(1).mtx"], "put the value in quotes"),
    (["experiment=bench_fuse", "task.threads=40000"], "task.threads: 40000 threads: give at most"),
    (["-m", "experiment=finetune_tiny", "hparams=finetune_search", "hydra.sweeper.n_trials=3"],
     "did you mean hydra.sweeper.trials"),
    (["experiment=finetune_tiny", f"seed={2000 * '['}{2000 * ']'}"], "an option or a file of options nests lists or"),
    (["experiment=collect_spade", "timing.rounds=0"], "rounds 0, repetitions 1, retakes 0: at least 1, 1 and 0"),
])
def test_user_errors_are_one_line(tmp_path, run_command, arguments, message):
    shown = run(*arguments, folder=tmp_path, command=run_command)
    assert shown.returncode == 1
    assert "Traceback" not in shown.stderr + shown.stdout
    first = shown.stderr.splitlines()[0]
    assert first.startswith("error: ")
    assert message in first


@pytest.fixture(scope="module")
def refused(tmp_path_factory, run_command) -> Path:
    """Outputs of a run that ended with a user error."""
    folder = tmp_path_factory.mktemp("refused")
    run("experiment=collect_spade", "task.shard=9/4", folder=folder, command=run_command)
    return folder / "outputs"


@pytest.mark.slow
def test_trace_of_a_user_error_is_in_the_log(refused):
    (log,) = refused.rglob("run.log")
    assert "Traceback" in log.read_text()


@pytest.mark.slow
def test_a_failed_run_is_listed_in_the_ledger(refused):
    line = json.loads((refused / "runs.jsonl").read_text())
    assert (line["experiment"], line["overrides"]) == ("collect_spade", ["experiment=collect_spade", "task.shard=9/4"])
    assert (line["status"], line["metrics"]) == ("failed", None)
    assert line["reason"].startswith("shard '9/4' is not i/n")
    assert (refused / line["folder"] / "run.log").exists()


@pytest.mark.slow
def test_debug_shows_the_trace(tmp_path, run_command):
    shown = run("experiment=collect_spade", "task.shard=9/4", "debug=true", folder=tmp_path, command=run_command)
    assert "Traceback" in shown.stderr


@pytest.mark.parametrize(("arguments", "shown"), [
    ([], "finetune_spade"),
    (["experiment=finetune_spade", "--cfg", "job"], "_target_: sparloom.experiments.Finetune"),
])
def test_experiments_and_configurations_are_shown_without_heavy_imports(tmp_path, arguments, shown):
    code = (f"import sys, runpy; sys.argv = ['run.py', *{arguments!r}]\n"
            f"try: runpy.run_path({str(ROOT / 'run.py')!r}, run_name='__main__')\n"
            "except SystemExit: pass\n"
            "heavy = {'torch', 'lightning', 'lightgbm', 'scipy', 'pandas'} & set(sys.modules)\n"
            "sys.exit(f'imports {heavy}' if heavy else 0)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_the_package_imports_nothing_but_itself_and_the_standard_library():
    code = ("import sys; known = set(sys.modules)\nimport sparloom\n"
            "loaded = {name.partition('.')[0] for name in set(sys.modules) - known}\n"
            "others = loaded - set(sys.stdlib_module_names) - {'sparloom'}\n"
            "sys.exit(f'imports {others}' if others else 0)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
