"""Samples as CSV: `samples=csv` reads the written files."""

import json

import numpy as np
import pytest

from sparloom.data import TinySamples, read_csv
from sparloom.data.csv_file import CsvRules
from sparloom.errors import SchemaError

TINY = TinySamples(matrices=6, configs=256, seed=0)
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


def test_the_sidecar_describes_the_origin(build, tmp_path):
    build("export_csv", *SMALL, "task.unit=us", "platform@target=spade_205", folder=tmp_path).run(tmp_path)
    described = json.loads((tmp_path / "spade_cognate32_205_spmm.json").read_text())
    assert described["unit"] == "us"
    assert (described["preset"], described["pes"], described["width"]) == ("cognate32_205", 32, 256)
    assert described["started"] == "2000-01-01T00:00:00Z"
    assert described["default"].startswith("row_panel=256,column_panel=all,split=256")


def test_other_platforms_do_not_fit_the_columns(build, tmp_path):
    with pytest.raises(SchemaError, match="the CSV has columns of SPADE only, not of cpu"):
        build("export_csv", *SMALL, "platform@target=cpu", folder=tmp_path).run(tmp_path)


def test_an_unknown_unit_is_refused(build, tmp_path):
    with pytest.raises(SchemaError, match="unit 'hours' is not one of s, ms, us, ns, arbitrary"):
        build("export_csv", *SMALL, "task.unit=hours", folder=tmp_path).run(tmp_path)
