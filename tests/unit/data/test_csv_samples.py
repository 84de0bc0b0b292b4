"""The CSV of COGNATE appendix E: every rule of the importer, and the exporter."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sparloom.data import CsvRules, CsvSamples, Sample, SampleTable, TinySamples, read_csv, write_csv
from sparloom.errors import SchemaError
from sparloom.space import SpadeSpace
from sparloom.sparse import Pattern, SparseMatrix, write_matrix

HEADER = "name,row_panels,column_panels,split,barrier,bypass,reorder,time"
PAPER = "144,4,1024,1,0,0,0,38.83592"
RULES = CsvRules(cols={"144": 20_000}.get, name="csv/{}".format, splits={1: 32, 0: 256})
Make = Callable[..., Sample]


@pytest.fixture
def table_of(tmp_path: Path) -> Callable[..., SampleTable]:
    """Read these lines as a file with an optional sidecar."""

    def read(*lines: str, header: str = HEADER, sidecar: dict | None = None, rules: CsvRules = RULES) -> SampleTable:
        (tmp_path / "mine.csv").write_text("\n".join([header, *lines]) + "\n")
        if sidecar is not None:
            (tmp_path / "mine.json").write_text(json.dumps(sidecar))
        return read_csv(tmp_path / "mine.csv", "spmm", rules)

    return read


def test_row_of_the_paper(table_of: Callable[..., SampleTable]) -> None:
    labels = table_of(PAPER).labels()
    assert labels["matrix"].tolist() == ["csv/144"]
    assert labels["config"].tolist() == ["row_panel=4,column_panel=1024,split=32,barrier=0,bypass=0,reorder=0"]
    assert labels["seconds"].tolist() == pytest.approx([38.83592e-3])


@pytest.mark.parametrize("columns", ["NUM_COLS", "20000", "65536"])
def test_panels_of_all_columns_are_one_value(table_of: Callable[..., SampleTable], columns: str) -> None:
    key = table_of(f"144,256,{columns},256,0,0,0,1.0").labels()["config"].item()
    assert key == SpadeSpace("spmm").default().key


def test_sidecar_gives_unit_width_and_origin(table_of: Callable[..., SampleTable]) -> None:
    sidecar = {"unit": "us", "width": 128, "source": "our simulator", "version": "7", "preset": "wide", "pes": 64}
    table = table_of(PAPER, sidecar=sidecar)
    frame = table.frame()
    assert frame["seconds"].item()[0] == pytest.approx(38.83592e-6)
    assert (frame["width"].item(), frame["machine"].item(), frame["preset"].item()) == (128, "our simulator", "wide")
    assert table.provenance[0]["pes"] == 64


@pytest.mark.parametrize("time", ["", "NaN", "timeout", "inf"])
def test_missing_time_is_a_failed_sample(table_of: Callable[..., SampleTable], time: str) -> None:
    table = table_of(f"144,4,1024,1,0,0,0,{time}", PAPER.replace("1024", "16384"))
    table.validate()
    assert len(table.labels()) == 1
    assert table.failures()["failure"].tolist() == ["no time in mine.csv"]


def test_duplicates_that_agree_count_once(table_of: Callable[..., SampleTable]) -> None:
    table = table_of("144,4,65536,1,0,0,0,100.0", "144,4,NUM_COLS,32,0,0,0,100.9")
    assert table.labels()["seconds"].tolist() == pytest.approx([0.1])


@pytest.mark.parametrize("time", ["102.0", "98.0", "NaN"])
def test_duplicates_that_disagree_are_refused(table_of: Callable[..., SampleTable], time: str) -> None:
    with pytest.raises(SchemaError, match=r"lines 2 and 3: two times for row_panel=4,.*: 100 and"):
        table_of("144,4,1024,1,0,0,0,100.0", f"144,4,1024,1,0,0,0,{time}")


def test_unknown_values_are_accepted_and_flagged(
    table_of: Callable[..., SampleTable], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="sparloom.data"):
        table = table_of("144,64,1024,1,0,0,0,1.0", "144,4,1024,128,0,0,0,1.0")
    assert len(table) == 2
    assert table.provenance[0]["unknown"] == {"row_panel": [64], "split": [128]}
    assert "row_panel 64; split 128" in caplog.text


@pytest.mark.parametrize(("line", "reason"), [
    ("145,4,1024,1,0,0,0,1.0", "line 2: matrix '145' is not in the manifest; add its file there"),
    ("144,four,1024,1,0,0,0,1.0", "line 2: row_panels 'four' is not a whole number"),
    ("144,0,1024,1,0,0,0,1.0", "line 2: row_panels 0 is below 1"),
    ("144,4,ALL,1,0,0,0,1.0", "line 2: column_panels 'ALL' is not a whole number"),
    ("144,4,1024,1,2,0,0,1.0", "line 2: barrier is '2', not 0 or 1"),
    ("144,4,1024,1,0,yes,0,1.0", "line 2: bypass is 'yes', not 0 or 1"),
    ("144,4,1024,1,0,0,0,0", "line 2: time 0 must be above 0; leave it empty when it is missing"),
    ("144,4,1024,1,0,0,0,-1", "line 2: time -1 must be above 0"),
    ("144,4,1024,1,0,0,0,fast", "line 2: time 'fast' is not a number"),
    ("144,4,1024,1,0,0,0", "line 2: 7 fields instead of 8"),
])
def test_bad_rows_are_refused_with_their_line(table_of: Callable[..., SampleTable], line: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        table_of(line)


def test_split_codes_need_the_manifest(table_of: Callable[..., SampleTable]) -> None:
    rules = CsvRules(cols=RULES.cols, name=RULES.name, splits={})
    with pytest.raises(SchemaError, match="split 1 is a code; the manifest must say how many columns it stands for"):
        table_of(PAPER, rules=rules)
    assert len(table_of(PAPER.replace(",1,", ",32,"), rules=rules)) == 1


def test_other_header_is_refused(table_of: Callable[..., SampleTable]) -> None:
    with pytest.raises(SchemaError, match="the header is name,time, not name,row_panels,"):
        table_of(header="name,time")


def test_unknown_unit_is_refused(table_of: Callable[..., SampleTable]) -> None:
    with pytest.raises(SchemaError, match="unit 'cycles' is not one of s, ms, us, ns, arbitrary"):
        table_of(PAPER, sidecar={"unit": "cycles"})


def spade_rows(make: Make) -> list[Sample]:
    rng = np.random.default_rng(0)
    same = {"platform": "spade", "kind": "simulated", "cpu_seconds": (), "matrix": "csv/144", "preset": "p"}
    configs = [config.key for config in SpadeSpace("spmm") if config["column_panel"] != 65536]
    timed = [make(**same, config=key, seconds=(float(rng.lognormal(-7)),)) for key in configs[:-1]]
    return [*timed, make(**same, config=configs[-1], seconds=(), failure="killed")]


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_written_files_read_back(tmp_path: Path, sample: Make, unit: str) -> None:
    table = SampleTable.of(spade_rows(sample))
    write_csv(tmp_path / "ours.csv", table, unit=unit, sidecar={"source": "sparloom", "version": "1", "pes": 32})
    rules = CsvRules(cols={"csv/144": 20_000}.get, name=str, splits={})
    back = read_csv(tmp_path / "ours.csv", "spmm", rules)
    ours, theirs = (part.labels().set_index("config")["seconds"].sort_index() for part in (table, back))
    assert ours.index.equals(theirs.index)
    assert np.allclose(ours, theirs, rtol=1e-6)
    assert len(back.failures()) == 1
    assert json.loads((tmp_path / "ours.json").read_text())["default"] == SpadeSpace("spmm").default().key


def test_only_one_operation_and_preset_fit_a_file(tmp_path: Path, sample: Make) -> None:
    rows = [*spade_rows(sample), sample(platform="spade", kind="simulated", preset="q")]
    with pytest.raises(SchemaError, match="a CSV holds one preset, not 2: filter the table first"):
        write_csv(tmp_path / "ours.csv", SampleTable.of(rows), unit="ms", sidecar={})
    with pytest.raises(SchemaError, match="the CSV has columns of SPADE only, not of cpu"):
        write_csv(tmp_path / "ours.csv", SampleTable.of([sample()]), unit="ms", sidecar={})


@pytest.fixture
def source(tmp_path: Path) -> CsvSamples:
    """A file, a manifest and a matrix, over tiny samples."""
    rng = np.random.default_rng(0)
    pattern = Pattern.from_coo(rng.integers(0, 500, 3000), rng.integers(0, 20_000, 3000), (500, 20_000))
    write_matrix(tmp_path / "144.mtx", SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)))
    manifest = {"matrices": {"144": {"path": "144.mtx"}}, "split": {"1": 32, "0": 256}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "mine.csv").write_text(f"{HEADER}\n{PAPER}\n")
    return CsvSamples(
        files={"spmm": str(tmp_path / "mine.csv"), "sddmm": None}, manifest=str(tmp_path / "manifest.json"),
        cost=lambda coords: 0.0, base=TinySamples(matrices=4, configs=5, seed=0))


def test_source_joins_the_files_with_its_base(source: CsvSamples) -> None:
    assert source.table("spade", "ignored", "spmm").matrices == ("csv/144",)
    assert len(source.table("cpu", "", "spmm").matrices) == 4
    assert source.split()["csv/144"] == "test"
    assert source.families()["csv/144"] == "csv/144"
    assert len(source.split()) == len(source.statistics()) == len(source.inputs()) == 5
    assert source.statistics().loc["csv/144", "cols"] == 20_000
    assert source.inputs()["csv/144"].shape == (500, 20_000)


def test_source_without_a_file_names_the_option(source: CsvSamples, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no CSV file for sddmm: give samples\.files\.sddmm=<path>"):
        source.table("spade", "", "sddmm")
    (tmp_path / "mine.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"mine\.csv does not exist: give samples.files"):
        source.table("spade", "", "spmm")


def test_manifest_without_matrices_is_refused(source: CsvSamples, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(SchemaError, match='a manifest needs the entry "matrices"'):
        source.split()
