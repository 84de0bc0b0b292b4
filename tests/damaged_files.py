"""Damage the files that sparloom writes, and count what their readers make of them.

    python tests/damaged_files.py                        400 tables and 300 checkpoints
    python tests/damaged_files.py --seed 1 --tables 4000

A file is damaged at one place: a bit is flipped, 64 bytes are zeroed, or the end is cut off. Reading it must give what
was written or one line with the file and the remedy; the script fails if other data are read or another error is
raised.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from sparloom.data import (
    MatrixInput,
    MatrixInputs,
    Sample,
    SampleTable,
    read_frame,
    read_statistics,
    read_walks,
    write_frame,
    write_statistics,
    write_walks,
)
from sparloom.errors import SchemaError
from sparloom.models import Checkpoint, load_checkpoint, save_checkpoint
from sparloom.models.performance import (
    GEMM_FEATURES,
    BoostingConfig,
    Measured,
    Origin,
    PerformanceModel,
    PredictionInterval,
    Target,
    gemm_problems,
    load_interval,
    load_performance,
    save_interval,
    save_performance,
    train_performance,
)
from sparloom.ops import GemmShape
from sparloom.space import GridSpace, Parameter
from sparloom.sparse import WALK_STATISTICS

ZEROED = 64


@dataclass(frozen=True)
class Kept:
    """Something on disk: its files, and how it is read as plain values that can be compared."""

    name: str
    files: tuple[Path, ...]
    read: Callable[[], Any]


def tables(folder: Path, rng: np.random.Generator) -> list[Kept]:
    """Write sample tables, inputs, statistics and the table of a run."""
    samples, inputs = folder / "samples.parquet", folder / "inputs.npz"
    statistics, walks, frame = folder / "statistics.parquet", folder / "walks.parquet", folder / "per_matrix.parquet"
    SampleTable.of(_samples(rng), [{"machine": {"name": "a machine"}, "seed": 0}]).write(samples)
    MatrixInputs.of([_input(f"g/m{place}", rng) for place in range(12)], {"sites": 4096}).write(inputs)
    names = [f"g/m{place}" for place in range(50)]
    write_statistics(statistics, pd.DataFrame(rng.random((50, 9)), names, list("abcdefghi")).rename_axis("matrix"))
    write_walks(walks, {name: {(8, 8, 256): rng.random(len(WALK_STATISTICS)).astype(np.float32)} for name in names})
    write_frame(frame, pd.DataFrame({"matrix": names, "seconds": rng.random(50), "method": ["a", "b"] * 25}))
    return [
        Kept("samples", (samples,), lambda: _table(SampleTable.read(samples))),
        Kept("inputs", (inputs,), lambda: _inputs(MatrixInputs.read(inputs))),
        Kept("statistics", (statistics,), lambda: read_statistics(statistics).to_dict()),
        Kept("walks", (walks,), lambda: {name: {key: row.tolist() for key, row in found.items()}
                                         for name, found in read_walks(walks).items()}),
        Kept("frame", (frame,), lambda: read_frame(frame, "run it again").to_numpy().tolist()),  # names have no CRC
    ]


def checkpoints(folder: Path, rng: np.random.Generator) -> list[Kept]:
    """Write networks, a performance model and an interval of predictions."""
    network, model, interval = folder / "network.pt", folder / "full", folder / "interval"
    weights = {f"layer{place}.weight": torch.as_tensor(rng.random((17, 9)), dtype=torch.float32) for place in range(6)}
    weights["steps"] = torch.tensor(7)
    save_checkpoint(network, Checkpoint("cognate", "spmm", "spade", "abc", {"width": 3}, weights, {"seed": 0}))
    half = folder / "half.pt"
    save_checkpoint(half, Checkpoint("encoder", "spmm", "spade", "abc", {}, weights), precision="float16")
    trained = _trained(rng)
    save_performance(model, trained)
    save_interval(interval, PredictionInterval(trained, trained, 0.25, 0.9))
    return [
        Kept("network", (network,), lambda: _network(load_checkpoint(network))),
        Kept("half", (half,), lambda: _network(load_checkpoint(half))),
        Kept("trees", tuple(sorted(model.iterdir())), lambda: _performance(load_performance(model))),
        Kept("interval", tuple(sorted(path for path in interval.rglob("*") if path.is_file())),
             lambda: _interval(load_interval(interval))),
    ]


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Flip a bit, zero 64 bytes or cut the end off, at a place that is drawn uniformly."""
    kind, place = rng.integers(3), int(rng.integers(len(content)))
    if kind == 0:
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        return bytes(changed)
    if kind == 1:
        return content[:place] + bytes(min(ZEROED, len(content) - place)) + content[place + ZEROED:]
    return content[:place]


def trials(kept: list[Kept], count: int, rng: np.random.Generator) -> Iterator[tuple[str, str, str]]:
    """Damage one file after another: what it is, what came of it ("same", "refused", "other data", "raw error")."""
    expected = {each.name: each.read() for each in kept}
    whole = {path: path.read_bytes() for each in kept for path in each.files}
    for number in range(count):
        each = kept[number % len(kept)]
        path = each.files[int(rng.integers(len(each.files)))]
        path.write_bytes(damaged(whole[path], rng))
        try:
            found = each.read()
        except SchemaError as error:
            text = str(error)
            clear = path.name in text or str(path.parent) in text
            yield each.name, "refused" if clear and "\n" not in text else "raw error", text
        except Exception as error:  # whatever a reader raises is what is counted
            yield each.name, "raw error", f"{type(error).__name__}: {error}"
        else:
            yield each.name, "same" if _equal(found, expected[each.name]) else "other data", str(path)
        finally:
            path.write_bytes(whole[path])


