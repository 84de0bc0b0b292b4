"""One GEMM model of two processors: what it learns from either, and what it refuses."""

import pandas as pd
import pytest
from gemm_table import MEMORY, drawn_shapes, write_gemm_table

from sparloom.errors import SchemaError

SETTINGS = ("task.folds=3", "task.counts=[0,6]", "growth.trees=30", "growth.leaves=15", "growth.threads=1",
            "growth.learning_rate=0.3")
KNOWN, NEW = {"cache_l2": "512K"}, {"cache_l2": "2048K"}


def write_tables(folder, *, machine=NEW, step=16):
    """Write 32 shapes of a known processor, and every second of them on one whose memory is 1,000 times as slow."""
    shapes = drawn_shapes(32)
    write_gemm_table(folder / "data", shapes, step=16, machine=KNOWN)
    write_gemm_table(folder / "data" / "xeon", shapes[::2], step=step, machine=machine, memory=MEMORY / 1000)


@pytest.fixture(scope="module")
def found(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("processors")
    write_tables(folder)
    out = folder / "out"
    out.mkdir()
    return dict(build("fit_processors", *SETTINGS, folder=folder).run(out)), pd.read_parquet(out / "per_problem.parquet")


def test_only_problems_of_the_new_processor_are_judged(found):
    metrics, rows = found
    assert metrics["problems"] == 15  # one of the degenerate shapes is among them
    assert metrics["known_problems"] == 30
    assert set(rows["method"]) == {"both_0", "static_0", "both_6", "own_6", "static_6", "noise_ceiling", "vendor"}
    assert (rows.groupby("method").size() == 15).all()


def test_samples_of_the_new_processor_help(found):
    metrics, rows = found
    assert metrics["both_6/mean"] > metrics["both_0/mean"]
    assert metrics["both_6/mean"] <= metrics["noise_ceiling/mean"] <= 1
    lead = metrics["both_6/mean"] - metrics["own_6/mean"]
    assert metrics["both_6/lead_over_own_6"] == pytest.approx(lead)
    assert metrics["both_6/lead_over_own_6_low"] <= lead <= metrics["both_6/lead_over_own_6_high"]
    own = rows[rows["method"] == "own_6"]
    assert own["efficiency"].mean() == pytest.approx(metrics["own_6/mean"])


def test_equal_processors_and_different_configurations_are_refused(build, tmp_path):
    write_tables(tmp_path, machine=KNOWN)
    with pytest.raises(SchemaError, match="collect one table on another processor"):
        build("fit_processors", *SETTINGS, folder=tmp_path).run(tmp_path)
    write_tables(tmp_path, step=32)
    with pytest.raises(SchemaError, match="on one of the processors only"):
        build("fit_processors", *SETTINGS, folder=tmp_path).run(tmp_path)
