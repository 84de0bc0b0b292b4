"""Measure the cost of raggedness: auxiliary tables, access schemes, hoisted loads (CoRa's Figure 23).

`RAGGED_PARTS` lists how each part of `eval_ragged` is reported. A `frame` is its per_case.parquet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from sparloom.report import ragged
from sparloom.report import ragged_padding as padding
from sparloom.report.figures import draw_groups
from sparloom.report.ragged import compared_cases, data_title, turn_metrics, turn_ratios

PRELUDE_ARMS: Mapping[str, tuple[str, str]] = {
    "shared": ("sparloom, one structure", "#b5443c"), "unshared": ("sparloom, one per kernel", "#d9a441"),
    "redundant": ("paper's tables, per kernel", "#5f7fa8"), "by_tensor": ("paper's tables, per tensor", "#8fa9c9"),
    "by_layout": ("paper's tables, per layout", "#b8cbe0"),
    "sparse_redundant": ("sparse storage, per kernel", "#6f6f6f"),
    "sparse_by_tensor": ("sparse storage, per tensor", "#b0b0b0")}
PAPER_KB: Mapping[tuple[str, int, str], tuple[float, float]] = {  # storage and loop fusion; CoRa, appendix D
    ("cola", 32, "redundant"): (2.93, 32.15), ("cola", 32, "by_tensor"): (1.2, 5.27),
    ("cola", 128, "redundant"): (11.18, 104.22), ("cola", 128, "by_tensor"): (4.58, 17.5),
    ("race", 32, "redundant"): (2.93, 666.54), ("race", 32, "by_tensor"): (1.2, 106.87),
    ("race", 128, "redundant"): (11.18, 2609.58), ("race", 128, "by_tensor"): (4.58, 418.06)}
KB = 1024
SCHEMES: Mapping[str, tuple[str, str]] = {"graph": ("offsets by dimension graph", "#b5443c"),
                                          "sparse": ("pointers of sparse storage", "#6f6f6f")}
STORAGE_OPERATORS: Mapping[str, str] = {"qkt": "QKT", "softmax": "Softmax", "attnv": "AttnV"}
FORMS: Mapping[str, str] = {"over_sparse": "", "unhoisted_over_sparse": "_unhoisted",
                            "prelude_over_sparse": "_prelude"}  # what both arms end in
MILLISECONDS = 1e3
HOISTING_ARMS: Mapping[str, tuple[str, str]] = {
    "dense": ("dense", "#c8c8c8"), "vloops": ("+ variable loops", "#8fa9c9"), "vdims": ("+ ragged storage", "#d9a441"),
    "hoisted": ("+ load hoisting", "#b5443c")}
HOISTING_OPERATORS: Mapping[str, str] = {
    "proj1": "Proj1", "qkt": "QKT", "qkt_fused": "QKT, three\nloops fused", "softmax": "Softmax", "attnv": "AttnV",
    "proj2": "Proj2"}


def prelude_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Tabulate microseconds (one batch) and kilobytes (mean over batches) by data set, batch size and arm."""
    rows = []
    for data, size, _, case in compared_cases(frame, "prelude"):
        for arm, row in case.iterrows():
            storage, fusion = PAPER_KB.get((data, size, str(arm)), (np.nan, np.nan))
            rows.append({"data": data, "size": size, "arm": arm, "microseconds": 1e6 * row["median"],
                         "storage kB": row["storage_bytes"] / KB, "paper's storage kB": storage,
                         "fusion kB": row["fusion_bytes"] / KB, "paper's fusion kB": fusion})
    return pd.DataFrame(rows).set_index(["data", "size", "arm"])


def prelude_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce every case to one number.

    Returns:
        By `prelude/<data>_<size>/`: `<arm>_seconds`, `<arm>_storage_kb` and `<arm>_fusion_kb`; how many times as fast
        our structure is built, `over_<arm>`, the median over turns with `_p10` and `_p90`; how many times as many
        bytes the others take, `kb_<arm>_over_shared`.
    """
    found: dict[str, float] = {}
    for data, size, _, case in compared_cases(frame, "prelude"):
        key, taken = f"prelude/{data}_{size}", case["storage_bytes"] + case["fusion_bytes"]
        for arm in case.index:
            found |= {f"{key}/{arm}_seconds": float(case.loc[arm, "median"]),
                      f"{key}/{arm}_storage_kb": float(case.loc[arm, "storage_bytes"]) / KB,
                      f"{key}/{arm}_fusion_kb": float(case.loc[arm, "fusion_bytes"]) / KB}
            if arm != "shared":
                found |= turn_metrics(f"{key}/over_{arm}", turn_ratios(case, "shared", arm))
                found[f"{key}/kb_{arm}_over_shared"] = float(taken[arm] / taken["shared"])
    return found


def draw_prelude(frame: pd.DataFrame, stem: Path) -> None:
    """Draw kilobytes and microseconds by arm, for every data set and size of batch."""
    found = prelude_frame(frame)
    panels = {"Auxiliary tables of an encoder layer, kB": found["storage kB"] + found["fusion kB"],
              "The time to make them, microseconds": found["microseconds"]}
    draw_groups({title: _named(values.unstack("arm")) for title, values in panels.items()}, PRELUDE_ARMS, stem, y="",
                width=4.8, points=True, fontsize=9)


def _named(found: pd.DataFrame) -> pd.DataFrame:
    """Name rows by data set and batch size."""
    return found.set_axis([f"{data_title(data)}\n{size}" for data, size in found.index])


def storage_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Tabulate median milliseconds and kilobytes of tables: a row per operator, data set and batch size."""
    rows = {}
    for data, size, operator, case in compared_cases(frame, "storage"):
        rows[operator, data, size] = {
            **{method: MILLISECONDS * seconds for method, seconds in case["median"].items()},
            **{f"{scheme} kB": case.loc[scheme, "storage_bytes"] / KB for scheme in SCHEMES}}
    found = pd.DataFrame.from_dict(rows, orient="index")
    found.index = pd.MultiIndex.from_tuples(rows, names=["operator", "data", "size"])
    return found