def _equal(found: Any, expected: Any) -> bool:
    return repr(found) == repr(expected)


def _samples(rng: np.random.Generator) -> list[Sample]:
    return [Sample(op="spmm", platform="cpu", preset="two", matrix=f"g/m{place // 40}", width=256,
                   config=f"knob={place % 40}", round=0, seconds=tuple(map(float, rng.random(3) + 1e-3)),
                   cpu_seconds=tuple(map(float, rng.random(3) + 1e-3)), kind="wall", failure=None, stolen=False,
                   machine="a machine", commit="abc", started="2025-01-02T03:04:05Z") for place in range(800)]


def _input(name: str, rng: np.random.Generator) -> MatrixInput:
    places = np.sort(rng.choice(4096, 60, replace=False))
    coords = np.stack([places // 64, places % 64], axis=1).astype(np.int32)
    return MatrixInput(name, coords, rng.integers(1, 9, 60).astype(np.int32), (64, 64), 300, 1, "d" * 8)


def _table(table: SampleTable) -> Any:
    frame = table.frame().astype({"started": str})
    frame["seconds"], frame["cpu_seconds"] = frame["seconds"].map(list), frame["cpu_seconds"].map(list)
    return frame.astype(object).to_dict("list"), table.provenance


def _inputs(inputs: MatrixInputs) -> Any:
    return [(each.name, each.coords.tolist(), each.counts.tolist(), each.shape, each.nnz, each.quantum, each.digest)
            for each in inputs], inputs.conditions


def _network(stored: Checkpoint) -> Any:
    weights = {name: value.tolist() for name, value in sorted(stored.weights.items())}
    return weights, {name: value for name, value in vars(stored).items() if name != "weights"}


def _performance(model: PerformanceModel) -> Any:
    return ([member.model_to_string() for member in model.members], model.spec.record(), asdict(model.target),
            asdict(model.origin), model.names, json.dumps(model.folds), json.dumps(model.lineage))


def _interval(interval: PredictionInterval) -> Any:
    return _performance(interval.low), _performance(interval.high), interval.margin, interval.coverage


def _trained(rng: np.random.Generator) -> PerformanceModel:
    space = GridSpace(name="cpu_kernels", op="gemm", defaults=(96, 256, "8x32", "b", 1, 1, 0, "blocked"), parameters=(
        Parameter("tile_m", (16, 96)), Parameter("tile_k", (256,)),
        Parameter("micro", ("1x32", "8x32")), Parameter("pack", ("b",)), Parameter("unroll", (1,)),
        Parameter("split_k", (1,)), Parameter("prefetch", (0,)), Parameter("loop", ("blocked",))))
    shapes = [GemmShape(*map(int, sizes)) for sizes in np.exp2(rng.uniform(1, 9, (20, 3)))]
    machine = {"l1_bytes": 2.0**15, "l2_bytes": 2.0**20, "l3_bytes": 2.0**25}
    columns = gemm_problems(shapes) | {name: np.full(len(shapes), value) for name, value in machine.items()}
    names = tuple(f"{shape.matrix} {shape.n}" for shape in shapes)
    seconds = rng.random((len(shapes), len(tuple(space)), 1))[..., 0] + 1e-3
    growth = BoostingConfig(
        trees=5, patience=5, leaves=7, depth=-1, rows_per_leaf=3, learning_rate=0.15, lasso=0.0, ridge=1.0,
        row_share=0.8, column_share=0.8, bins=255, threads=1, seed=0)
    return train_performance(Measured(columns, names, tuple(space), seconds), spec=GEMM_FEATURES,
                             target=Target("throughput", "log1p"), growth=growth, folds=3,
                             origin=Origin("cpu_kernels", "t1", space.digest(), machine))


def main() -> int:
    """Run from the command line; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tables", type=int, default=400)
    parser.add_argument("--checkpoints", type=int, default=300)
    given = parser.parse_args()
    wrong = 0
    for title, make, count in (("tables", tables, given.tables), ("checkpoints", checkpoints, given.checkpoints)):
        rng = np.random.default_rng([given.seed, count])
        with tempfile.TemporaryDirectory(prefix="sparloom-damaged-") as folder:
            kept = make(Path(folder), rng)
            found = list(trials(kept, count, rng))
        for name, outcome, text in found:
            if outcome in ("other data", "raw error"):
                sys.stderr.write(f"{name}: {outcome}: {text[:200]}\n")
        counts = Counter(outcome for _, outcome, _ in found)
        wrong += counts["other data"] + counts["raw error"]
        listed = ", ".join(f"{counts[name]} {name}" for name in ("refused", "same", "other data", "raw error"))
        sys.stdout.write(f"{count} damaged {title}, seed {given.seed}: {listed}\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
