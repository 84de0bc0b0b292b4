"""The figure of both simulator levels: equal files for equal runs, every matrix named."""

import pandas as pd

from sparloom.report import draw_levels

FRAME = pd.DataFrame({
    "op": ["spmm", "sddmm", "spmm", "sddmm"], "matrix": ["band/n1", "band/n1", "mesh/n2", "mesh/n2"],
    "error": [0.02, 0.04, 0.11, 0.2], "spearman": [0.99, 1, 0.97, 0.8], "traffic_worst": [0, 0, 0.01, 0.02],
})


def test_levels_are_drawn_equally_twice(tmp_path):
    for name in ("one", "two"):
        draw_levels(FRAME, tmp_path / name, title="a title")
    for ending in (".png", ".svg"):
        assert (tmp_path / f"one{ending}").read_bytes() == (tmp_path / f"two{ending}").read_bytes()
    drawing = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {name}" in drawing for name in ("band/n1", "mesh/n2", "a title", "SDDMM"))
