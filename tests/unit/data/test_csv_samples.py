"""The CSV of COGNATE appendix E: every rule of the importer, and the exporter."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sparloom.data import (
    CsvRules,
    CsvSamples,
    Sample,
    SampleTable,
    TinySamples,
    read_csv,
    read_described,
    write_csv,
)
from sparloom.data.csv_samples import find_matrices
from sparloom.errors import SchemaError
from sparloom.space import SpadeSpace, read_description
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
    ("144,four,1024,1,0,0,0,1.0", "line 2: row_panels 'four' is not a whole number from 1"),
    ("144,4,1024,1,2,0,0,1.0", "line 2: barrier '2' is not a whole number from 0 to 1"),
    ("144,4,1024,1,0,0,0,0", "line 2: time 0 must be above 0; leave it empty when it is missing"),
    ("144,4,1024,1,0,0,0,1_000", "line 2: time '1_000' is not a number"),
    ("144,4,1024,1,0,0,0,٣", "line 2: time '٣' is not a number"),
    ("144,4,１０,1,0,0,0,1.0", "line 2: column_panels '１０' is not a whole number"),
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


@pytest.mark.parametrize(("text", "reason"), [
    ('{"matrices": {},}', r"manifest\.json is not a JSON object in UTF-8 \(.*line 1 column"),
    ("[]", r"manifest\.json is not a JSON object in UTF-8 \(it holds a list"),
    ('{"matrices": {"a": "a.mtx"}}', r"matrix 'a' needs the path of its file"),
])
def test_a_damaged_manifest_is_named(source: CsvSamples, tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(SchemaError, match=reason):
        source.split()


CHIP = """
name: chip
parameters:
  rows: {kind: integer, values: [8, 64], default: 64, tiles: i}
  codec: {kind: categorical, values: [none, delta], default: none, own: true}
  banks: {kind: permutation, of: [x, y], default: x.y, own: true}
  fast: {kind: boolean, default: no, own: true}
illegal:
  - {rows: 8, codec: delta}
