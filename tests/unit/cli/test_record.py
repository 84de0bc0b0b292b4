"""Files that a run writes."""

import json
import os
import subprocess

import pytest

from sparloom import cli
from sparloom.files import check_sum


@pytest.fixture
def checkout(tmp_path):
    root = tmp_path / "checkout"
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / "data.dvc").write_text("outs:\n- md5: abc.dir\n  path: data\n")
    (root / "code.py").write_text("x = 1\n")
    commit(root)
    return root


def commit(root):
    git = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first", "--allow-empty"], check=True)


def test_command_and_environment_are_written(tmp_path, checkout):
    root = checkout
    cli.begin(tmp_path / "out", root=root, ledger=tmp_path / "runs.jsonl", seed=3, overrides=[],
              command=["/somewhere/run.py", "matrix=a b.mtx"])
    environment = json.loads((tmp_path / "out" / "environment.json").read_text())
    assert (tmp_path / "out" / "command.txt").read_text() == "python run.py 'matrix=a b.mtx'\n"
    assert environment["seed"] == 3
    assert environment["data"] == "abc.dir"
    assert len(environment["commit"]) == 40
    assert environment["dirty"] is False
    assert {"numpy", "torch", "sparloom"} <= set(environment["versions"])
    assert environment["machine"]["threads"] >= 1


CHANGES = {
    "nothing": (lambda root: None, False), "an edit": (lambda root: (root / "code.py").write_text("x = 2\n"), True),
    "another edit": (lambda root: (root / "code.py").write_text("x = 3\n"), True),
    "a commit": (commit, True), "a removal": (lambda root: (root / "code.py").unlink(), True),
    "bytes": (lambda root: (root / "code.py").write_bytes(b"x = '\xff'\n"), True),
    "an untracked file": (lambda root: (root / "notes.txt").write_text("to do"), False),
}


@pytest.mark.parametrize("dirty", [False, True])
@pytest.mark.parametrize("ends", ["finish", "fail"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_checkout_that_changed_during_the_run_is_noted(tmp_path, checkout, capsys, change, ends, dirty):
    if dirty:
        (checkout / "code.py").write_text("x = 2\n")
        if change == "an edit":
            pytest.skip("it is this edit")
    run = cli.begin(tmp_path / "out", root=checkout, ledger=tmp_path / "runs.jsonl", seed=3, command=["run.py"],
                    overrides=[])
    begun = json.loads((tmp_path / "out" / "environment.json").read_text())
    act, changed = CHANGES[change]
    act(checkout)
    {"finish": lambda: run.finish({"a": 1}), "fail": lambda: run.fail("no memory")}[ends]()
    ended = json.loads((tmp_path / "out" / "environment.json").read_text())
    assert ended["changed_during_run"] is changed
    assert {key: ended[key] for key in begun} == begun
    assert ("commit_at_end" in ended) is changed
    assert ("changed while this run went on" in capsys.readouterr().out) is changed
    if ends == "finish":
        check_sum(tmp_path / "out" / "environment.json", (tmp_path / "out" / "environment.json").read_bytes())


def begun(folder, *overrides):
    return cli.begin(folder / "x" / "run", root=folder, ledger=folder / "runs.jsonl", seed=3, command=["run.py"],
                     overrides=overrides)


def test_metrics_are_listed_with_their_checksum(tmp_path):
    begun(tmp_path).finish({"a": 0.5})
    folder = tmp_path / "x" / "run"
    sums = (folder / "SHA256SUMS").read_text().splitlines()
    assert [line.partition("  ")[2] for line in sums] == ["environment.json", "metrics.json"]
    check_sum(folder / "metrics.json", (folder / "metrics.json").read_bytes())


def test_a_run_removes_leftovers_of_killed_runs_of_its_experiment(tmp_path):
    for folder in (tmp_path / "x" / "run", tmp_path / "x" / "before"):
        folder.mkdir(parents=True)
        (folder / ".per_matrix.parquet.3999999-1.partial").write_text("half")
        os.utime(folder / ".per_matrix.parquet.3999999-1.partial", (0, 0))
    begun(tmp_path)
    assert not list(tmp_path.rglob("*.partial"))


def test_every_end_of_a_run_is_one_line_of_the_ledger(tmp_path):
    begun(tmp_path, "experiment=try", "lr=1").finish({"loss": 0.5})
    begun(tmp_path, "task=fit").fail("no data: collect some")
    first, second = (json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines())
    assert (first["experiment"], first["overrides"], first["folder"]) == ("try", ["experiment=try", "lr=1"], "x/run")
    assert (first["status"], first["reason"], first["metrics"]) == ("finished", None, {"loss": 0.5})
    assert (first["seed"], first["commit"], first["dirty"]) == (3, None, False)
    assert first["wall_seconds"] >= 0
    assert first["started"].endswith("Z")
    assert (second["experiment"], second["status"], second["reason"], second["metrics"]) == (
        None, "failed", "no data: collect some", None)
    assert not (tmp_path / "metrics.json").exists()


@pytest.mark.parametrize("blocked", ["x", "x/run", "runs.jsonl"])
def test_unwritable_files_are_reported_before_the_run(tmp_path, blocked):
    """A file blocks a needed folder, or a folder blocks the ledger."""
    place = tmp_path / blocked
    place.parent.mkdir(exist_ok=True)
    if blocked == "runs.jsonl":
        place.mkdir()
    else:
        place.write_text("")
    with pytest.raises(OSError, match=blocked):
        begun(tmp_path)
