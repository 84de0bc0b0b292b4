"""What a run leaves behind."""

import json
import subprocess

from sparloom import cli


def test_command_and_environment_are_written(tmp_path):
    root = tmp_path / "checkout"
    root.mkdir()
    git = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / "data.dvc").write_text("outs:\n- md5: abc.dir\n  path: data\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    cli.begin(tmp_path / "out", root=root, seed=3, command=["/somewhere/run.py", "matrix=a b.mtx"])
    environment = json.loads((tmp_path / "out" / "environment.json").read_text())
    assert (tmp_path / "out" / "command.txt").read_text() == "python run.py 'matrix=a b.mtx'\n"
    assert environment["seed"] == 3
    assert environment["data"] == "abc.dir"
    assert len(environment["commit"]) == 40
    assert environment["dirty"] is False
    assert {"numpy", "torch", "sparloom"} <= set(environment["versions"])
    assert environment["machine"]["threads"] >= 1


def test_outside_a_checkout_the_commit_is_null(tmp_path):
    cli.begin(tmp_path / "out", root=tmp_path, seed=0, command=["run.py"])
    environment = json.loads((tmp_path / "out" / "environment.json").read_text())
    assert environment["commit"] is None
    assert environment["data"] is None


def test_metrics_are_plain_numbers(tmp_path):
    cli.finish(tmp_path, {"a": 1, "b": 0.5, "c": float("nan"), "d": True})
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"a": 1, "b": 0.5, "c": None, "d": 1}
