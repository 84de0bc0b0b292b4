"""One GEMM model of two processors: what it learns from either, and what it refuses."""

import pandas as pd
import pytest
from gemm_table import MEMORY, drawn_shapes, write_gemm_table

from sparloom.errors import SchemaError
from sparloom.experiments.trees import gemm_subject
from sparloom.experiments.trees.fit_processors import TwoProcessors

SETTINGS = ("task.folds=3", "task.counts=[0,6]", "growth.trees=30", "growth.leaves=15", "growth.threads=1",
            "growth.learning_rate=0.3")
KNOWN, NEW = {"cache_l2": "512K"}, {"cache_l2": "2048K"}


def write_tables(folder, *, machine=NEW, step=16, memory=MEMORY / 20):
    """Write 32 shapes of a known processor, and every second of them on a new one, whose memory is slower."""
    shapes = drawn_shapes(32)
    write_gemm_table(folder / "data", shapes, step=16, machine=KNOWN)
    write_gemm_table(folder / "data" / "xeon", shapes[::2], step=step, machine=machine, memory=memory)


def judged(build, folder, **table):
    """Return the metrics and the choices of a run."""
    write_tables(folder, **table)
    out = folder / "out"
    out.mkdir()
    metrics = build("fit_processors", *SETTINGS, folder=folder).run(out)
    return dict(metrics), pd.read_parquet(out / "per_problem.parquet")


@pytest.fixture(scope="module")
def found(build, tmp_path_factory):
    return judged(build, tmp_path_factory.mktemp("processors"))


def test_only_problems_of_the_new_processor_are_judged(found):
    metrics, rows = found
    assert metrics["problems"] == 15  # one of the degenerate shapes is among them
    assert metrics["known_problems"] == 30
    assert set(rows["method"]) == {"both_0", "static_0", "both_6", "own_6", "static_6", "noise_ceiling", "vendor"}
    assert (rows.groupby("method").size() == 15).all()


def test_metrics_summarise_the_choices(found):
    metrics, rows = found
    mean = rows.groupby("method")["efficiency"].mean()
    for method in ("both_0", "both_6", "own_6", "static_0", "vendor"):
        assert metrics[f"{method}/mean"] == pytest.approx(mean[method])
    lead = mean["both_6"] - mean["own_6"]
    assert metrics["both_6/lead_over_own_6"] == pytest.approx(lead)
    assert metrics["both_6/lead_over_own_6_low"] <= lead <= metrics["both_6/lead_over_own_6_high"]
    assert mean["both_0"] > 0.8  # the processors prefer similar kernels


def test_models_without_new_problems_do_not_see_their_seconds(build, tmp_path, found):
    def choices(rows, method):
        return rows[rows["method"] == method].set_index(["matrix", "width"])["config"]

    _, rows = found
    _, others = judged(build, tmp_path, memory=MEMORY / 5000)
    for method in ("both_0", "static_0"):
        assert (choices(rows, method) == choices(others, method)).all()
    for method in ("both_6", "own_6", "noise_ceiling"):
        assert (choices(rows, method) != choices(others, method)).any()


def test_folds_are_of_shapes_and_new_problems_are_drawn_from_the_new_processor(build, tmp_path):
    write_tables(tmp_path)
    task = build("fit_processors", *SETTINGS, folder=tmp_path)
    new, known = (gemm_subject(samples, task.gemm_platform, task.gemm, judging=1)
                  for samples in (task.new, task.samples))
    both = TwoProcessors(new, known, folds=3, seed=0)
    folds = {}
    for group, fold in zip(both.joined.groups, both.fold.ravel(), strict=True):
        assert folds.setdefault(group, fold) == fold
    drawn = both.draw(6)
    assert drawn.sum() == 9  # a third of them is held out
    assert not (drawn & ~both.is_new).any()
    assert both.is_new.sum() == len(new)
    grid = both.grid(task.target)
    caches = grid.features[:, 0, grid.names.index("l2_bytes")]
    assert set(caches[both.is_new.ravel()]) == {2048 * 1024}
    assert set(caches[~both.is_new.ravel()]) == {512 * 1024}


def test_equal_processors_and_different_configurations_are_refused(build, tmp_path):
    write_tables(tmp_path, machine=KNOWN)
    with pytest.raises(SchemaError, match="collect one table on another processor"):
        build("fit_processors", *SETTINGS, folder=tmp_path).run(tmp_path)
    write_tables(tmp_path, step=32)
    with pytest.raises(SchemaError, match="on one of the processors only"):
        build("fit_processors", *SETTINGS, folder=tmp_path).run(tmp_path)
