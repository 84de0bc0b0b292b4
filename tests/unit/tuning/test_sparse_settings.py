"""AUTOSAGE_* variables: values, refusals and effects."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from sparloom.space import CudaKernelSpace, SpmmSpace
from sparloom.sparse import Pattern
from sparloom.tuning.sparse import CsrPolicy, CudaSettings, Settings, settings

PAGE = (Path(__file__).parents[3] / "docs" / "autosage.md").read_text(encoding="utf-8")
NAMES = set(re.findall(r"AUTOSAGE_[A-Z0-9_]+", settings.__doc__))
PATTERN = Pattern((10, 20), np.arange(11) * 3, np.tile(np.arange(3, dtype=np.int32), 10))
SET = {
    "AUTOSAGE_CACHE": "0", "AUTOSAGE_REPLAY_ONLY": "1", "AUTOSAGE_LOG_PROBES": "0", "AUTOSAGE_PROBE_FRAC": "0.5",
    "AUTOSAGE_PROBE_MIN_ROWS": "7", "AUTOSAGE_PROBE_ITERS": "6", "AUTOSAGE_PROBE_CAP_MS": "1.5",
    "AUTOSAGE_MIN_PROBE_ROWS": "64", "AUTOSAGE_MIN_PROBE_NNZ": "512", "AUTOSAGE_VERBOSE": "1", "AUTOSAGE_HUB_CTA": "1",
    "AUTOSAGE_VEC4": "0", "AUTOSAGE_FTILE": "128", "AUTOSAGE_WPB": "8", "AUTOSAGE_CACHE_DIR": "/nowhere/plans",
    "AUTOSAGE_SHORTLIST": "trees", "AUTOSAGE_SHORTLIST_MODEL": "/models/spmm:/models/sddmm",
}


@pytest.fixture(autouse=True)
def _warnings_anew():
    settings._warn.cache_clear()


def test_every_variable_is_read_and_documented():
    found = Settings.from_environment(SET)
    assert found == Settings(
        cache_dir=Path("/nowhere/plans"), caching=False, replay_only=True, log_probes=False, probe_frac=0.5,
        probe_min_rows=7, probe_iters=6, probe_cap_ms=1.5, shortlist="trees",
        shortlist_model=(Path("/models/spmm"), Path("/models/sddmm")), min_probe_rows=64, min_probe_nnz=512,
        verbose=True,
        cuda=CudaSettings(hub_cta=True, vec4=False, ftile=128, wpb=8))
    assert set(SET) == NAMES == set(re.findall(r"AUTOSAGE_[A-Z0-9_]+", PAGE))
    assert len(SET) == len(fields(Settings)) - 1 + len(fields(CudaSettings))
    assert len(PAGE.splitlines()) <= 60


def test_documented_defaults_are_those_of_the_policy():
    policy = CsrPolicy()
    shown = dict(re.findall(r"^\| `(AUTOSAGE_\w+)` \| [^|]* \| ([^|]*) \|", PAGE, re.MULTILINE))
    assert shown["AUTOSAGE_PROBE_FRAC"] == f"{policy.share:g}"
    assert shown["AUTOSAGE_PROBE_MIN_ROWS"] == f"{policy.least_nonzeros:,} nonzeros"
    assert shown["AUTOSAGE_PROBE_ITERS"] == f"{policy.effort.repetitions}"
    assert shown["AUTOSAGE_PROBE_CAP_MS"] == f"{1e3 * policy.effort.seconds:g}"


@pytest.mark.parametrize("environment", [{}, {"HOME": "/root"}, dict.fromkeys(SET, "")])
def test_nothing_set_changes_nothing(environment):
    found = Settings.from_environment(environment)
    assert found == Settings()
    assert found.policy(CsrPolicy(), PATTERN) == CsrPolicy()
    assert found.unmeasured(PATTERN) == ""


@pytest.mark.parametrize(("name", "value", "allowed"), [
    ("CACHE", "yes", "0 or 1"), ("REPLAY_ONLY", "2", "0 or 1"), ("VERBOSE", " 1", "0 or 1"), ("VEC4", "true", "0 or 1"),
    ("PROBE_FRAC", "0", "a number above 0, at most 1"), ("PROBE_FRAC", "1.01", "a number above 0, at most 1"),
    ("PROBE_FRAC", "nan", "a number above 0"), ("PROBE_FRAC", "-0.5", "a number above 0"),
    ("PROBE_MIN_ROWS", "0", "a whole number, at least 1"), ("PROBE_ITERS", "3.5", "a whole number, at least 1"),
    ("PROBE_ITERS", "1_000", "a whole number"), ("PROBE_CAP_MS", "inf", "a number above 0, at most 1,000,000"),
    ("MIN_PROBE_ROWS", "-1", "a whole number, at least 0"), ("MIN_PROBE_NNZ", "many", "a whole number, at least 0"),
    ("FTILE", "32", "64 or 128"), ("WPB", "3", "2 or 4 or 8"),
    ("SHORTLIST", "best", "estimate or all or trees or model"), ("SHORTLIST_MODEL", ":", "paths, with : between"),
    ("CACHE_DIR", __file__, "a folder, or the name of a new one"),
    ("CACHE_DIR", "~no_such_user/plans", "a folder, or"), ("CACHE_DIR", "x" * 300, "a folder, or"),
    ("SHORTLIST_MODEL", "a:~no_such_user", "paths, with : between"),
])
def test_values_that_are_not_allowed_are_refused(name, value, allowed):
    with pytest.raises(ValueError, match=f"AUTOSAGE_{name}='{re.escape(value)}': give {allowed}.*, or unset it"):
        Settings.from_environment({f"AUTOSAGE_{name}": value})


def test_the_policy_is_changed_where_it_has_a_counterpart():
    default, found = CsrPolicy(seed=3), Settings.from_environment(SET)
    policy = found.policy(default, PATTERN)
    assert (policy.share, policy.effort.repetitions, policy.effort.seconds) == (0.5, 6, 1.5e-3)
    assert policy.effort.executions == 2 * default.effort.executions
    assert policy.least_nonzeros == 512  # of 7 rows, 64 rows and 512 nonzeros the most; a row has 3
    assert (policy.seed, policy.guardrail) == (3, default.guardrail)
    assert Settings(probe_min_rows=7).policy(default, PATTERN).least_nonzeros == 21
    assert Settings(probe_min_rows=7).policy(default) == default
    assert Settings(min_probe_rows=7000).policy(default, PATTERN).least_nonzeros == 21_000
    assert Settings(min_probe_nnz=5).policy(default, PATTERN) == default
    assert Settings(probe_iters=1).policy(default).effort.executions == default.effort.executions


@pytest.mark.parametrize(("found", "reason"), [
    (Settings(replay_only=True), "AUTOSAGE_REPLAY_ONLY=1 and no decision is stored"),
    (Settings(min_probe_rows=11), "10 rows, AUTOSAGE_MIN_PROBE_ROWS=11"), (Settings(min_probe_rows=10), ""),
    (Settings(min_probe_nnz=31), "30 nonzeros, AUTOSAGE_MIN_PROBE_NNZ=31"), (Settings(min_probe_nnz=30), ""),
])
def test_decisions_without_a_measurement_give_the_reason(found, reason):
    assert found.unmeasured(PATTERN) == reason


def test_the_cache_and_its_log_are_in_the_configured_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    assert Settings().plans().folder == tmp_path / "plans"
    plans = Settings(cache_dir=tmp_path / "mine").plans()
    assert plans.folder == tmp_path / "mine"
    assert Settings().probe_log(plans).path == tmp_path / "mine" / "probe_logs.jsonl"
    assert Settings(log_probes=False).probe_log(plans) is None
    off = Settings(caching=False, cache_dir=tmp_path / "mine")
    assert off.plans().folder is None
    assert off.probe_log(off.plans()) is None
    assert list(tmp_path.iterdir()) == []


def test_variables_without_effect_are_reported_once(caplog):
    for _ in range(2):
        found = Settings.from_environment({"AUTOSAGE_WPB": "4", "AUTOSAGE_FTILE": "64", "AUTOSAGE_PROBE_FRACTION": "1"})
    assert (found.cuda.wpb, found.cuda.ftile, found.probe_frac) == (4, 64, None)
    assert [record.getMessage() for record in caplog.records] == [
        "AUTOSAGE_PROBE_FRACTION is not read: did you mean AUTOSAGE_PROBE_FRAC?",
        "AUTOSAGE_FTILE, AUTOSAGE_WPB: no effect on a CPU"]


@pytest.mark.parametrize(("given", "kept"), [
    ({"HUB_CTA": "0"}, lambda config: not config["balance"].startswith("q")),
    ({"VEC4": "0"}, lambda config: config["vector"] < 4), ({"WPB": "8"}, lambda config: config["warps"] == 8),
    ({"FTILE": "64"}, lambda config: config["lanes"] * config["vector"] * config["loads"] == 64),
    ({"HUB_CTA": "1", "VEC4": "1"}, lambda config: True)])
def test_which_cuda_kernels_may_be_measured(given, kept):
    allows = Settings.from_environment({f"AUTOSAGE_{name}": text for name, text in given.items()}).cuda.allows
    configs = list(CudaKernelSpace("spmm", width=256))
    assert [config for config in configs if allows(config)] == [config for config in configs if kept(config)]
    assert any(map(allows, configs))
    assert all(map(allows, SpmmSpace(64)))
    assert any(map(allows, CudaKernelSpace("sddmm")))


SHOWN = """
import logging
from sparloom.tuning.sparse import Settings
decisions = logging.getLogger("sparloom.tuning.sparse.prepared")
Settings().show_decisions()
decisions.info("silent")
if {setting_up}:
    logging.basicConfig(format="own %(message)s")
for _ in range(2):
    Settings.from_environment({{"AUTOSAGE_VERBOSE": "1"}}).show_decisions()
decisions.info("chosen")
"""


@pytest.mark.parametrize(("setting_up", "line"), [
    (False, "sparloom.tuning.sparse.prepared: chosen\n"), (True, "own chosen\n")])
def test_verbose_decisions_are_logged_once(setting_up, line):
    done = subprocess.run([sys.executable, "-c", SHOWN.format(setting_up=setting_up)], capture_output=True, text=True,
                          check=True)
    assert done.stderr == line
