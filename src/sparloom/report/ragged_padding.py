"""Measure the cost of padding: computation and memory (CoRa's Figures 2 and 22), fused padding changes (Figure 12),
split loops (Figure 14). A `frame` is the per_case.parquet of `eval_ragged`.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.measure import geomean
from sparloom.report.figures import Line, draw_groups, draw_lines
from sparloom.report.ragged import compared_cases, data_title, turn_metrics, turn_ratios

CAUSAL = "causal"
SHOWN = (32, 128)  # sequences, of the paper's Figure 22
PADDINGS: Mapping[str, tuple[str, str]] = {
    "dense": ("padded to the longest", "#c8c8c8"), "partial": ("partial padding (paper)", "#d9a441"),
    "own": ("sparloom", "#b5443c"), "ideal": ("no padding", "#2b2b2b")}
MEMORIES: Mapping[str, tuple[str, str]] = {
    "dense": ("padded to the longest", "#c8c8c8"), "partial": ("storage in multiples of 64 (paper)", "#d9a441"),
    "ragged": ("ragged, scores kept", "#5f7fa8"), "own": ("sparloom, statistics of scores kept", "#b5443c")}
LINES = ("#b5443c", "#d9a441", "#7aa974", "#5f7fa8", "#8fa9c9", "#9a9a9a", "#6d4c7d", "#2b2b2b")
PAD_FUSION_ARMS: Mapping[str, tuple[str, str]] = {
    "separate_loops": ("loops, changes by themselves", "#b0b0b0"),
    "inlined_loops": ("loops, changes inlined", "#6f6f6f"),
    "separate_products": ("products, changes by themselves", "#8fa9c9"),
    "inlined_products": ("products, changes inlined", "#5f7fa8"), "sparloom": ("sparloom, no padding", "#b5443c")}
CHANGES = "changes"
SPLITTING_ARMS: Mapping[str, tuple[str, str]] = {
    "padded": ("padded (NoSplit)", "#c8c8c8"), "split": ("split", "#8fa9c9"), "hfused": ("split, at once", "#5f7fa8"),
    "exact": ("tiles of any extent (sparloom)", "#b5443c")}
OPERATORS: Mapping[str, str] = {"qkt": "QKT", "attnv": "AttnV"}


def over_ideal(frame: pd.DataFrame, *, causal: bool = False) -> pd.DataFrame:
    """Tabulate computation relative to unpadded, by data set and batch size: a column per kind of padding.

    Args:
        causal: scores of masked attention, instead of the encoder layer.
    """
    rows = frame[(frame["part"] == "computation") & ((frame["operator"] == CAUSAL) == causal)]
    total = rows.pivot_table(index=["data", "size"], columns="method", values="flops", aggfunc="sum", sort=False)
    return total.div(total["ideal"], axis=0)


def over_ragged(frame: pd.DataFrame) -> pd.DataFrame:
    """Tabulate bytes of activations relative to ragged storage, by data set: a column per kind of storage."""
    rows = frame[frame["part"] == "activations"]
    total = rows.pivot_table(index="data", columns="method", values="bytes", aggfunc="sum", sort=False)
    return total.div(total["ragged"], axis=0)


def computation_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce counts to shares.

    Returns:
        `padding/batch_<size>`: what the paper's partial padding computes in vain, relative to what has to be computed,
        by geometric mean over data sets, with the largest as `_max`; `padding_dense/...`, padded to the longest of a
        batch; `padding_own/...`, our schedule, and `padding_own/causal_batch_<size>`, scores of masked attention on
        triangles of tiles. `memory/dense_over_<method>`: how many times as much as partial, ragged and own storage
        padded activations take, likewise, with `_min` and `_max`.
    """
    found: dict[str, float] = {}
    layers, masked = over_ideal(frame), over_ideal(frame, causal=True)
    for size in sorted(set(layers.index.get_level_values("size"))):
        rows, triangles = layers.xs(size, level="size"), masked.xs(size, level="size")
        for key, ratio in ((f"padding/batch_{size}", rows["partial"]), (f"padding_own/batch_{size}", rows["own"]),
                           (f"padding_dense/batch_{size}", rows["dense"]),
                           (f"padding_own/causal_batch_{size}", triangles["own"])):
            found |= {key: geomean(ratio.to_numpy()) - 1, f"{key}_max": float(ratio.max()) - 1}
    stored = over_ragged(frame)
    for method in ("partial", "ragged", "own"):
        ratio = (stored["dense"] / stored[method]).to_numpy()
        key = f"memory/dense_over_{method}"
        found |= {key: geomean(ratio), f"{key}_min": float(ratio.min()), f"{key}_max": float(ratio.max())}
    return found


