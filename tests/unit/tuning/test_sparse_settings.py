"""AUTOSAGE_* variables: values, refusals and effects."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from sparloom.tuning.sparse import CsrPolicy, Settings, settings

PAGE = (Path(__file__).parents[3] / "docs" / "autosage.md").read_text(encoding="utf-8")
SET = {
    "AUTOSAGE_CACHE": "0", "AUTOSAGE_REPLAY_ONLY": "1", "AUTOSAGE_PROBE_FRAC": "0.5", "AUTOSAGE_PROBE_ITERS": "6",
    "AUTOSAGE_PROBE_CAP_MS": "1.5", "AUTOSAGE_CACHE_DIR": "/nowhere/plans",
}


@pytest.fixture(autouse=True)
def _warnings_anew():
    settings._warn.cache_clear()


def test_every_variable_is_read_and_documented():
    assert Settings.from_environment(SET) == Settings(
        cache_dir=Path("/nowhere/plans"), caching=False, replay_only=True, probe_frac=0.5, probe_iters=6,
        probe_cap_ms=1.5)
    assert set(SET) == set(re.findall(r"`(AUTOSAGE_[A-Z0-9_]+)` \|", PAGE))
    assert len(SET) == len(fields(Settings))


def test_documented_defaults_are_those_of_the_policy():
    policy = CsrPolicy()
    shown = dict(re.findall(r"^\| `(AUTOSAGE_\w+)` \| [^|]* \| ([^|]*) \|", PAGE, re.MULTILINE))
    assert shown["AUTOSAGE_PROBE_FRAC"] == f"{policy.share:g}"
    assert shown["AUTOSAGE_PROBE_ITERS"] == f"{policy.effort.repetitions}"
    assert shown["AUTOSAGE_PROBE_CAP_MS"] == f"{1e3 * policy.effort.seconds:g}"


@pytest.mark.parametrize("environment", [{}, {"HOME": "/root"}, dict.fromkeys(SET, "")])
def test_nothing_set_changes_nothing(environment):
    found = Settings.from_environment(environment)
    assert found == Settings()
    assert found.policy(CsrPolicy()) == CsrPolicy()


@pytest.mark.parametrize(("name", "value", "allowed"), [
    ("CACHE", "yes", "0 or 1"), ("REPLAY_ONLY", "2", "0 or 1"), ("PROBE_FRAC", "0", "a number above 0, at most 1"),
    ("PROBE_FRAC", "1.01", "a number above 0, at most 1"), ("PROBE_FRAC", "nan", "a number above 0"),
    ("PROBE_FRAC", "half", "a number above 0"), ("PROBE_ITERS", "3.5", "a whole number, at least 1"),
    ("PROBE_ITERS", "1_000", "a whole number"), ("PROBE_ITERS", "0", "a whole number"),
    ("PROBE_CAP_MS", "inf", "a number above 0, at most 1,000,000"),
    ("CACHE_DIR", __file__, "a folder, or the name of a new one"),
    ("CACHE_DIR", "~no_such_user/plans", "a folder, or"), ("CACHE_DIR", "x" * 300, "a folder, or"),
])
def test_values_that_are_not_allowed_are_refused(name, value, allowed):
    with pytest.raises(ValueError, match=f"AUTOSAGE_{name}='{re.escape(value)}': give {allowed}.*, or unset it"):
        Settings.from_environment({f"AUTOSAGE_{name}": value})


def test_the_policy_is_changed_where_it_has_a_counterpart():
    default = CsrPolicy(parts=2)
    policy = Settings.from_environment(SET).policy(default)
    assert (policy.share, policy.effort.repetitions, policy.effort.seconds) == (0.5, 6, 1.5e-3)
    assert policy.effort.executions == 2 * default.effort.executions
    assert (policy.parts, policy.guardrail) == (2, default.guardrail)
    assert Settings(probe_iters=1).policy(default).effort.executions == default.effort.executions


def test_the_cache_is_in_the_configured_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    assert Settings().plans().folder == tmp_path / "plans"
    assert Settings(cache_dir=tmp_path / "mine").plans().folder == tmp_path / "mine"
    assert Settings(caching=False, cache_dir=tmp_path / "mine").plans().folder is None
    assert list(tmp_path.iterdir()) == []


def test_variables_that_are_not_read_are_reported_once(caplog):
    for _ in range(2):
        assert Settings.from_environment({"AUTOSAGE_PROBE_FRACTION": "1", "AUTOSAGE_WPB": "4"}) == Settings()
    assert [record.getMessage() for record in caplog.records] == [
        "AUTOSAGE_PROBE_FRACTION is not read: did you mean AUTOSAGE_PROBE_FRAC?", "AUTOSAGE_WPB is not read"]
