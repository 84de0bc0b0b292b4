"""Reduce benchmarks of ragged programs: ratios, tables, CoRa's Figures 9 to 11, 13 and 24, gains of schedule search.

A `frame` is the per_case.parquet of `bench_ragged` or, for `breakdown_...`, `eval_ragged`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.report.figures import Line, draw_groups, draw_lines
from sparloom.report.runs import ratio_bounds

OWN = "sparloom"
MODULES: Mapping[str, str] = {"encoder": "Encoder layer", "mha": "Multi-head attention"}
PEERS: Mapping[str, str] = {
    "padded": "padded", "micro_batches": "micro-batches", "loop": "loop", "loop_fast": "loop, fast path",
    "packed_loop": "packed, loop of SDPA", "nested": "torch.nested", "nested_fast": "nested fast path",
    "fbgemm": "fbgemm", "flex": "FlexAttention", "flex_frozen": "FlexAttention, frozen",
    "onednn_loop": "oneDNN, loop of SDPA", "onednn_flex": "oneDNN, FlexAttention",
    "sdpa": "packed, padded SDPA", "varlen": "varlen attention, bfloat16",
}
INTERNAL_PEERS = ("onednn_loop", "onednn_flex")
"""Peers that call operators which PyTorch keeps for its compiler."""

MASKED: Mapping[str, str] = {"unmasked": "over_unmasked", "whole": "over_masked_after"}
COLOURS: Mapping[str, str] = {
    OWN: "#b5443c", "padded": "#c8c8c8", "micro_batches": "#9a9a9a", "peer": "#5f7fa8", "loop": "#5f7fa8",
    "mkl_batch": "#7aa974", "blas": "#5f7fa8", "dense": "#c8c8c8", "unsplit": "#f0d9b5", "split": "#e0b070",
    "balanced": "#d9a441",
}
METHODS: Mapping[str, tuple[str, str]] = {"torch": ("PyTorch, packed", "#5f7fa8"), "sparloom": ("sparloom", "#b5443c")}
BREAKDOWN_OPERATORS: Mapping[str, str] = {
    "qkv": "Proj1", "attention": "QKT, Softmax,\nAttnV", "projection": "Proj2", "norm1": "Norm 1", "ff1": "FF1",
    "ff2": "FF2", "norm2": "Norm 2"}
PAPER_RACE: Mapping[str, Mapping[str, float]] = {  # ms on a V100, RACE, 128 sequences; Table 10
    "FT-Eff": {"qkv": 5.4 + 1.21, "attention": 2.64 + 4.08 + 2.79, "projection": 0.29 + 1.82, "norm1": 0.38,
               "ff1": 6.92 + 0.98, "ff2": 7.1, "norm2": 0.38},
    "CoRa": {"qkv": 6.2, "attention": 2.12 + 1.93 + 2.44, "projection": 2.31, "norm1": 0.31, "ff1": 8.06, "ff2": 8.33,
             "norm2": 0.31}}
"""FT-Eff has bias and residual of the last products in its norms."""


def data_title(data: str) -> str:
    """Return the paper's name of a data set."""
    from sparloom.ragged import DATASETS  # loads a compiler, which no other report needs

    return DATASETS[data].title if data in DATASETS else data


def compared_cases(frame: pd.DataFrame, part: str) -> Iterator[tuple[str, int, str, pd.DataFrame]]:
    """Iterate over cases timed in turn: data set, batch size, operator, and a row per method.

    Args:
        frame: per_case.parquet of `eval_ragged`.
    """
    rows = frame[frame["part"] == part]
    for (data, size, operator), case in rows.groupby(["data", "size", "operator"], sort=False):
        yield str(data), int(size), str(operator), case.set_index("method")


def turn_ratios(case: pd.DataFrame, fast: str, slow: str) -> np.ndarray:
    """Divide the seconds of `slow` by those of `fast`, turn by turn.

    Args:
        case: with column seconds, by method, of one comparison.
    """
    own, other = (np.asarray(case.loc[method, "seconds"], dtype=np.float64) for method in (fast, slow))
    turns = min(own.size, other.size)
    return other[:turns] / own[:turns]


def turn_metrics(key: str, ratios: np.ndarray) -> dict[str, float]:
    """Reduce to the median over turns, with `_p10` and `_p90`."""
    shares = {"": 0.5, "_p10": 0.1, "_p90": 0.9}
    return {f"{key}{name}": float(np.quantile(ratios, share)) for name, share in shares.items()}


