"""experiment=plans: the table, its counts, and its deletions."""

import json
from dataclasses import replace

import pytest
from kept_files import kept_files, rewrite, text_of

from sparloom.fusion import Variant
from sparloom.tuning import (
    FUSED_SOURCES,
    Decision,
    FusionConfig,
    PlanCache,
    PlanKey,
    kernels_digest,
    machine_digest,
    put_pair,
)

KEY = PlanKey("gemm_spmm", "", "a" * 64, "", inner=32, width=64, dtype="float32", threads=2, fuse="auto",
              machine=machine_digest(), kernels=kernels_digest(FUSED_SOURCES))
CHOICE = FusionConfig(True, 8192, 16 << 20, Variant(local=True, prefetch_bytes=4096), 2)
DECISION = Decision("measured", "fastest of [2]")


@pytest.fixture
def kept(tmp_path):
    """Make a cache with a new, an old, a foreign and a damaged decision, and an unrelated file."""
    folder = tmp_path / "plans"
    names = {}
    for name, key in (("new", KEY), ("old", replace(KEY, width=32)), ("foreign", replace(KEY, machine="b" * 64)),
                      ("damaged", replace(KEY, width=16))):
        before = kept_files(folder)
        put_pair(PlanCache(folder), key, CHOICE, DECISION)
        (names[name],) = set(kept_files(folder)) - set(before)
    names["old"].age(40 * 86400)
    rewrite(names["damaged"], b"")
    names["other"] = folder / "notes.json"
    names["other"].write_text("{}")
    return names


def run(build, kept, out, *overrides):
    folder = kept["other"].parent
    metrics = build("plans", f"task.folder={folder}", *overrides, folder=out).run(out)
    return metrics, {name for name, path in kept.items() if path.exists()}


def test_all_cached_decisions_are_listed(build, kept, tmp_path, capsys):
    metrics, left = run(build, kept, tmp_path)
    assert left == set(kept)
    assert {name: metrics[name] for name in ("files", "own", "foreign", "damaged", "pruned")} == {
        "files": 4, "own": 2, "foreign": 1, "damaged": 1, "pruned": 0}
    assert metrics["bytes"] == sum(len(text_of(path)) for name, path in kept.items() if name != "other")
    shown = capsys.readouterr().out
    assert "40 d" in shown
    assert "aaaaaaaaaaaa" in shown
    assert "[2]" in shown
    assert f"{kept['other'].parent}: 2 own, 1 foreign, 1 damaged; " in shown
    written = json.loads((tmp_path / "plans.json").read_text())
    assert {entry["digest"]: entry["state"] for entry in written} == {
        kept[name].digest: state for name, state in (
            ("new", "own"), ("old", "own"), ("foreign", "foreign"), ("damaged", "damaged"))}
    assert {entry["path"] for entry in written} == {str(kept["new"].file)}
    assert next(entry for entry in written if entry["state"] == "foreign")["fault"] == "of another machine"


@pytest.mark.parametrize(("overrides", "left"), [
    (("task.prune=foreign",), {"new", "old", "other"}),
    (("task.older_days=30",), {"new", "foreign", "damaged", "other"}),
    (("task.prune=foreign", "task.older_days=30"), {"new", "other"}), (("task.prune=all",), {"other"})])
def test_selected_entries_are_deleted(build, kept, tmp_path, overrides, left):
    metrics, found = run(build, kept, tmp_path, *overrides)
    assert found == left
    assert metrics["pruned"] == len(kept) - len(left)
    assert 0 <= metrics["pruned_bytes"] <= metrics["bytes"]
    written = json.loads((tmp_path / "plans.json").read_text())
    assert sum(entry["pruned"] for entry in written) == metrics["pruned"]


@pytest.mark.parametrize(("overrides", "message"), [
    (("task.prune=old",), "prune='old' is not one of none, foreign, all"),
    (("task.prune=foreign", "task.older_days=0"), "older_days=0: give a number above 0"),
    (("task.prune=all", "task.older_days=30"), "prune=all asks for no age"),
    (("task.prune=all", "task.folder=pyproject.toml"), r"task\.folder=pyproject\.toml is a file"),
])
def test_invalid_arguments_delete_nothing(build, kept, tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        run(build, kept, tmp_path, *overrides)
    assert all(path.exists() for path in kept.values())


@pytest.mark.parametrize("variable", ["SPARLOOM_CACHE", "AUTOSAGE_CACHE_DIR"])
def test_without_a_folder_it_is_that_of_this_user(build, kept, tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, str(tmp_path if variable == "SPARLOOM_CACHE" else tmp_path / "plans"))
    assert build("plans", folder=tmp_path).run(tmp_path)["files"] == 4


def test_a_missing_folder_counts_as_empty(build, tmp_path, capsys):
    metrics = build("plans", f"task.folder={tmp_path / 'none'}", "task.prune=all", folder=tmp_path).run(tmp_path)
    assert set(metrics.values()) == {0}
    assert "nothing; 0 KiB; 0 deleted" in capsys.readouterr().out
