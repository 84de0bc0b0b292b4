"""User errors are one line; bugs of ours are not hidden."""


import errno
import logging
import os

import pytest
from hydra.errors import ConfigCompositionException

from sparloom import cli, log
from sparloom.errors import MissingArtifact, SchemaError

BOTH = "pip install 'sparloom[{}]' (in a checkout: pip install -e \".[{}]\")"


def keys():
    return ["selection.matrices", "seed"]


def test_a_user_error_is_one_line_and_its_trace_is_logged(tmp_path, capsys):
    log.start(tmp_path)
    with pytest.raises(cli.Reported):
        cli.fail(SchemaError("table is of version 1: collect again"), tmp_path, debug=False)
    shown = capsys.readouterr().err
    assert shown.splitlines()[0] == "error: table is of version 1: collect again"
    assert "Traceback" not in shown
    assert "SchemaError" in (tmp_path / "run.log").read_text()


def test_debug_shows_the_trace(tmp_path, capsys):
    with pytest.raises(cli.Reported):
        cli.fail(ValueError("no"), tmp_path, debug=True)
    assert "ValueError: no" in capsys.readouterr().err


def test_other_errors_are_reported_as_possible_bugs(tmp_path, capsys):
    log.start(tmp_path)
    with pytest.raises(cli.Reported):
        cli.fail(KeyError("bug"), tmp_path, debug=False)
    shown = capsys.readouterr().err
    assert shown.startswith("error: KeyError: 'bug' (a value of the wrong kind, or a fault of sparloom; debug=true")
    assert "KeyError" in (tmp_path / "run.log").read_text()


def test_missing_artifact_names_its_command(tmp_path, capsys):
    error = MissingArtifact("no encoder", experiment="autoencode_spade", overrides=("op=sddmm",))
    with pytest.raises(cli.Reported):
        cli.fail(error, tmp_path, debug=False)
    assert capsys.readouterr().err.count("experiment=autoencode_spade op=sddmm") == 1
    assert str(error) == "no encoder: run `python run.py experiment=autoencode_spade op=sddmm`"


def test_an_unknown_key_suggests_the_nearest():
    error = ConfigCompositionException("Could not override 'selektion.matrices'.\nKey 'selektion' is not in struct")
    assert cli.explain(error, keys) == "unknown key 'selektion.matrices': did you mean selection.matrices?"


@pytest.mark.parametrize("reason", ["find", "load"])
def test_missing_launcher_names_the_extra(reason):
    error = ConfigCompositionException(f"In 'hydra/launcher/local': Could not {reason} 'hydra/launcher/joblib'\n\n"
                                       "Available options in 'hydra/launcher':\n\tbasic\n\tlocal\n")
    assert cli.explain(error, keys) == f"launcher joblib is not installed: {BOTH.format('scale', 'scale')}"


@pytest.mark.parametrize(("error", "remedy"), [
    (ModuleNotFoundError("No module named 'lightgbm'", name="lightgbm.basic"), BOTH.format(*["experiments"] * 2)),
    (ModuleNotFoundError("No module named 'submitit'", name="submitit"), BOTH.format("scale", "scale"))])
def test_missing_libraries_name_the_extra_for_both_kinds_of_installation(error, remedy):
    assert cli.failure_reason(error) == f"{error}: {remedy}"


def test_guard_gives_exit_statuses(capsys, monkeypatch):
    monkeypatch.delenv("SPARLOOM_DEBUG", raising=False)

    def raising(error):
        def main():
            raise error
        return main

    assert cli.guard(lambda: None, keys) == 0
    assert cli.guard(raising(cli.Reported("told")), keys) == 1
    assert cli.guard(raising(KeyboardInterrupt()), keys) == 130
    assert cli.guard(raising(cli.UsageError("no experiment")), keys) == 1
    assert "error: no experiment" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        cli.guard(raising(ZeroDivisionError()), keys)


@pytest.mark.parametrize(("number", "text"), [
    (errno.ENOTDIR, "/o/x: not a directory: an input must be readable; outputs go to another folder"),
    (errno.EACCES, "/o/x: permission denied: an input must"), (errno.EROFS, "/o/x: read-only file system: an input"),
    (errno.EISDIR, "/o/x: is a directory"), (errno.ENAMETOOLONG, "/o/x: file name too long: choose a shorter name"),
    (errno.ENOSPC, "/o/x: no space left on device: free space, or write to another disk with paths.outputs=<folder>"),
    (errno.EIO, "/o/x: input/output error: check the path and its disk")])
def test_outputs_that_cannot_be_written_take_one_line(number, text, capsys):
    def main():
        raise OSError(number, os.strerror(number), "/o/x")

    assert cli.guard(main, keys) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: {text}")
    assert len(shown.splitlines()) == 1


def test_bugs_keep_their_trace():
    def main():
        raise KeyError("bug")

    with pytest.raises(KeyError):
        cli.guard(main, keys)


def test_a_log_on_a_full_disk_ends_with_one_line(tmp_path, capsys, monkeypatch):
    log.start(tmp_path)
    kept = next(handler for handler in logging.getLogger("sparloom").handlers
                if isinstance(handler, logging.FileHandler))

    def full(text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept.stream, "write", full)
    for _ in range(2):
        logging.getLogger("sparloom.x").warning("words")
    shown = capsys.readouterr().err
    assert shown == f"warning: {tmp_path / 'run.log'} is no longer written: No space left on device\n"


def test_a_reference_that_does_not_exist_is_explained():
    error = ConfigCompositionException("Interpolation key 'c' not found")
    assert "a file or folder with ${ in its name needs another name" in cli.explain(error, keys)
