"""Rows of several runs: statistics as for one run, tables, figures."""

import numpy as np
import pandas as pd
import pytest

from sparloom.report import (
    Compared,
    judge,
    optimum,
    per_matrix,
    read_compared,
    row_metrics,
    row_statistics,
    rows_table,
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
