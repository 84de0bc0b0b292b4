"""Whole encoders of texts: speedups, tokens per second, and what padding costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.report.figures import figure, save, set_ticks
from sparloom.report.runs import grouped_bounds

OWN, OWN_TEXTS, TEXTS = "sparloom", "sentence_transformers_packed", "sentence_transformers"
LABELS: Mapping[str, tuple[str, str]] = {  # method -> name in tables and figures, colour
    OWN: ("sparloom", "#c44e52"), "sparloom_padded": ("sparloom, given padded batches", "#e6a3a5"),
    OWN_TEXTS: ("sentence-transformers, packed", "#dd8452"), TEXTS: ("sentence-transformers", "#8c8c8c"),
    "torch": ("transformers", "#4c72b0"), "torch_compiled": ("transformers, compiled", "#7ea3d8"),
    "ctranslate2": ("CTranslate2", "#55a868"), "ctranslate2_avx512": ("CTranslate2, AVX-512 forced", "#93cfa1"),
    "onnxruntime": ("ONNX Runtime", "#8172b3"), "openvino": ("OpenVINO", "#937860"),
    "sparloom_bfloat16": ("sparloom, bfloat16", "#a02c30"), "torch_bfloat16": ("transformers, bfloat16", "#2f4f80"),
    "openvino_bfloat16": ("OpenVINO, bfloat16", "#6b5a45"), "sparloom_int8": ("sparloom, int8", "#6d1a1d"),
    "torch_int8": ("transformers, int8", "#1d3354"), "ctranslate2_int8": ("CTranslate2, int8", "#2f6b3c"),
    "onnxruntime_int8": ("ONNX Runtime, int8", "#574a80"),
}
PRECISIONS = ("bfloat16", "int8")  # that the last part of a method's name may say
KEYS = ["model", "data", "size"]
PADDING_TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 4)


def precision_of(method: str) -> str:
    """Return the precision in which a method multiplies."""
    last = method.rpartition("_")[2]
    return last if last in PRECISIONS else "float32"


def encoder_metrics(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce times of encoders to ratios.

    Args:
        frame: per_case.parquet of `bench_encoders`: a row for each part, model, data set, batch size and method.
        seed: of the bootstrap over data sets.

    Returns:
        `<model>/<size>/<ratio>` and `<model>/<ratio>`: geometric means over data sets, with 95 % bounds `_low` and
        `_high` and the least, `_min`. Ratios: `over_<method>`; `over_best`, the fastest method of other libraries in
        each case; `packed/over_sentence_transformers`, both given texts; `share_of_products`, the seconds that products
        of matrices alone would take at the peak rate of this machine, over those of sparloom. All of these are of
        float32. `<precision>/over_<method>`, `<precision>/over_best`: the same for methods in bfloat16 and int8;
        `<precision>/over_float32`: over sparloom in float32. `<model>/<precision>/cosine_min`: the least cosine of a
        vector of sparloom to that of float64.
        `<model>/memory/over_<method>`: bytes beyond those in use before a call; `<model>/memory/packed_weights`: those
        of packed weights, which are in use before; `<model>/training/over_<method>`: seconds of a step.
        `<model>/start/pack_seconds`; `<model>/start/cached_seconds`, with the least and the largest, and
        `<model>/start/uncached_seconds`: seconds of the first call beyond a later one, with and without compiled
        kernels on disk. Nothing without rows of sparloom.
    """
    if OWN not in set(frame["method"]):
        return {}
    found = _memory_metrics(frame[frame["part"] == "memory"], seed=seed)
    training = _pivot(frame[frame["part"] == "training"], "median")
    for name in training.columns.difference([OWN]) if OWN in training else ():
        found |= _by_model(f"training/over_{name}", training[name] / training[OWN], seed=seed)
    for row in frame[frame["part"] == "start"].dropna(subset="median").itertuples():
        found |= {f"{row.model}/start/{name}": float(value) for name, value in {
            "pack_seconds": row.pack_seconds, "uncached_seconds": row.uncached_seconds, "cached_seconds": row.median,
            "cached_seconds_min": min(row.seconds), "cached_seconds_max": max(row.seconds)}.items()}
    return found | _inference_metrics(frame[frame["part"] == "inference"], seed=seed)