def case_seconds(frame: pd.DataFrame, part: str) -> pd.DataFrame:
    """Tabulate median seconds: a row per case (data, size, number), a column per method or group of methods."""
    rows = frame[(frame["part"] == part) & frame["median"].notna()]
    groups = rows["method"].str.split(" ").str[0]
    return rows.assign(group=groups).pivot(index=["data", "size", "number"], columns="group", values="median")


def ragged_metrics(frame: pd.DataFrame, *, layers: int, seed: int) -> dict[str, float]:
    """Reduce seconds to speedups of the ragged programs over the others.

    Args:
        layers: that share a prelude.
        seed: of the bootstrap over cases.

    Returns:
        Geometric means over cases, with 95 % bounds `_low` and `_high` and the extremes `_min` and `_max`:
        `encoder/over_<peer>`, `encoder/over_padded` over the fastest padded form, `encoder/over_best_peer` over the
        fastest of all in each case, `encoder/over_best_public` over the fastest of those that call nothing but what
        PyTorch documents; `mha/...` likewise, and `mha/over_microbatch`; `vgemm/over_loop`,
        `vgemm/over_padded`, `vgemm/over_mkl_batch`; `trmm/over_blas`, also by size, `trmm/<size>/over_blas` and
        `trmm/<size>/over_dense`;
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
    for part, peers in (("vgemm", ("loop", "padded", "mkl_batch")), ("trmm", ("blas", "dense"))):
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
            lines = [Line(own["size"], own["flops"] / own["median"] / 1e9, str(name), COLOURS[str(name)], "o-")
                     for name, own in rows.groupby("method", sort=False)]
            draw_lines({title: lines}, folder / part, x=label, y="useful GFLOP/s", size=(5.2, 3.6), ylim=(0, None),
                       ticks=sorted(rows["size"].unique()))


def _draw_module(seconds: pd.DataFrame, title: str, stem: Path) -> None:
    """Draw speedups over padding, by case."""
    peers = [name for name in PEERS if name in seconds and name != "padded"]
    times = {"peer": seconds[peers].min(axis=1), OWN: seconds[OWN]}
    if "micro_batches" in seconds:  # a batch of two has none
        times = {"micro_batches": seconds["micro_batches"], **times}
    shown = pd.DataFrame({name: seconds["padded"] / taken for name, taken in times.items()})
    shown.index = [f"{data_title(data)} {size}" for data, size, _ in shown.index]
    labels = {"micro_batches": "length-sorted micro-batches", "peer": "best of all peers", OWN: "sparloom"}
    draw_groups({title: shown}, {name: (labels[name], COLOURS[name]) for name in shown}, stem, at=1,
                y="times as fast as padded", width=max(3.6, 0.36 * len(shown)), fontsize=8, rotation=90)


def breakdown_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Tabulate median milliseconds: a row per data set, batch size and operator, a column per method."""
    rows = frame[frame["part"] == "breakdown"]
    seconds = rows.pivot_table(index=["data", "size", "operator"], columns="method", values="median", sort=False)
    return 1e3 * seconds[list(METHODS)]


def breakdown_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce seconds to ratios and shares.

    Returns:
        By `breakdown/<data>_<size>/`: `<operator>_over_torch`, how many times as fast our kernel is, the median over
        turns with `_p10` and `_p90`; `<operator>_share` of the sum of our kernels; `total_over_torch`, of the sums of
        medians; `total_seconds`.
    """
    found: dict[str, float] = {}
    total = breakdown_frame(frame).groupby(["data", "size"], sort=False).sum() / 1e3
    for data, size, operator, case in compared_cases(frame, "breakdown"):
        key, whole = f"breakdown/{data}_{size}", total.loc[(data, size)]
        found |= turn_metrics(f"{key}/{operator}_over_torch", turn_ratios(case, "sparloom", "torch"))
        found[f"{key}/{operator}_share"] = float(case.loc["sparloom", "median"] / whole["sparloom"])
        found |= {f"{key}/total_over_torch": float(whole["torch"] / whole["sparloom"]),
                  f"{key}/total_seconds": float(whole["sparloom"])}
    return found


def draw_breakdown(frame: pd.DataFrame, stem: Path) -> None:
    """Draw milliseconds of each kernel, a panel for each batch (Figures 13 and 24)."""
    panels = {f"{data_title(str(data))}, {size} sequences": rows.droplevel(["data", "size"]).rename(BREAKDOWN_OPERATORS)
              for (data, size), rows in breakdown_frame(frame).groupby(level=["data", "size"], sort=False)}
    draw_groups(panels, METHODS, stem, y="milliseconds", width=5.0, columns=2, fontsize=8)
