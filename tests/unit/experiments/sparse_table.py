"""Generated sample table of SpMM: kernels of the real spaces on small patterns, seconds from a formula with noise."""

from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.data import Sample, SampleTable, Split, write_statistics
from sparloom.space import Config, SpmmSpace
from sparloom.sparse import Pattern, statistics


def patterns(count: int) -> dict[str, Pattern]:
    """Make bands with even rows, rows of geometric lengths, and one empty pattern."""
    found = {}
    for place in range(count):
        rng = np.random.default_rng(place)
        size = int(rng.integers(80, 300))
        if place % 2:
            rows, cols = np.minimum(rng.geometric(0.05, 1500) - 1, size - 1), rng.integers(0, size, 1500)
        else:
            rows = np.repeat(np.arange(size), 4)
            cols = np.minimum(rows + np.tile(np.arange(4), size), size - 1)
        found[f"made/{'uneven' if place % 2 else 'band'}{place}"] = Pattern.from_coo(rows, cols, (size, size))
    return found | {"made/empty": Pattern.from_coo([], [], (5, 5))}


def formula(pattern: Pattern, width: int, config: Config) -> float:
    """Return seconds: work, increased by shares of uneven rows, by strips and by too distant prefetching."""
    lengths = pattern.row_lengths()
    uneven = lengths.std() / max(1.0, lengths.mean())
    factor = 1 + (0.5 * uneven if config["balance"] == "rows" else 0.2 / (1 + uneven))
    factor *= 1.2 if config["strip"] == 64 else 1.0
    factor *= 1 + 0.02 * int(config["prefetch"]) * (1 if width > 64 else -0.5)
    factor *= 0.9 if config["stream"] and width > 64 else 1.0
    return (pattern.nnz * width * 1e-10 + pattern.rows * 1e-8 + 1e-6) * factor


def write_spmm_table(data: Path, count: int, *, widths: tuple[int, ...] = (32, 128), noise: float = 0.01) -> None:
    """Write two sweeps, the split and the statistics for `StoredSamples`."""
    rng, made = np.random.default_rng(0), patterns(count)
    conditions = {"op": "spmm", "platform": "cpu_kernels", "preset": "t2", "cpu_seconds": (), "kind": "wall",
                  "failure": None, "stolen": False, "machine": "formula", "commit": "",
                  "started": "2000-01-01T00:00:00Z"}
    samples = [
        Sample(matrix=name, width=width, config=config.key, round=sweep,
               seconds=(float(formula(pattern, width, config) * np.exp(noise * rng.standard_normal())),), **conditions)
        for name, pattern in made.items() for width in widths for config in SpmmSpace(width) for sweep in range(2)]
    SampleTable.of(samples, [{"origin": "formula"}]).write(data / "samples" / "cpu_kernels_spmm.parquet")
    numbers = pd.DataFrame.from_dict({name: statistics(pattern) for name, pattern in made.items()}, orient="index")
    write_statistics(data / "statistics" / "statistics.parquet", numbers.rename_axis("matrix"))
    roles = {name: ("train", "train", "validation", "test")[place % 4] for place, name in enumerate(made)}
    Split(roles, {name: name for name in made}).write(data / "split.csv")
