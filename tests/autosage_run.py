"""A made-up run of `bench_autosage`: every case of AutoSAGE's tables, with seconds that follow simple rules."""

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from sparloom.report import autosage_decisions, autosage_metrics

GRAPHS = ("erdos_renyi", "hub_skew", "hub_split", "reddit_like", "products_like")
SHARES = (0.005, 0.02, 0.03, 0.05, 0.2)
DEFAULT, GOOD, BAD = "balance=nonzeros", "balance=dynamic", "balance=rows"
SECONDS = {"vendor": 4e-3, DEFAULT: 2e-3, GOOD: 1e-3, BAD: 5e-3}
ROLES = {"vendor": "vendor", DEFAULT: "default", GOOD: "candidate", BAD: "candidate"}
HUBS = {"hub_never": 3e-3, "hub_q99": 2.5e-3, "hub_q95": 2.2e-3, "hub_q90": 2.1e-3, "hub_always": 2e-3}


def cases() -> Iterator[tuple[str, str, int]]:
    for graph in GRAPHS:
        for op in ("spmm", "sddmm", "attention"):
            widths = (128,) if graph == "hub_split" else (64, 128) if op == "attention" else (64, 128, 256)
            if (graph, op) == ("products_like", "spmm"):
                widths = (32, 64, 128, 256, 512)
            for width in widths:
                yield op, graph, width


def frames(*, subgraph: float = 1.0) -> dict[str, pd.DataFrame]:
    """Make the stored tables.

    Args:
        subgraph: factor of the bad candidate's seconds on subgraphs; below 0.2 it wins there.
    """
    whole, probes, tuned = [], [], []
    for op, graph, width in cases():
        known = {"op": op, "matrix": graph, "width": width, "scale": 0.5, "rows": 1000.0, "nnz": 9000.0}
        seconds = {**SECONDS, **(HUBS if width == 128 and graph in ("hub_split", "hub_skew", "reddit_like") else {})}
        if op == "spmm" and graph == "erdos_renyi":
            seconds["vectors_4"] = 3e-3
        whole += [{**known, "method": name, "role": ROLES.get(name, name.partition("_")[0]), "seconds": [taken] * 4}
                  for name, taken in seconds.items()]
        for sample in ("subgraph", "rows"):
            for share in SHARES:
                of = {name: share * taken * (subgraph if (sample, name) == ("subgraph", BAD) else 1.0)
                      for name, taken in seconds.items() if name != "vectors_4"}
                probes += [{**known, "sample": sample, "share": share, "method": name, "best": taken, "iterations": 7,
                            "elapsed": 8 * taken, "drawing": 1e-4, "sampled_rows": 500, "sampled_nnz": 5000}
                           for name, taken in of.items()]
        tuned.append({**known, "choice": GOOD, "first_seconds": 6e-3, "call_seconds": 1e-3, "beyond_seconds": 8e-3})
    return {"whole": pd.DataFrame(whole), "probes": pd.DataFrame(probes), "tuned": pd.DataFrame(tuned)}


def write_run(folder: Path) -> dict[str, float]:
    """Write a finished run to a folder; return its metrics."""
    folder.mkdir(parents=True)
    tables = frames()
    decisions = autosage_decisions(**tables, cap_seconds=1.0)
    for name, frame in {**tables, "decisions": decisions}.items():
        frame.to_parquet(folder / f"{name}.parquet")
    metrics = autosage_metrics(decisions, tables["whole"], seed=0)
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    (folder / "command.txt").write_text("python run.py experiment=bench_autosage\n", encoding="utf-8")
    return metrics
