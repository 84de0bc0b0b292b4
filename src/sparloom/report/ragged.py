"""Ragged programs beside their peers: ratios of seconds, tables, and figures after CoRa's Figures 9 to 11."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator
from rich.table import Table

from sparloom.report.figures import figure, save, styled
from sparloom.report.ratio_bounds import ratio_bounds

__all__ = ["INTERNAL_PEERS", "case_seconds", "draw_ragged", "ragged_metrics", "ragged_tables"]

OWN = "sparloom"
MODULES: Mapping[str, str] = {"encoder": "Encoder layer", "mha": "Multi-head attention"}
PEERS: Mapping[str, str] = {
    "padded": "padded", "micro_batches": "micro-batches", "loop": "loop", "loop_fast": "loop, fast path",
    "packed_loop": "packed, loop of SDPA", "nested": "torch.nested", "nested_fast": "nested fast path",
    "fbgemm": "fbgemm", "flex": "FlexAttention", "flex_frozen": "FlexAttention, frozen",
    "onednn_loop": "oneDNN, loop of SDPA", "onednn_flex": "oneDNN, FlexAttention",
    "sdpa": "packed, padded SDPA", "varlen": "varlen attention, bfloat16",
}
INTERNAL_PEERS = ("onednn_loop", "onednn_flex")  # call operators that PyTorch keeps for its compiler
MASKED: Mapping[str, str] = {"unmasked": "over_unmasked", "whole": "over_masked_after"}
ARMS: Mapping[str, str] = {"unmasked": "without a mask", "whole": "computed whole, then masked"}
COLOURS: Mapping[str, str] = {
    OWN: "#b5443c", "padded": "#c8c8c8", "micro_batches": "#9a9a9a", "peer": "#5f7fa8", "loop": "#5f7fa8",
    "blas": "#5f7fa8", "dense": "#c8c8c8", "unsplit": "#f0d9b5", "split": "#e0b070", "balanced": "#d9a441",
}


def case_seconds(frame: pd.DataFrame, part: str) -> pd.DataFrame:
    """Median seconds: a row for each case (data, size, number), a column for each method or group of methods.

    Args:
        frame: per_case.parquet of `bench_ragged`.
    """
    rows = frame[(frame["part"] == part) & frame["median"].notna()]
    groups = rows["method"].str.split(" ").str[0]
    return rows.assign(group=groups).pivot(index=["data", "size", "number"], columns="group", values="median")


def ragged_metrics(frame: pd.DataFrame, *, layers: int, seed: int) -> dict[str, float]:
    """Reduce seconds to how many times as fast as others the ragged programs are.

    Args:
        frame: per_case.parquet of `bench_ragged`.
        layers: that share a prelude.
        seed: of the bootstrap over cases.

    Returns:
        Geometric means over cases, with 95 % bounds `_low` and `_high` and the extremes `_min` and `_max`:
        `encoder/over_<peer>`, `encoder/over_padded` over the fastest padded form, `encoder/over_best_peer` over the
        fastest of all in each case, `encoder/over_best_public` over the fastest of those that call nothing but what
        PyTorch documents; `mha/...` likewise, and `mha/over_microbatch`; `vgemm/over_loop`,
        `vgemm/over_padded`; `trmm/over_blas`, also by size, `trmm/<size>/over_blas` and `trmm/<size>/over_dense`;
        `causal/over_unmasked` at the lengths of RACE: how many times as fast masked attention on triangles of tiles is
        as attention without a mask, `causal/over_masked_after`: as computing all and masking it, and both by data set,
        `causal/<data>/over_unmasked`. `prelude_share` of the layer's time, mean over cases, for a model of so many
        layers, and `prelude_share_max`. `compile/cold_seconds` and `compile/cached_seconds` of the kernels of an
        encoder layer, and `compile/schedule_seconds` before either.
    """
    found: dict[str, float] = {}
    for part in MODULES:
        seconds = case_seconds(frame, part)
        peers = [name for name in PEERS if name in seconds]
        if OWN not in seconds or not peers:
            continue
        for name in peers:
            found |= ratio_bounds(f"{part}/over_{name}", seconds[name] / seconds[OWN], seed=seed)
        for name, among in (("peer", peers), ("public", [name for name in peers if name not in INTERNAL_PEERS])):
            found |= ratio_bounds(f"{part}/over_best_{name}", seconds[among].min(axis=1) / seconds[OWN], seed=seed)
        if "prelude" in seconds:
            share = seconds["prelude"] / layers / seconds[OWN]
            found |= {"prelude_share": float(share.mean()), "prelude_share_max": float(share.max())}
    if "mha/over_micro_batches" in found:
        found |= {key.replace("micro_batches", "microbatch"): value for key, value in found.items()
                  if key.startswith("mha/over_micro_batches")}
    for part, peers in (("vgemm", ("loop", "padded")), ("trmm", ("blas", "dense"))):
        seconds = case_seconds(frame, part)
        for name in peers:
            if name in seconds:
                found |= ratio_bounds(f"{part}/over_{name}", seconds[name] / seconds[OWN], seed=seed)
                for (_, size, _), ratio in (seconds[name] / seconds[OWN]).items():
                    found[f"{part}/{size}/over_{name}"] = float(ratio)
    seconds = case_seconds(frame, "causal")
    for arm, key in MASKED.items():
        if OWN in seconds and arm in seconds:
            for data, ratio in (seconds[arm] / seconds[OWN]).groupby("data"):
                found |= ratio_bounds(f"causal/{data}/{key}", ratio, seed=seed)
            if f"causal/race/{key}" in found:
                found[f"causal/{key}"] = found[f"causal/race/{key}"]
    compiled = frame[frame["part"] == "compile"]
    found |= {f"compile/{row['method']}_seconds": row["median"] for _, row in compiled.iterrows()}
    return found


def ragged_tables(frame: pd.DataFrame, metrics: Mapping[str, float]) -> Iterator[Table]:
    """Lay out milliseconds by case, then ratios."""
    for part, title in MODULES.items():
        seconds = case_seconds(frame, part)
        if not seconds.empty:
            yield _milliseconds(title, seconds, [OWN, *(name for name in PEERS if name in seconds)])
    for part, title, methods in (
            ("vgemm", "Products of variable size", (OWN, "loop", "padded")),
            ("trmm", "Triangular product", (OWN, "balanced", "split", "unsplit", "blas", "dense")),
            ("causal", "Masked attention", (OWN, *MASKED))):
        seconds = case_seconds(frame, part)
        if not seconds.empty:
            yield _milliseconds(title, seconds, [name for name in methods if name in seconds])
    table = Table(box=None, pad_edge=False, header_style="bold", title="times as fast", title_justify="left")
    for column in ("", "geometric mean", "95 %", "least"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for key in metrics:
        if f"{key}_low" in metrics:
            table.add_row(key, f"{metrics[key]:.2f}", f"{metrics[f'{key}_low']:.2f}-{metrics[f'{key}_high']:.2f}",
                          f"{metrics[f'{key}_min']:.2f}")
    yield table


@styled
def draw_ragged(frame: pd.DataFrame, folder: Path) -> None:
    """Draw the modules (encoder.png, mha.png), vgemm.png and trmm.png, as far as they were timed."""
    for part, title in MODULES.items():
        seconds = case_seconds(frame, part)
        if not seconds.empty:
            _draw_module(seconds, title, folder / part)
    for part, title, label in (("vgemm", "Products of variable size", "products"),
                               ("trmm", "Triangular product", "rows")):
        rows = frame[frame["part"] == part]
        if not rows.empty:
            _draw_products(rows, title, label, folder / part)


def _draw_module(seconds: pd.DataFrame, title: str, stem: Path) -> None:
    """How many times as fast as padding each method is, by case."""
    peers = [name for name in PEERS if name in seconds and name != "padded"]
    times = {"peer": seconds[peers].min(axis=1), OWN: seconds[OWN]}
    if "micro_batches" in seconds:  # a batch of two has none
        times = {"micro_batches": seconds["micro_batches"], **times}
    shown = pd.DataFrame({name: seconds["padded"] / taken for name, taken in times.items()})
    labels = {"micro_batches": "length-sorted micro-batches", "peer": "best of all peers", OWN: "sparloom"}
    drawn, (panel,) = figure(max(5.0, 0.46 * len(shown) + 1.6), 3.4)
    places = np.arange(len(shown))
    for number, name in enumerate(shown):
        panel.bar(places + (number - 1) * 0.27, shown[name], 0.25, color=COLOURS[name], label=labels[name])
    panel.axhline(1, color="#2b2b2b", linewidth=0.8)
    panel.set_xticks(places, [f"{data}\n{size}" for data, size, _ in shown.index], fontsize=7)
    panel.set_ylabel("times as fast as padded")
    panel.set_title(title)
    panel.legend(ncols=3, loc="upper left", fontsize=8)
    panel.set_ylim(0, float(shown.max().max()) * 1.2)
    save(drawn, stem)


def _draw_products(rows: pd.DataFrame, title: str, label: str, stem: Path) -> None:
    """Useful operations per second by size."""
    drawn, (panel,) = figure(5.2, 3.2)
    for name, given in rows.groupby("method", sort=False):
        panel.plot(given["size"], given["flops"] / given["median"] / 1e9, "o-", color=COLOURS[name], markersize=4,
                   label=name)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(sorted(rows["size"].unique())))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_ylim(bottom=0)
    panel.set_xlabel(label)
    panel.set_ylabel("useful GFLOP/s")
    panel.set_title(title)
    panel.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(drawn, stem)


def _milliseconds(title: str, seconds: pd.DataFrame, methods: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=f"{title}: milliseconds", title_justify="left")
    for column in ("", "", *({**PEERS, **ARMS}.get(name, name) for name in methods)):
        table.add_column(column, justify="right" if column else "left")
    for (data, size, _), row in seconds.iterrows():
        table.add_row(str(data), str(size), *("" if np.isnan(row[name]) else f"{1e3 * row[name]:.1f}"
                                              for name in methods))
    return table