def _pivot(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    return frame.pivot(index=KEYS, columns="method", values=column).astype(float)


def _by_model(key: str, ratio: pd.Series, *, seed: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for model, of_model in ratio.groupby(level="model"):
        found |= grouped_bounds(f"{model}/{key}", of_model, level="data", seed=seed)
    return found


def _memory_metrics(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    peaks, found = _pivot(frame, "peak_bytes"), {}
    for name in peaks.columns.difference([OWN]) if OWN in peaks else ():
        found |= _by_model(f"memory/over_{name}", peaks[name] / peaks[OWN], seed=seed)
    packed = frame[frame["method"] == OWN].groupby("model")["packed_bytes"].max()
    return found | {f"{model}/memory/packed_weights": float(value) for model, value in packed.items()}


def _inference_metrics(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    seconds = _pivot(frame, "median")
    if OWN not in seconds:
        return {}
    own = seconds[OWN]
    others = seconds[[name for name in seconds if precision_of(name) == "float32"
                      and name not in (OWN, "sparloom_padded", OWN_TEXTS)]]
    ratios = {f"over_{name}": others[name] / own for name in others}
    if others.shape[1]:
        ratios["over_best"] = others.min(axis=1) / own
    if {TEXTS, OWN_TEXTS} <= set(seconds):
        ratios["packed/over_sentence_transformers"] = seconds[TEXTS] / seconds[OWN_TEXTS]
    ratios["share_of_products"] = frame.groupby(KEYS)["products_seconds"].first() / own
    found: dict[str, float] = {}
    for precision in (each for each in PRECISIONS if f"{OWN}_{each}" in seconds):
        narrow = seconds[f"{OWN}_{precision}"]
        ratios[f"{precision}/over_float32"] = own / narrow
        peers = seconds[[name for name in seconds if precision_of(name) == precision and name != narrow.name]]
        ratios |= {f"{precision}/over_{name.removesuffix(f'_{precision}')}": peers[name] / narrow for name in peers}
        if peers.shape[1]:
            ratios[f"{precision}/over_best"] = peers.min(axis=1) / narrow
        cosines = frame[frame["method"] == narrow.name].groupby("model")["cosine"].min()
        found |= {f"{model}/{precision}/cosine_min": float(value) for model, value in cosines.items()}
    for name, ratio in ratios.items():
        found |= _by_model(name, ratio, seed=seed)
        for size, of_size in ratio.groupby(level="size"):
            found |= _by_model(f"{size}/{name}", of_size, seed=seed)
    return found


def draw_encoders(frame: pd.DataFrame, model: str, stem: Path) -> None:
    """Draw tokens per second over the batch size, and seconds relative to sparloom over the share of padding.

    Of methods in bfloat16 and int8, only sparloom's are drawn, and on the left.
    """
    rows = frame[(frame["part"] == "inference") & (frame["model"] == model) & frame["median"].notna()]
    drawn, (rates, padding) = figure(9.0, 4.8, columns=2)
    for method, (label, colour) in LABELS.items():
        own = rows[rows["method"] == method]
        narrow = precision_of(method) != "float32"
        if own.empty or (narrow and not method.startswith(OWN)):
            continue
        logs = np.log((own["tokens"] / own["median"]).astype(float)).groupby(own["size"]).mean()
        rates.plot(logs.index, np.exp(logs), "o-", color=colour, label=label, markersize=4)
        if narrow or method == OWN:
            continue
        best = rows[rows["method"] == OWN].set_index(KEYS)["median"]
        ratio = own.set_index(KEYS)["median"] / best
        share = 1 - own.set_index(KEYS)["tokens"] / own.set_index(KEYS)["padded"]
        padding.plot(share, ratio, "o", color=colour, markersize=4)
    rates.set_xscale("log", base=2)
    rates.set_yscale("log")
    rates.set(xlabel="sequences of a batch", ylabel="tokens per second", title=model)
    padding.set_yscale("log")
    padding.axhline(1, color=LABELS[OWN][1])
    set_ticks(padding.yaxis, PADDING_TICKS)
    padding.set(xlabel="share of padding in the batch", ylabel="seconds / seconds of sparloom")
    save(drawn, stem, legend=True, columns=3, fontsize=9)