def draw_computation(frame: pd.DataFrame, stem: Path) -> None:
    """Draw computation with full padding over useful computation, by batch size (Figure 2)."""
    ratio = over_ideal(frame)["dense"]
    lines = [Line(rows.index.get_level_values("size"), rows.to_numpy(), data_title(str(data)), colour, "o-")
             for (data, rows), colour in zip(ratio.groupby("data", sort=False), LINES, strict=False)]
    draw_lines({"An encoder layer with all sequences padded to the longest": lines}, stem, x="sequences in a batch",
               y="computation, padded / none", size=(6.4, 3.8), at=1, columns=4,
               ticks=sorted(set(ratio.index.get_level_values("size"))))


def draw_padding(frame: pd.DataFrame, stem: Path) -> None:
    """Draw computation with each kind of padding, by data set, for batches of 32 and 128 (Figure 22)."""
    ratio = over_ideal(frame)
    there = set(ratio.index.get_level_values("size"))
    sizes = [size for size in SHOWN if size in there] or [max(there)]
    panels = {f"{size} sequences in a batch": ratio.xs(size, level="size").rename(data_title) for size in sizes}
    draw_groups(panels, PADDINGS, stem, y="computation over none in vain", width=4.4, fontsize=8, rotation=30)


def draw_memory(frame: pd.DataFrame, stem: Path) -> None:
    """Draw memory of activations with each kind of storage, by data set."""
    draw_groups({"Activations of an encoder layer": over_ragged(frame).rename(data_title)}, MEMORIES, stem, columns=2,
                y="bytes over ragged ones", width=5.0, fontsize=8, rotation=30)


def pad_fusion_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Tabulate median milliseconds: a row per data set and batch size, a column per arm."""
    rows = frame[frame["part"] == "pad_fusion"]
    seconds = rows.pivot(index=["data", "size"], columns="method", values="median")
    return 1e3 * seconds[[*PAD_FUSION_ARMS, CHANGES]]


def pad_fusion_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce seconds to ratios, medians over turns with `_p10` and `_p90`.

    Returns:
        By `pad_fusion/<data>_<size>/`: `inlined_over_separate_products` and `inlined_over_separate_loops`, how many
        times as fast inlining makes the attention; `sparloom_over_inlined_products`; `changes_share`, of the changes
        of padding in the time with them by themselves, products offloaded.
    """
    found: dict[str, float] = {}
    for data, size, _, case in compared_cases(frame, "pad_fusion"):
        key = f"pad_fusion/{data}_{size}"
        for kind in ("products", "loops"):
            found |= turn_metrics(f"{key}/inlined_over_separate_{kind}",
                                  turn_ratios(case, f"inlined_{kind}", f"separate_{kind}"))
        found |= turn_metrics(f"{key}/sparloom_over_inlined_products",
                              turn_ratios(case, "sparloom", "inlined_products"))
        found |= turn_metrics(f"{key}/changes_share", turn_ratios(case, "separate_products", CHANGES))
    return found


def draw_pad_fusion(frame: pd.DataFrame, stem: Path) -> None:
    """Draw milliseconds of the attention (Figure 12)."""
    found = pad_fusion_frame(frame)
    found.index = [f"{data_title(data)}, {size}" for data, size in found.index]
    draw_groups({"Multi-head attention": found}, PAD_FUSION_ARMS, stem, y="milliseconds", width=5.8, columns=3)


def splitting_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Tabulate seconds over padded seconds, medians over turns: a row per operator, data set and batch size."""
    rows = {(operator, data, size): {arm: float(np.median(turn_ratios(case, "padded", arm))) for arm in SPLITTING_ARMS}
            for data, size, operator, case in compared_cases(frame, "splitting")}
    found = pd.DataFrame.from_dict(rows, orient="index")
    found.index = pd.MultiIndex.from_tuples(rows, names=["operator", "data", "size"])
    return found


def splitting_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce seconds to ratios.

    Returns:
        `splitting/<operator>/<data>_<size>/<arm>_over_padded`: how many times as fast an arm is as padding to whole
        tiles, and `exact_over_split`, `hfused_over_split`; medians over turns with `_p10` and `_p90`.
    """
    found: dict[str, float] = {}
    for data, size, operator, case in compared_cases(frame, "splitting"):
        for fast, slow in (("split", "padded"), ("hfused", "padded"), ("exact", "padded"), ("hfused", "split"),
                           ("exact", "split")):
            found |= turn_metrics(f"splitting/{operator}/{data}_{size}/{fast}_over_{slow}",
                                  turn_ratios(case, fast, slow))
    return found


def draw_splitting(frame: pd.DataFrame, stem: Path) -> None:
    """Draw seconds over padded seconds, a panel per operator (Figure 14)."""
    panels = {OPERATORS[str(operator)]: rows.set_axis([f"{data_title(data)}\n{size}" for _, data, size in rows.index])
              for operator, rows in splitting_frame(frame).groupby(level="operator", sort=False)}
    draw_groups(panels, SPLITTING_ARMS, stem, y="time over padded", width=3.6, at=1, fontsize=8)