def storage_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce every case to one number.

    Returns:
        By `storage/<operator>/<data>_<size>/`: how many times as fast as sparse storage the dimension graph is,
        `over_sparse`, `unhoisted_over_sparse` and `prelude_over_sparse`, medians over turns with `_p10` and `_p90`;
        `with_prelude_over_sparse`, of the sums of medians, where one kernel runs once per prelude; `<arm>_seconds`;
        `kb_sparse_over_graph`, of the tables.
    """
    found: dict[str, float] = {}
    for data, size, operator, case in compared_cases(frame, "storage"):
        key, median, taken = f"storage/{operator}/{data}_{size}", case["median"], case["storage_bytes"]
        for name, ending in FORMS.items():
            found |= turn_metrics(f"{key}/{name}", turn_ratios(case, f"graph{ending}", f"sparse{ending}"))
        once = {scheme: median[scheme] + median[f"{scheme}_prelude"] for scheme in SCHEMES}
        found[f"{key}/with_prelude_over_sparse"] = float(once["sparse"] / once["graph"])
        found |= {f"{key}/{arm}_seconds": float(seconds) for arm, seconds in median.items()}
        found[f"{key}/kb_sparse_over_graph"] = float(taken["sparse"] / taken["graph"])
    return found


def draw_storage(frame: pd.DataFrame, stem: Path) -> None:
    """Draw milliseconds of operators and their preludes, by access scheme."""
    found = storage_frame(frame)
    names = [f"{STORAGE_OPERATORS[operator]}\n{data_title(data)}\n{size}" for operator, data, size in found.index]
    panels = {title: found[[f"{scheme}{ending}" for scheme in SCHEMES]].set_axis(names).set_axis(list(SCHEMES), axis=1)
              for title, ending in (("Operators", ""), ("Their preludes", "_prelude"))}
    draw_groups(panels, SCHEMES, stem, y="milliseconds", width=5.3, points=True, columns=2, fontsize=8)


def hoisting_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Tabulate seconds over dense seconds, medians over turns: a row per operator, a column per variant."""
    return pd.DataFrame({
        operator: {arm: float(np.median(turn_ratios(case, "dense", arm))) for arm in HOISTING_ARMS}
        for _, _, operator, case in compared_cases(frame, "hoisting")}).T


def hoisting_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce seconds to ratios, medians over turns with `_p10` and `_p90`.

    Returns:
        By `hoisting/<operator>/`: `<form>_slowdown`, seconds over those of the dense operator; `hoisted_over_vdims`,
        how many times as fast hoisting makes it; `dense_seconds`.
    """
    found: dict[str, float] = {}
    for _, _, operator, case in compared_cases(frame, "hoisting"):
        key = f"hoisting/{operator}"
        found[f"{key}/dense_seconds"] = float(case.loc["dense", "median"])
        for arm in HOISTING_ARMS:
            if arm != "dense":
                found |= turn_metrics(f"{key}/{arm}_slowdown", turn_ratios(case, "dense", arm))
        found |= turn_metrics(f"{key}/hoisted_over_vdims", turn_ratios(case, "hoisted", "vdims"))
    return found


def draw_hoisting(frame: pd.DataFrame, stem: Path) -> None:
    """Draw seconds over dense seconds (Figure 23)."""
    found = hoisting_frame(frame)
    draw_groups({"All sequences of one length": found.rename(HOISTING_OPERATORS)}, HOISTING_ARMS, stem, at=1,
                y="time over dense", width=6.2, top=min(2.2, 1.15 * float(found.max().max())))


@dataclass(frozen=True)
class RaggedPart:
    """Functions that report one part of per_case.parquet.

    Args:
        figures: by the name of the file.
    """

    metrics: Callable[[pd.DataFrame], dict[str, float]]
    figures: Mapping[str, Callable[[pd.DataFrame, Path], None]]


RAGGED_PARTS: Mapping[str, RaggedPart] = MappingProxyType({
    "computation": RaggedPart(padding.computation_metrics, {
        "computation": padding.draw_computation, "padding": padding.draw_padding, "memory": padding.draw_memory}),
    "prelude": RaggedPart(prelude_metrics, {"prelude": draw_prelude}),
    "hoisting": RaggedPart(hoisting_metrics, {"hoisting": draw_hoisting}),
    "storage": RaggedPart(storage_metrics, {"storage": draw_storage}),
    "splitting": RaggedPart(padding.splitting_metrics, {"splitting": padding.draw_splitting}),
    "pad_fusion": RaggedPart(padding.pad_fusion_metrics, {
        "pad_fusion": padding.draw_pad_fusion}),
    "breakdown": RaggedPart(ragged.breakdown_metrics, {"breakdown": ragged.draw_breakdown}),
})
"""In the order of the paper's arguments."""
