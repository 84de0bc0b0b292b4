"""Rank tuners by their share of the best speed: metrics, a table that counts labels, and a figure."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.measure import bootstrap_interval, geomean
from sparloom.measure.metrics import resample
from sparloom.report.figures import Line, draw_lines

WHERE = {"train": "training matrices", "judged": "each judged matrix"}
"""Where tuners take labels -> as tables call it."""
BUDGETS = (25, 50, 100, 200)
"""Trials at which tuners on measured spaces are compared."""
DRAWN = (5, 10, 15, 25, 35, 50, 75, 100, 150, 200)  # trials in figures
GOALS = (0.90, 0.95, 0.98)
CLEARLY_WORSE = 0.02  # of the optimum
SPACE = ["kernel", "device"]


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


def space_metrics(curves: pd.DataFrame) -> dict[str, float]:
    """Reduce searches of measured spaces.

    Args:
        curves: curves.parquet of experiment=rank_tuners: columns kernel, device, method, seed, trial, share of the
            optimum, seconds_per_trial.

    Returns:
        <kernel>/<device>/<method>/<trials>: mean share over seeds; <kernel>/mean/<method>/<trials>: over devices, too,
        with _low and _high, its 95 % bounds over devices and seeds; <method>/trials_to_<goal>: trials after which its
        mean over spaces and seeds is at the goal, absent if it never is; <method>/seconds_per_trial: of its own
        computations; <method>/worse: share of spaces and BUDGETS where a source makes ours worse by more than
        CLEARLY_WORSE; single_source/worse: the same of all methods with one source.
    """
    means = curves.groupby([*SPACE, "method", "trial"], sort=False)["share"].mean()
    metrics = {"/".join(map(str, key)): float(share) for key, share in means.items() if key[-1] in BUDGETS}
    for (kernel, method), group in curves.groupby(["kernel", "method"], sort=False):
        for row in _mean_bounds(group[group["trial"].isin(BUDGETS)]).itertuples():
            key = f"{kernel}/mean/{method}/{row.Index}"
            metrics |= {key: row.mean, f"{key}_low": row.low, f"{key}_high": row.high}
    overall = means.groupby(["method", "trial"]).mean()
    for goal in GOALS:
        reached = overall[overall >= goal].reset_index("trial").groupby("method")["trial"].min()
        metrics |= {f"{method}/trials_to_{goal:.2f}": float(trial) for method, trial in reached.items()}
    took = curves.groupby("method")["seconds_per_trial"].mean()
    gains = source_gains(curves)
    worse = (gains["gain"] < -CLEARLY_WORSE).groupby(gains["method"]).mean()
    single = gains.loc[gains["method"] != "sparloom_all", "gain"]
    return (metrics | took.add_suffix("/seconds_per_trial").to_dict() | worse.add_suffix("/worse").to_dict()
            | ({"single_source/worse": float((single < -CLEARLY_WORSE).mean())} if len(single) else {}))


def source_gains(curves: pd.DataFrame, correlations: pd.DataFrame | None = None) -> pd.DataFrame:
    """Compare our searches with sources to those without: how related must a source be?

    Args:
        correlations: correlations.parquet of the same run.

    Returns:
        Columns kernel, device, trial, method, and gain: the mean share of the optimum with the source minus that
        without; with `correlations` also source and correlation, of a single source with the device, by ranks.
    """
    shares = curves[curves["trial"].isin(BUDGETS)].pivot_table("share", [*SPACE, "trial"], "method")
    ours = shares.filter(regex="^sparloom_").columns if "sparloom" in shares else []
    gains = shares[ours].sub(shares.get("sparloom"), axis=0).melt(
        var_name="method", value_name="gain", ignore_index=False).dropna().reset_index()
    if correlations is None:
        return gains
    reverse = gains[SPACE].drop_duplicates().assign(method="sparloom_reversed", source="reversed", correlation=-1.0)
    known = correlations.assign(method="sparloom_from_" + correlations["source"])
    return gains.merge(pd.concat([known, reverse]), on=[*SPACE, "method"])


def draw_source_gains(gains: pd.DataFrame, stem: Path) -> None:
    """Draw the gain by a source over its correlation with the device, a panel for each kernel."""
    panels = {kernel: [Line(group["correlation"], group["gain"], f"{trial} trials", f"C{place}", "o")
                       for place, (trial, group) in enumerate(rows.groupby("trial"))]
              for kernel, rows in gains.groupby("kernel")}
    draw_lines(panels, stem, x="rank correlation of source and device", y="gain in share of the optimum", at=0)


def draw_trials(frame: pd.DataFrame, stem: Path, *, share: float, labels: Mapping[str, str]) -> None:
    """Draw the share of the best speed by trials per matrix: a panel for each method, a line for each seed."""
    panels = {labels[method]: [Line(each["trials"], each["share"], f"draw {seed}", f"C{seed % 10}")
                               for seed, each in rows.groupby("seed")] for method, rows in frame.groupby("method")}
    draw_lines(panels, stem, x="trials per matrix", y="share of the best speed", at=share, columns=5)


def draw_spaces(curves: pd.DataFrame, out: Path) -> None:
    """Draw the share of the optimum by the number of trials, with its 95 % bounds: a figure for each kernel.

    Bounds are those of means over seeds, in the last panel over devices and seeds. Lines of ours are solid.
    """
    colours = {method: f"C{place}" for place, method in enumerate(curves["method"].unique())}
    for kernel, rows in curves[curves["trial"].isin(DRAWN)].groupby("kernel"):
        panels = {device: _lines(group, colours) for device, group in rows.groupby("device")}
        panels["all devices"] = _lines(rows, colours)
        draw_lines(panels, out / f"{kernel}", x="trials", y="share of the optimum", title=kernel,
                   ticks=(5, 10, 25, 50, 100, 200), columns=6)


def _lines(rows: pd.DataFrame, colours: Mapping[str, str]) -> list[Line]:
    lines = []
    for method, group in rows.groupby("method", sort=False):
        bounds = _mean_bounds(group)
        lines.append(Line(bounds.index, bounds["mean"], method, colours[method],
                          "-" if method.startswith("sparloom") else "--", bounds["low"], bounds["high"]))
    return lines


def _mean_bounds(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean share of one method over devices and seeds, by trials, with low and high."""
    by_trial = rows.pivot(index=["device", "seed"], columns="trial", values="share")
    spread = by_trial.to_numpy()[resample(len(by_trial), seed=0)].mean(axis=1)
    low, high = np.quantile(spread, (0.025, 0.975), axis=0)
    return pd.DataFrame({"mean": by_trial.mean(), "low": low, "high": high})
