"""Rank tuners by their share of the best speed: metrics, a table that counts labels, and a figure."""

from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.measure import bootstrap_interval, geomean
from sparloom.report.figures import Line, draw_lines

WHERE = {"train": "training matrices", "judged": "each judged matrix"}
"""Where tuners take labels -> as tables call it."""


def rank_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Reduce rows of matrices and seeds to one per tuner and budget.

    Args:
        frame: per_matrix.parquet of experiment=rank_tuners.

    Returns:
        Columns tuner, label, labels_on, budget; share: best seconds over chosen seconds, geometric mean over matrices
        and seeds, with low and high, its 95 % bounds over matrices; speedup over the default; least: smallest share of
        any matrix; labels_on_matrix and labels_in_all, means; source_labels; seeds.
    """
    found = frame.assign(share=np.log(frame["best_seconds"] / frame["seconds"]),
                         speedup=np.log(frame["default_seconds"] / frame["seconds"]))
    rows = []
    for (tuner, budget), group in found.groupby(["tuner", "budget"], sort=False):
        shares = np.exp(group.groupby("matrix")["share"].mean().to_numpy())
        low, high = bootstrap_interval(shares, seed=0)
        rows.append({
            "tuner": tuner, "label": group["label"].iloc[0], "labels_on": group["labels_on"].iloc[0], "budget": budget,
            "share": geomean(shares), "low": low, "high": high, "speedup": float(np.exp(group["speedup"].mean())),
            "least": float(np.exp(group["share"].min())), "labels_on_matrix": float(group["labels_on_matrix"].mean()),
            "labels_in_all": float(group["labels_in_all"].mean()), "source_labels": int(group["source_labels"].iloc[0]),
            "seeds": group["seed"].nunique(),
        })
    return pd.DataFrame(rows)


def tuner_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Flatten a ranking: <tuner>/<budget>/share, _low, _high, speedup, least, labels_on_matrix and labels_in_all."""
    metrics: dict[str, float] = {"matrices": frame["matrix"].nunique()}
    for row in rank_rows(frame).itertuples():
        name = f"{row.tuner}/{row.budget}"
        metrics |= {f"{name}/share": row.share, f"{name}/share_low": row.low, f"{name}/share_high": row.high,
                    f"{name}/speedup": row.speedup, f"{name}/least": row.least,
                    f"{name}/labels_on_matrix": row.labels_on_matrix, f"{name}/labels_in_all": row.labels_in_all,
                    f"{row.tuner}/source_labels": row.source_labels, f"{row.tuner}/seeds": row.seeds}
    return metrics


def leaderboard(frame: pd.DataFrame) -> pd.DataFrame:
    """Arrange a ranking: one row per tuner, best first within each group; columns are budgets.

    Returns:
        Index labels on, tuner; a column per budget with the share of the best speed; labels in all at the
        greatest budget; labels of another platform; seeds.
    """
    rows = rank_rows(frame)
    wide = rows.pivot(index=["labels_on", "label"], columns="budget", values="share")
    last = rows.sort_values("budget").groupby(["labels_on", "label"]).last()
    wide["labels in all"] = last["labels_in_all"].round().astype(int)
    wide["of another platform"], wide["seeds"] = last["source_labels"], last["seeds"]
    order = last["share"].sort_values(ascending=False).index
    wide = wide.loc[[each for where in ("train", "judged") for each in order if each[0] == where]]
    return wide.rename(index=WHERE, level=0).rename_axis(["labels on", "tuner"]).rename_axis(None, axis=1)


def draw_tuners(frame: pd.DataFrame, stem: Path, *, title: str) -> None:
    """Draw the share of the best speed by the number of labels, one panel for each place where they are taken."""
    rows, panels, colours = rank_rows(frame), {}, []
    budgets = sorted(set(rows["budget"]) - {0})
    for where, name in WHERE.items():
        lines = []
        for label, group in rows[rows["labels_on"] == where].groupby("label", sort=False):
            group = group.sort_values("budget")
            if group["budget"].max() == 0:
                lines.append(Line(budgets, [group["share"].iloc[0]] * len(budgets), label, "0.4", ":"))
            else:
                lines.append(Line(group["budget"], group["share"], label, f"C{len(colours)}", "o-", group["low"],
                                  group["high"]))
                colours.append(label)
        panels[f"labels on {name}" + (", in all" if where == "train" else "")] = lines
    draw_lines(panels, stem, x="labels", y="share of the best speed", title=title, size=(9.0, 3.8), ticks=budgets,
               ylim=(max(0.0, rows["low"].min() - 0.02), 1.005))
