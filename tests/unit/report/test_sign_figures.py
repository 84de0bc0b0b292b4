"""Sign tables: drawn for each table, refused for one that the run lacks."""

import pandas as pd
import pytest

from sparloom.report import draw_signs

FRAME = pd.DataFrame({
    "table": ["barrier", "barrier", "tiles"], "matrix": ["ASI", "ORK", "KRO"], "op": ["spmm", "sddmm", "spmm"],
    "width": [32, 128, 32], "setting": ["", "", "64 x all"], "paper": [22.8, -53.7, 0.93], "ours": [-7.0, -60.0, 0.9],
    "verdict": ["opposite", "agree", "tie"],
})


@pytest.mark.parametrize(("table", "shown"), [("barrier", [b"opposite", b"same"]), ("tiles", [b"one within"])])
def test_each_table_is_drawn_equally_twice(table, shown, tmp_path):
    for name in ("one", "two"):
        draw_signs(FRAME, tmp_path / name, table=table, title="a title")
    for ending in (".png", ".svg"):
        assert (tmp_path / f"one{ending}").read_bytes() == (tmp_path / f"two{ending}").read_bytes()
    drawing = (tmp_path / "one.svg").read_bytes()
    assert all(f"<!-- {text.decode()}".encode() in drawing for text in shown)


def test_missing_table_is_named(tmp_path):
    with pytest.raises(ValueError, match="no row of table 'gain': the run has barrier, tiles"):
        draw_signs(FRAME, tmp_path / "none", table="gain", title="a title")