"""
NAMES = {"m": "csv/m"}
ROW = "m,64,none,x.y,0,2.5"


@pytest.fixture
def chip_table(tmp_path: Path) -> Callable[..., SampleTable]:
    """Read these lines as samples of the chip."""

    def read(*lines: str, header: str = "matrix,rows,codec,banks,fast,ms", times: str = "measured") -> SampleTable:
        (tmp_path / "chip.yaml").write_text(f"{CHIP}times: {times}\n")
        (tmp_path / "chip.csv").write_text("\n".join([header, *lines]) + "\n")
        chip = read_description(tmp_path / "chip.yaml")
        return read_described(tmp_path / "chip.csv", "spmm", chip, preset="csv", names=NAMES)

    return read


def test_rows_of_a_described_accelerator(chip_table: Callable[..., SampleTable]) -> None:
    table = chip_table("2.5,yx,m,delta,64,yes", header="ms,banks,matrix,codec,rows,fast")
    frame = table.frame()
    assert (frame["platform"].item(), frame["preset"].item(), frame["kind"].item()) == ("chip", "csv", "wall")
    assert frame["config"].item() == "rows=64,codec=delta,banks=y.x,fast=1"
    assert table.labels()["seconds"].tolist() == pytest.approx([2.5e-3])
    table.validate()


@pytest.mark.parametrize(("unit", "seconds"), [("seconds", 2.5), ("us", 2.5e-6), ("ns", 2.5e-9), ("cycles", 2.5)])
def test_the_column_of_times_is_named_by_its_unit(
    chip_table: Callable[..., SampleTable], unit: str, seconds: float
) -> None:
    header = f"matrix,rows,codec,banks,fast,{unit}"
    assert chip_table(ROW, header=header).labels()["seconds"].tolist() == pytest.approx([seconds])


def test_measured_rows_of_one_configuration_are_repetitions(chip_table: Callable[..., SampleTable]) -> None:
    lines = [ROW.replace("2.5", time) for time in ("1.0", "3.0", "2.0")]
    labels = chip_table(*lines).labels()
    assert labels["seconds"].tolist() == pytest.approx([2e-3])
    assert labels["spread"].item() == pytest.approx(1.0)
    with pytest.raises(SchemaError, match=r"lines 2 and 3: two times for rows=64,.*: 1 and 3"):
        chip_table(*lines, times="simulated")


@pytest.mark.parametrize(("line", "reason"), [
    ("n,64,none,x.y,0,2.5", "line 3: matrix 'n' is not in the manifest"),
    ("m,128,none,x.y,0,2.5", r"line 3: rows='128' is not in the space: its values are 8, 64: drop the row, or add"),
    ("m,64,none,x.y,2,2.5", "line 3: fast='2' is not in the space: its values are 0, 1"),
    ("m,,none,x.y,0,2.5", "line 3: rows='' is not in the space"),
    ("m,8,delta,x.y,0,2.5", "line 3: rows=8,codec=delta,.* is illegal: rows=8, codec=delta in .*chip.yaml: drop the"),
    ("m,64,none,x.y,0,2_5", "line 3: time '2_5' is not a number"),
    ("m,６４,none,x.y,0,2.5", "line 3: rows='６４' is not in the space"),
])
def test_rows_outside_the_space_are_refused_with_their_line(
    chip_table: Callable[..., SampleTable], line: str, reason: str
) -> None:
    with pytest.raises(SchemaError, match=reason):
        chip_table(ROW, line)


@pytest.mark.parametrize(("header", "reason"), [
    ("matrix,rows,codec,fast,ms", "column banks is missing; needed are matrix, rows, codec, banks, fast and seconds"),
    ("matrix,rows,codec,banks,fast,speed,ms", "column 'speed' is no parameter of the description"),
    ("matrix,rows,rows,codec,banks,fast,ms", "column rows is there twice"),
    ("matrix,rows,codec,banks,fast", "give one column of times, named by its unit: seconds, ms, us, ns, cycles"),
    ("", "the header is empty: column matrix is missing"),
])
def test_other_columns_are_refused(chip_table: Callable[..., SampleTable], header: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        chip_table(header=header)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_are_named(chip_table: Callable[..., SampleTable], separator: str) -> None:
    with pytest.raises(SchemaError, match=rf"fields are separated by {re.escape(repr(separator))}: save it"):
        chip_table(header="matrix,rows,codec,banks,fast,ms".replace(",", separator))


@pytest.fixture
def chip_source(tmp_path: Path) -> CsvSamples:
    """Twelve matrices of which two lack configurations, and one that the base has too."""
    base = TinySamples(matrices=4, configs=5, seed=0)
    (tmp_path / "chip.yaml").write_text(CHIP)
    folder = tmp_path / "matrices" / "group"
    folder.mkdir(parents=True)
    lines = ["matrix,rows,codec,banks,fast,seconds"]
    for number in range(12):
        rng = np.random.default_rng(number)
        pattern = base._patterns["tiny/hubs0"] if number == 11 else Pattern.from_coo(
            rng.integers(0, 50, 90), rng.integers(0, 60, 90), (50, 60))
        write_matrix(folder / f"m{number}.npz", SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)))
        configs = list(read_description(tmp_path / "chip.yaml").space("spmm"))[:7 if number in (3, 4) else None]
        lines += [f"m{number},{','.join(str(value) for _, value in config.values)},{number + 1}" for config in configs]
    (tmp_path / "chip.csv").write_text("\n".join(lines) + "\n")
    return CsvSamples(files={"spmm": str(tmp_path / "chip.csv"), "sddmm": None}, manifest=None, cost=lambda coords: 0.0,
                      base=base, space=str(tmp_path / "chip.yaml"), matrices=str(tmp_path / "matrices"))


def test_roles_are_drawn_where_there_is_no_manifest(chip_source: CsvSamples) -> None:
    roles, base = chip_source.split(), chip_source.base.split()
    own = {name: role for name, role in roles.items() if name.startswith("csv/")}
    assert len(own) == 12
    assert {name: role for name, role in roles.items() if name in base} == base
    assert own["csv/m3"] == own["csv/m4"] == "train"
    assert own["csv/m11"] == base["tiny/hubs0"]
    assert chip_source.families()["csv/m11"] == "tiny/hubs0"
    drawn = [role for name, role in own.items() if name not in ("csv/m3", "csv/m4", "csv/m11")]
    assert sorted(map(drawn.count, ("train", "validation", "test"))) == [1, 3, 5]
    assert len(chip_source.inputs()) == len(chip_source.statistics()) == len(chip_source.walks()) == 16
    assert len(chip_source.table("cpu", "", "spmm").matrices) == 4


def test_matrices_are_found_by_path_or_name(tmp_path: Path, chip_source: CsvSamples) -> None:
    folder = tmp_path / "matrices"
    found = find_matrices(folder, ["m1", "m2.npz", "group/m3", "group/m4.npz"])
    assert [path.name for path in found.values()] == ["m1.npz", "m2.npz", "m3.npz", "m4.npz"]
    with pytest.raises(SchemaError, match=r"no file of matrix 'm77' in .*matrices, which has .*: add it, or correct"):
        find_matrices(folder, ["m77"])
    (folder / "other").mkdir()
    (folder / "other" / "m1.npz").write_bytes((folder / "group" / "m1.npz").read_bytes())
    with pytest.raises(SchemaError, match=r"matrix 'm1' fits .*group/m1.npz and .*other/m1.npz: name it by its path"):
        find_matrices(folder, ["m1"])
    assert find_matrices(folder, ["other/m1"])["other/m1"].parent.name == "other"
    with pytest.raises(NotADirectoryError, match=r"no such folder of matrices: give paths\.mirror=<folder>"):
        find_matrices(tmp_path / "none", ["m1"])
