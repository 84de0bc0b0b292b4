"""Rows of several runs: statistics as for one run, tables, figures."""

import numpy as np
import pandas as pd
import pytest

from sparloom.report import (
    Bars,
    Compared,
    Curves,
    Lines,
    Matrices,
    Shares,
    judge,
    optimum,
    per_matrix,
    read_compared,
    row_metrics,
    row_statistics,
    rows_table,
    summary,
)


@pytest.fixture
def compared(frame, truth) -> Compared:
    """Two groups; the second lacks the reference and has a row that failed."""
    first = frame.rename(columns={"method": "row"}).assign(group="spmm")
    alone = per_matrix(truth, [judge("trees", 0, truth, truth.seconds), optimum(truth)])
    second = alone.rename(columns={"method": "row"}).assign(group="sddmm")
    rows = row_statistics(pd.concat([first, second], ignore_index=True), reference="cognate", seed=0)
    rows = rows.assign(label=rows["row"], note="", failure="", arm="one", target_labels=500.0, source_labels=6801.0,
                       target_matrices=np.arange(len(rows)) + 3.0, paper_top1_speedup=np.nan)
    rows.loc[rows["row"] == "cognate", "paper_top1_speedup"] = 1.4
    rows.loc[rows["row"] == "optimum", ["target_labels", "source_labels"]] = np.nan
    failed = pd.DataFrame([{"group": "sddmm", "row": "lost", "label": "lost", "failure": "no memory", "note": ""}])
    curves = pd.DataFrame([{"group": "spmm", "row": "cognate", "seed": seed, "epoch": epoch, "train/prl": 1 / epoch,
                            "train/opa": 0.5, "train/kendall_tau": 0.1} for seed in (0, 1) for epoch in (1, 2)])
    return Compared(pd.concat([rows, failed], ignore_index=True), pd.concat([first, second], ignore_index=True), curves)


def test_rows_have_the_statistics_of_a_single_run(frame):
    rows = row_statistics(frame.rename(columns={"method": "row"}).assign(group="g"), reference="cognate", seed=0)
    rows = rows.set_index("row")
    metrics = summary(frame, headline="cognate", prefix="test", seed=0)
    for key in ("top1_speedup", "top5_speedup", "top1_of_optimum", "top5_of_optimum", "opa", "kendall_tau", "ape_time",
                "ape_speedup"):
        for bound in ("", "_low", "_high"):
            assert rows.loc["cognate", f"{key}{bound}"] == metrics[f"test/{key}{bound}"]
    assert rows.loc["static", "top1_speedup"] == metrics["test/static_speedup"]
    assert rows.loc["cognate", "top1_max"] == metrics["test/top1_max"]
    assert rows.loc["static", "top1_over_cognate"] == pytest.approx(1 / metrics["test/top1_over_static"])
    assert np.isnan(rows.loc[["cognate", "optimum"], "top1_over_cognate"]).all()
    assert np.isnan(rows.loc["random", "opa"])
    assert rows.loc["cognate", ["matrices", "seeds"]].tolist() == [2, 2]


def test_metrics_are_flat_and_leave_out_what_is_not_known(compared):
    metrics = row_metrics(compared.rows)
    assert metrics["spmm/cognate/target_labels"] == 500
    assert {"spmm/optimum/top1_speedup", "spmm/static/top1_over_cognate_low", "sddmm/trees/ape_time"} <= set(metrics)
    assert not any("paper" in key or "lost" in key or key.startswith("sddmm/trees/top1_over") for key in metrics)
    assert all(np.isfinite(value) for value in metrics.values())


def test_written_rows_are_read_again(compared, tmp_path):
    compared.write(tmp_path)
    again = read_compared(tmp_path)
    pd.testing.assert_frame_equal(again.rows, compared.rows, check_dtype=False)
    pd.testing.assert_frame_equal(again.curves, compared.curves)
    assert len(again.per_matrix) == len(compared.per_matrix)


def test_leads_are_those_over_the_reference_and_their_inverse(compared):
    found = compared.leads("spmm", {"static": "cognate", "cognate": "static"})
    rows = compared.rows[compared.rows["group"] == "spmm"].set_index("row")
    told = rows.loc["static", [f"top1_over_cognate{end}" for end in ("", "_low", "_high")]].tolist()
    assert found.iloc[0][["ratio", "low", "high"]].tolist() == pytest.approx(told)
    assert found.iloc[1][["ratio", "high", "low"]].tolist() == pytest.approx([1 / value for value in told], rel=1e-3)
    assert found["over"].tolist() == [rows.loc["cognate", "label"], rows.loc["static", "label"]]


def test_table_shows_labels_paper_and_failures(compared):
    rows = compared.rows[compared.rows["group"] == "sddmm"]
    table = rows_table(rows, columns=["ape_speedup"], bold="trees")
    columns = [list(column.cells) for column in table.columns]
    assert columns[0] == ["trees", "optimum", "lost"]
    assert columns[1] == ["500+6801", "", ""]
    assert columns[2][2] == "failed"
    assert table.columns[8].header == "APE of speedup, %"
    spmm = compared.rows[compared.rows["group"] == "spmm"].assign(opa=0.77, paper_opa=[np.nan, 0.8, np.nan, np.nan])
    shown = rows_table(spmm, columns=["opa"], bold=None)
    assert list(shown.columns[8].cells) == ["0.770", "0.770 (0.800)", "0.770", "0.770"]
    assert list(shown.columns[9].cells) == ["", "1.40", "", ""]


@pytest.mark.parametrize("figure", [
    Bars(), Lines("target_matrices", {"ours": ["cognate", "static", "absent"]}), Matrices("cognate"), Curves(),
    Shares()])
def test_figures_are_drawn_equally_twice(compared, tmp_path, figure):
    for name in ("one", "two"):
        figure.draw(compared, "spmm", tmp_path / name, title="a title")
    for ending in (".png", ".svg"):
        assert (tmp_path / f"one{ending}").read_bytes() == (tmp_path / f"two{ending}").read_bytes()
        assert (tmp_path / f"one{ending}").stat().st_size > 1000
