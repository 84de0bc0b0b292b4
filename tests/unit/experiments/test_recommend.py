"""Recommendations for a matrix file."""

import json
import logging
import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from small import SMALL

from sparloom.errors import Unsupported
from sparloom.experiments.cognate import RecommendShape, calibration, read_shape
from sparloom.measure import describe_machine
from sparloom.models.performance import Origin, machine_constants
from sparloom.ops import GEMM
from sparloom.sparse import Pattern, SparseMatrix, write_matrix

FITTED = ("recommender.learning.selection.matrices=4", "recommender.learning.selection.configs_per_matrix=4")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    rng = np.random.default_rng(0)
    pattern = Pattern.from_coo(rng.integers(0, 400, 3000), rng.integers(0, 300, 3000), (400, 300))
    path = tmp_path_factory.mktemp("matrix") / "my matrix, (1).mtx"
    write_matrix(path, SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)))
    return path


def recommend(build, trained, path, *overrides, recommender="finetuned"):
    return build("recommend", *SMALL, f"matrix='{path}'", f"recommender={recommender}", *overrides, folder=trained)


def test_five_different_programs_are_written(build, trained, file, tmp_path, capsys):
    metrics = recommend(build, trained, file).run(tmp_path)
    written = json.loads((tmp_path / "recommendation.json").read_text())
    keys = [entry["config"] for entry in written["configurations"]]
    assert len(set(keys)) == 5
    behind = [entry["behind"] for entry in written["configurations"]]
    assert behind[0] == 0
    assert behind == sorted(behind)
    assert metrics["lead"] == behind[1]
    assert (tmp_path / "spy.png").exists()
    assert (tmp_path / "spy.svg").exists()
    shown = capsys.readouterr().out
    assert "lead of the first" in shown
    text = "what it may lose is not known: that takes samples of all configurations of 20 matrices"
    assert text in " ".join(shown.split())
    assert "regret" not in shown


@pytest.mark.cc
@pytest.mark.parametrize(("verify", "line"), [("top", "regret_top5 "), ("all", "regret ")])
def test_verified_choices_print_their_regret(build, trained, file, tmp_path, capsys, verify, line):
    metrics = recommend(build, trained, file, f"verify={verify}").run(tmp_path)
    lines = [text for text in capsys.readouterr().out.splitlines() if text.startswith(line)]
    assert float(lines[0].split()[1]) == pytest.approx(metrics[line.strip()], abs=1e-4)
    assert float(lines[0].split()[1]) >= 1
    assert metrics["speedup"] > 0
    assert json.loads((tmp_path / "recommendation.json").read_text())["configurations"][0]["seconds"] > 0


def test_matrix_without_nonzeros_is_refused(build, trained, tmp_path):
    empty = tmp_path / "empty.mtx"
    empty.write_text("%%MatrixMarket matrix coordinate real general\n3 3 0\n")
    with pytest.raises(ValueError, match="has no nonzeros"):
        recommend(build, trained, empty).run(tmp_path)


@pytest.mark.parametrize("text", ["%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 1.0\n", "garbage"])
def test_broken_file_is_named(build, trained, tmp_path, text):
    broken = tmp_path / "broken.mtx"
    broken.write_text(text)
    with pytest.raises(ValueError, match=r"broken.mtx"):
        recommend(build, trained, broken).run(tmp_path)


def test_platform_without_fine_tuned_model_is_refused(build, trained, file, tmp_path):
    with pytest.raises(Unsupported, match=r"and at most 4,096 are scored one by one: choose a target such"):
        recommend(build, trained, file, "platform@target=cpu").run(tmp_path)


def test_the_network_that_was_fine_tuned_last_recommends(build, trained, file, tmp_path):
    """Of whatever settings: the published one has a coarse grid and no statistics, ours windows and statistics."""
    shutil.copytree(trained / "artifacts", tmp_path / "artifacts")
    folder = tmp_path / "artifacts" / "checkpoints" / "tiny"
    stored = sorted(folder.glob("finetuned_spade_cognate32_spmm_*"))
    assert len(stored) == 2
    (folder / "finetuned_spade_cognate32_spmm_32_cognate-00000000.pt").touch()  # of another width
    found = set()
    for number, last in enumerate(stored, 1):
        os.utime(last, (2e9 + number, 2e9 + number))
        (tmp_path / str(number)).mkdir()
        task = recommend(build, tmp_path, file)
        task.run(tmp_path / str(number))
        assert task.recommender.fitted.name == last.name
        found.add((tmp_path / str(number) / "recommendation.json").read_text())
    assert len(found) == 2


