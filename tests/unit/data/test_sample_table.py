"""The sample table: files, merging, labels, errors."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparloom.data import Sample, SampleTable
from sparloom.errors import SchemaError
from sparloom.measure import Measurement
from sparloom.space import SpadeSpace

Make = Callable[..., Sample]


def test_file_keeps_rows_and_provenance(tmp_path: Path, sample: Make) -> None:
    rows = [sample(), sample(config="knob=2", seconds=(), cpu_seconds=(), failure="too much fill"), sample(round=1)]
    SampleTable.of(rows, [{"protocol": "precise", "seed": 3}]).write(tmp_path / "t.parquet")
    back = SampleTable.read(tmp_path / "t.parquet")
    assert back.provenance == ({"protocol": "precise", "seed": 3},)
    frame = back.frame().sort_values(["round", "config"])
    assert frame["config"].tolist() == ["knob=1", "knob=2", "knob=1"]
    pair = pytest.approx([2e-3, 1e-3])
    assert [list(values) for values in frame["seconds"]] == [pair, [], pair]
    assert frame["failure"].isna().tolist() == [True, False, True]
    assert frame["started"].iloc[0] == pd.Timestamp("2025-01-02T03:04:05Z")


def test_shards_merge_and_repeated_rows_count_once(tmp_path: Path, sample: Make) -> None:
    SampleTable.of([sample(), sample(matrix="g/b")], [{"shard": 0}]).write(tmp_path / "0.parquet")
    SampleTable.of([sample(matrix="g/c"), sample()], [{"shard": 1}]).write(tmp_path / "1.parquet")
    both = SampleTable.read([tmp_path / "0.parquet", tmp_path / "1.parquet"])
    assert len(both) == 3
    assert both.matrices == ("g/a", "g/b", "g/c")
    assert both.provenance == ({"shard": 0}, {"shard": 1})


def test_contradicting_shards_are_refused(sample: Make) -> None:
    tables = [SampleTable.of([sample()]), SampleTable.of([sample(seconds=(5.0,), cpu_seconds=())])]
    with pytest.raises(SchemaError, match=r"two different results for one sample \(op spmm, .*matrix g/a"):
        SampleTable.concat(tables)


def test_filter_keeps_what_matches_everything(sample: Make) -> None:
    table = SampleTable.of([
        sample(), sample(op="sddmm"), sample(platform="spade"), sample(preset="fast"), sample(matrix="g/b")])
    assert len(table.filter(op="spmm")) == 4
    assert len(table.filter(op="spmm", platform="cpu", preset="")) == 2
    assert len(table.filter(op="spmm", platform="cpu", preset="", matrices={"g/b"})) == 1
    assert len(table.filter(op="absent")) == 0
    assert table.presets() == ("", "fast")


def test_recollected_problems_replace_all_their_rows(sample: Make) -> None:
    old = [sample(), sample(config="knob=2"), sample(width=32), sample(preset="other"), sample(matrix="g/b")]
    fresh = SampleTable.of([sample(seconds=(9.0,), cpu_seconds=()), sample(matrix="g/c")], [{"run": 2}])
    table = SampleTable.of(old, [{"run": 1}]).updated(fresh)
    rows = table.frame()
    assert sorted(zip(rows["matrix"], rows["width"], rows["preset"], rows["config"], strict=True)) == [
        ("g/a", 32, "", "knob=1"), ("g/a", 256, "", "knob=1"), ("g/a", 256, "other", "knob=1"),
        ("g/b", 256, "", "knob=1"), ("g/c", 256, "", "knob=1")]
    assert sorted(seconds[0] for seconds in rows["seconds"]) == [pytest.approx(2e-3)] * 4 + [9.0]
    assert table.provenance == ({"run": 1}, {"run": 2})


def test_label_is_the_median_over_rounds_of_the_least_repetition(sample: Make) -> None:
    rounds = [(9.0, 1.0), (1.2, 8.0), (7.0, 3.0)]
    rows = [sample(round=turn, seconds=seconds) for turn, seconds in enumerate(rounds)]
    labels = SampleTable.of(rows).labels()
    assert labels["seconds"].tolist() == pytest.approx([1.2])
    assert labels["spread"].tolist() == pytest.approx([2.0 / 1.2])


def test_label_drops_failed_rows_but_not_the_configuration(sample: Make) -> None:
    table = SampleTable.of([
        sample(), sample(round=1, seconds=(), cpu_seconds=(), failure="killed"),
        sample(config="knob=2", seconds=(), cpu_seconds=(), failure="too much fill")])
    assert table.labels()["config"].tolist() == ["knob=1"]
    assert table.failures()["failure"].tolist() == ["killed", "too much fill"]


def test_spread_is_at_least_the_tie_of_its_clock(sample: Make) -> None:
    assert SampleTable.of([sample()]).labels()["spread"].tolist() == [0.05]
    simulated = SampleTable.of([sample(kind="simulated")])
    assert simulated.labels()["spread"].tolist() == [0.01]


@pytest.mark.parametrize("change", [
    {"op": "sddmm"}, {"platform": "spade"}, {"preset": "fast"}, {"width": 128}, {"kind": "simulated"}])
def test_labels_of_mixed_rows_are_refused(sample: Make, change: dict) -> None:
    name = next(iter(change))
    with pytest.raises(SchemaError, match=f"times of different {name} are not comparable .*: filter the table"):
        SampleTable.of([sample(), sample(**change)]).labels()


def test_measurement_becomes_a_row() -> None:
    config = SpadeSpace("spmm").default()
    made = Sample.of(
        Measurement(seconds=(0.5,), kind="simulated"), config, round=2, op="spmm", platform="spade", preset="p",
        matrix="g/a", width=256, machine="simulator", commit="abc")
    assert (made.config, made.round, made.seconds, made.failure) == (config.key, 2, (0.5,), None)
    assert made.started.endswith("Z")


@pytest.mark.parametrize(("change", "reason"), [
    ({"seconds": (), "cpu_seconds": ()}, "needs seconds or a failure, not both or neither"),
    ({"failure": "why"}, "needs seconds or a failure, not both or neither"),
    ({"seconds": (1.0, 0.0)}, "seconds must be finite and above 0"),
    ({"seconds": (float("inf"),)}, "needs seconds or a failure|seconds must be finite"),
    ({"kind": "guess"}, "unknown kind guess; kinds are wall, device, simulated"),
    ({"commit": None}, "column commit is empty in 1 of 2 rows"),
])
def test_validate_names_the_fault(sample: Make, change: dict, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        SampleTable.of([sample(config="knob=0"), sample(**change)]).validate()


def test_other_columns_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"op": ["spmm"], "time": [1.0]}), tmp_path / "t.parquet")
    with pytest.raises(SchemaError, match="is not a sample table: its metadata is missing"):
        SampleTable.read(tmp_path / "t.parquet")
    with pytest.raises(SchemaError, match=r"missing columns \['platform'.*unknown columns \['time'\]"):
        SampleTable(pa.table({"op": ["spmm"], "time": [1.0]}))
