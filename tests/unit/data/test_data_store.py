"""The data store inside the repository: a clone in another folder gets its data offline."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparloom.data import ensure_data, verify_stored
from sparloom.errors import MissingArtifact, SchemaError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def run(*command: str, cwd: Path) -> None:
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(cwd / ".dvc" / "tmp" / "site")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def add(repository: Path) -> None:
    """Put the state of data/ into the store and commit."""
    run(sys.executable, "-m", "dvc", "add", "-q", "data", cwd=repository)
    run(sys.executable, "-m", "dvc", "push", "-q", cwd=repository)
    run("git", "add", "-A", cwd=repository)
    run("git", "commit", "-qm", "data", cwd=repository)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this project's DVC settings and a little data in its store."""
    folder = tmp_path_factory.mktemp("origin") / "project"
    folder.mkdir()
    run("git", "init", "-q", ".", cwd=folder)
    run("git", "config", "user.name", "nobody", cwd=folder)
    run("git", "config", "user.email", "nobody@example.org", cwd=folder)
    shutil.copytree(ROOT / ".dvc", folder / ".dvc", ignore=shutil.ignore_patterns("tmp", "cache", "config.local"))
    for name in (".gitignore", ".dvcignore"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "data" / "samples").mkdir(parents=True)
    (folder / "data" / "samples" / "a.txt").write_text("first")
    add(folder)
    return folder


@pytest.fixture
def clone(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a clone in another folder, for a user with an empty home and without access to the original."""
    folder = tmp_path / "far" / "clone"
    run("git", "clone", "-q", str(origin), str(folder), cwd=tmp_path)
    run("git", "remote", "remove", "origin", cwd=folder)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


def test_clone_gets_its_data_once(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_data(clone / "data")
    assert (clone / "data" / "samples" / "a.txt").read_text() == "first"
    status = subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True)
    assert status.stdout == ""
    monkeypatch.setattr(subprocess, "run", lambda *given, **options: pytest.fail("the data was fetched again"))
    ensure_data(clone / "data")


def test_damage_is_detected_by_the_list_of_the_store(clone: Path) -> None:
    path = clone / "data" / "samples" / "a.txt"
    ensure_data(clone / "data")
    verify_stored(clone / "data", path)
    path.chmod(0o644)
    path.write_text("firsd")
    with pytest.raises(SchemaError, match=r"a\.txt is damaged .*: restore it with `dvc pull --force`"):
        verify_stored(clone / "data", path)
    path.write_text("made anew here")
    verify_stored(clone / "data", path)


def test_changed_files_are_kept_with_a_warning(clone: Path, caplog: pytest.LogCaptureFixture) -> None:
    (clone / "data" / "samples").mkdir(parents=True)
    (clone / "data" / "samples" / "a.txt").write_text("mine")
    with caplog.at_level(logging.WARNING, logger="sparloom.data"):
        ensure_data(clone / "data")
    assert (clone / "data" / "samples" / "a.txt").read_text() == "mine"
    assert "data/ differs from the version of data.dvc and was not changed" in caplog.text


def test_newer_pointer_brings_newer_data(origin: Path, clone: Path) -> None:
    ensure_data(clone / "data")
    (clone / "data" / "samples" / "a.txt").write_text("second")
    run("git", "config", "user.name", "nobody", cwd=clone)
    run("git", "config", "user.email", "nobody@example.org", cwd=clone)
    add(clone)
    again = clone.parent / "again"
    run("git", "clone", "-q", str(clone), str(again), cwd=clone.parent)
    run("git", "checkout", "-q", "HEAD~1", cwd=again)
    ensure_data(again / "data")
    assert (again / "data" / "samples" / "a.txt").read_text() == "first"
    run("git", "checkout", "-q", "-", cwd=again)
    ensure_data(again / "data")
    assert (again / "data" / "samples" / "a.txt").read_text() == "second"


def test_a_broken_store_names_the_remedy(clone: Path) -> None:
    shutil.rmtree(clone / "dvc-store")
    with pytest.raises(MissingArtifact, match=r"data/ could not be fetched from the data store \(.*try `dvc pull` in"):
        ensure_data(clone / "data")
    assert not (clone / "data").exists()


def test_dvc_that_is_not_installed_is_named(
    clone: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sparloom.data.files.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"dvc fetches data/ and is not installed: pip install 'sparloom\[data\]'"):
        ensure_data(clone / "data")
    (clone / "data").mkdir()
    with caplog.at_level(logging.WARNING, logger="sparloom.data"):
        ensure_data(clone / "data")
    assert "data/ cannot be compared with data.dvc: dvc is not installed" in caplog.text