def test_model_fitted_in_each_call_gives_equal_recommendations(build, trained, file, tmp_path, capsys):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        recommend(build, trained, file, *FITTED, recommender="sparloom").run(tmp_path / name)
    one, two = (json.loads((tmp_path / name / "recommendation.json").read_text()) for name in ("one", "two"))
    assert one == two
    assert one["recommender"] == "sparloom, 16 labels of 4 matrices, seed 0"
    assert len({entry["config"] for entry in one["configurations"]}) == 5
    assert "lead of the first" in capsys.readouterr().out


def test_the_default_is_the_fitted_model_where_there_are_walks(build, trained, file, tmp_path):
    task = build("recommend", *SMALL, f"matrix='{file}'", *FITTED, folder=trained)
    task.run(tmp_path)
    written = json.loads((tmp_path / "recommendation.json").read_text())
    assert written["recommender"] == "sparloom, 16 labels of 4 matrices, seed 0"
    other = SimpleNamespace(space=lambda op: SimpleNamespace(walks=None))
    assert replace(task.recommender, platform=other).loads


def test_what_a_choice_may_lose_is_told(build, trained, file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(calibration, "LEAST_MATRICES", 2)
    task = build("recommend", *SMALL, f"matrix='{file}'", *FITTED, "verify=none", folder=trained)
    metrics = task.run(tmp_path)
    found = task.recommender.calibration
    assert len(found.matrices) >= 2
    assert not set(found.matrices) & task.recommender.fitted.matrices
    assert not set(found.matrices) & {name for name, role in task.recommender.samples.split().items()
                                      if role == "test"}
    assert metrics["expected_loss"] >= 0
    assert metrics["loss_bound"] >= 0
    written = json.loads((tmp_path / "recommendation.json").read_text())
    assert written["loss_bound"] == metrics["loss_bound"]
    shown = " ".join(capsys.readouterr().out.split())
    assert f"in about 90% of all cases at most {metrics['loss_bound']:.1%}" in shown
    assert "regret" not in shown


@pytest.mark.parametrize(("shape", "text"), [
    ([512, 64.5, 512], r"n is 64.5, give an integer from 1 to 2147483647"), ([True, 64, 512], "m is True, give"),
    ([0, 2, 3], "m is 0"), ([1, -2, 3], "n is -2"), ([1, 2, 2**31], "k is 2147483648"), ([1, 2, 10**30], "k is 1000"),
    (["512", 2, 3], "m is '512'"), ([None, 2, 3], "m is None"), ([1, float("nan"), 2], "n is nan"),
    ([1, [2], 3], "n is"),
    ([1, 2], r"is not \[m,n,k\]"), ([1, 2, 3, 4], "is not"), (5, "shape=5 is not"), (True, "is not"), ("abc", "is not"),
    ({"a": 1, "b": 2, "c": 3}, "is not")])
def test_extents_are_integers_in_range(shape, text):
    with pytest.raises(ValueError, match=text):
        read_shape(shape)


@pytest.mark.parametrize(("processor", "cache_sizes", "told"), [
    ("here", None, False), ("a chip", None, True), (None, "same", False), (None, "other", True)])
def test_a_model_that_was_measured_on_another_processor_says_so(caplog, monkeypatch, processor, cache_sizes, told):
    here = describe_machine()
    measured = here["processor"] if processor == "here" else processor
    table = SimpleNamespace(provenance=[{"machine": {"processor": measured}}] if measured else [])
    constants = machine_constants(here if cache_sizes != "other" else {"cache_l2": "3K"}, threads=1)
    asked = RecommendShape(
        op=GEMM(), platform=SimpleNamespace(name="cpu_kernels", preset="t1", kind="wall", threads=1),
        samples=SimpleNamespace(table=lambda *names: table), models=None, evolution=None, verify="none", timing=None,
        threads=1)
    monkeypatch.setattr(logging.getLogger("sparloom"), "propagate", True)
    asked._warn_of_another_processor(Origin("cpu_kernels", "t1", "", constants))
    assert bool(caplog.messages) == told
    if told:
        assert f"this is {here['processor']}" in caplog.text
        assert (measured or "another processor") in caplog.text
