"""Samples as CSV: `samples=csv` reads the written files."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from sparloom.data import SampleTable, TinySamples, read_csv
from sparloom.data.csv_file import CsvRules
from sparloom.experiments.cognate.evaluation_data import EvaluationData

TINY = TinySamples(matrices=6, configs=256, seed=0)


@dataclass(frozen=True)
class Read(TinySamples):
    """Tiny samples with a table that was read from a file."""

    read: SampleTable = None

    def table(self, platform, preset, op):
        return self.read


SMALL = ("samples=tiny", "samples.matrices=6", "samples.configs=256")


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_exported_samples_read_back(build, tmp_path, op):
    metrics = build("export_csv", *SMALL, f"op={op}", folder=tmp_path).run(tmp_path)
    assert metrics == {"matrices": 6, "rows": 6 * 256, "failures": 0}
    path = tmp_path / f"spade_cognate32_{op}.csv"
    back = read_csv(path, op, CsvRules(cols=lambda name: 10**9, name=str, splits={}))
    ours, theirs = (table.labels().set_index(["matrix", "config"])["seconds"].sort_index()
                    for table in (TINY.table("spade", "cognate32", op), back))
    assert ours.index.equals(theirs.index)
    assert np.allclose(ours, theirs, rtol=1e-6)


def replaced(table):
    return Read(matrices=TINY.matrices, configs=TINY.configs, seed=TINY.seed, read=table)


def exported(build, folder):
    """Export tiny samples; return the file and its rules, with the true columns of the matrices."""
    build("export_csv", *SMALL, folder=folder).run(folder)
    columns = TINY.statistics()["cols"].astype(int).to_dict()
    return folder / "spade_cognate32_spmm.csv", CsvRules(cols=columns.get, name=str, splits={})


def test_panels_wider_than_the_matrix_are_read_back(build, tmp_path):
    path, rules = exported(build, tmp_path)
    assert set(TINY.statistics()["cols"] < 1024) == {True}
    back = read_csv(path, "spmm", rules).labels()
    ours = TINY.table("spade", "cognate32", "spmm").labels()
    assert back.groupby("matrix").size().to_dict() == ours.groupby("matrix").size().to_dict()
    keys = ["matrix", "config"]
    assert np.allclose(*(part.set_index(keys)["seconds"].sort_index() for part in (ours, back)), rtol=1e-6)


@pytest.mark.parametrize("lost", ["sidecar", "wide panels"])
def test_matrices_are_complete_without_their_wide_panels(build, tmp_path, lost):
    path, rules = exported(build, tmp_path)
    path.with_suffix(".json").unlink()
    if lost == "wide panels":  # each program once
        lines = path.read_text().splitlines()
        path.write_text("\n".join([lines[0], *(line for line in lines[1:] if ",NUM_COLS," in line)]) + "\n")
    table = read_csv(path, "spmm", rules)
    assert len(table) == 6 * 64
    study = build("finetune_tiny", *SMALL, folder=tmp_path)
    role = EvaluationData(study.target, study.op, replaced(table), "train")
    whole = EvaluationData(study.target, study.op, TINY, "train")
    assert role.truth.matrices == whole.truth.matrices
    assert np.allclose(role.truth.seconds, whole.truth.seconds, rtol=1e-6)


def test_the_sidecar_describes_the_origin(build, tmp_path):
    build("export_csv", *SMALL, "task.unit=us", "platform@target=spade_205", folder=tmp_path).run(tmp_path)
    described = json.loads((tmp_path / "spade_cognate32_205_spmm.json").read_text())
    assert described["unit"] == "us"
    assert (described["preset"], described["pes"], described["width"]) == ("cognate32_205", 32, 256)
    assert described["started"] == "2000-01-01T00:00:00Z"
    assert described["default"].startswith("row_panel=256,column_panel=all,split=256")
