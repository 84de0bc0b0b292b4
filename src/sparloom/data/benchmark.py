"""The benchmark set: simulated seconds and estimated joules of all configurations as Parquet files; tuning problems.

    configs.parquet                      one row per configuration: its key and the values of its parameters
    matrices.parquet                     one row per matrix: family, role, pattern statistics
    designs.parquet                      one row per design of the accelerator: parameters of the machine
    labels_<operation>_<design>.parquet  one row per matrix and configuration: seconds, events, joules
    README.md                            columns, units, sources

`load_benchmark` reads them; `Benchmark.problem` makes a `TuningProblem`, which tuners solve. pandas.read_parquet opens
every file, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from sparloom.data.files import read_frame, write_frame
from sparloom.data.sample import checked_seconds
from sparloom.errors import SchemaError
from sparloom.space import Config

REMEDY = "export it again (experiment=export_benchmark)"
LabelsOn = Literal["train", "judged"]
"""Where a tuner may take labels: on training matrices, counted in total, or on each judged matrix."""


@dataclass(frozen=True)
class DesignLabels:
    """Labels of one operation on one design.

    Args:
        matrices: names, in the order of the rows.
        seconds: (matrices, configs), simulated.
        joules: (matrices, configs), estimated: counts of events times published energies; None: not exported.
        events: event -> (matrices, configs), counts of a whole run; empty: not exported.
    """

    matrices: tuple[str, ...]
    seconds: Float[np.ndarray, "matrices configs"]
    joules: Float[np.ndarray, "matrices configs"] | None
    events: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Benchmark:
    """A loaded benchmark set.

    Args:
        configs: index config, 0 to 255; columns key, default (the configuration that speedups are relative to), and
            the parameters as numbers; column_panel 0 stands for all columns.
        matrices: index matrix; columns family, role ("train", "validation" or "test": frozen, all matrices of a family
            have one role), then pattern statistics.
        designs: index design; parameters of the machine.
        labels: (operation, design) -> its labels.
    """

    configs: pd.DataFrame
    matrices: pd.DataFrame
    designs: pd.DataFrame
    labels: Mapping[tuple[str, str], DesignLabels]

    def problem(
        self, op: str, design: str, *, budget: int, labels_on: LabelsOn, role: str = "test", joules: bool = False,
    ) -> "TuningProblem":
        """Make the problem of choosing a configuration for every matrix of a role.

        Args:
            joules: labels are estimated joules, not simulated seconds.

        Raises:
            KeyError: the operation or design was not loaded, or has no joules.
        """
        if (op, design) not in self.labels:
            raise KeyError(f"no labels of {op} on {design}: loaded are "
                           f"{', '.join(' on '.join(each) for each in self.labels)}")
        found = self.labels[op, design]
        if joules and found.joules is None:
            raise KeyError(f"no joules of {op} on {design}: export them with task.energies")
        values = dict(zip(found.matrices, found.joules if joules else found.seconds, strict=True))
        roles = self.matrices["role"].reindex(list(found.matrices))
        return TuningProblem(
            configs=self.configs.drop(columns=["key", "default"]), default=int(self.configs["default"].argmax()),
            statistics=self.matrices.drop(columns=["family", "role"]), labels=values,
            train=tuple(roles.index[roles == "train"]), judged=tuple(roles.index[roles == role]), budget=budget,
            labels_on=labels_on)


def load_benchmark(
    folder: Path | str, *, ops: Sequence[str] | None = None, designs: Sequence[str] | None = None,
) -> Benchmark:
    """Load a folder that experiment=export_benchmark has written.

    Args:
        ops, designs: what to load; None: everything.

    Raises:
        FileNotFoundError: there is no such set, operation or design.
        SchemaError: a file is damaged, or a matrix lacks configurations.
    """
    root, labels = Path(folder), {}
    if not (root / "configs.parquet").is_file():
        raise FileNotFoundError(f"{root} is no benchmark set (there is no configs.parquet): make one by "
                                "experiment=export_benchmark")
    configs, matrices, machines = (read_frame(root / f"{name}.parquet", REMEDY)
                                   for name in ("configs", "matrices", "designs"))
    for design in designs or machines.index:
        named = sorted(path.name for path in root.glob(f"labels_*_{design}.parquet"))
        if not named:
            raise FileNotFoundError(f"{root} has no labels of design {design}: designs are {', '.join(machines.index)}")
        for op in ops or [name.removeprefix("labels_").removesuffix(f"_{design}.parquet") for name in named]:
            path = labels_path(root, op, design)
            frame = read_frame(path, REMEDY)
            names = tuple(frame["matrix"].astype(str).iloc[::len(configs)])
            if not np.array_equal(frame["config"], np.tile(configs.index, len(names))):
                raise SchemaError(f"{path}: a matrix lacks configurations: {REMEDY}")
            tables = {name: frame[name].to_numpy().reshape(len(names), -1) for name in frame.columns[2:]}
            seconds = tables.pop("simulated_seconds").astype(np.float64)
            labels[op, design] = DesignLabels(names, seconds, tables.pop("estimated_joules", None), tables)
    return Benchmark(configs, matrices, machines, labels)


def labels_path(folder: Path, op: str, design: str) -> Path:
    """Return the file of the labels of one operation on one design."""
    return folder / f"labels_{op}_{design}.parquet"


def describe_configs(configs: Sequence[Config], default: Config) -> pd.DataFrame:
    """Tabulate configurations as `Benchmark.configs`; the value "all" becomes 0."""
    rows = [{"key": config.key, "default": config == default,
             **{name: 0 if value == "all" else value for name, value in config.values}} for config in configs]
    return pd.DataFrame(rows).rename_axis("config")


def write_labels(
    path: Path, matrices: Sequence[str], seconds: Float[np.ndarray, "matrices configs"],
    events: Mapping[str, np.ndarray], joules: Float[np.ndarray, "matrices configs"] | None,
) -> None:
    """Write the labels of one operation on one design; seconds and joules become float32, as in sample tables."""
    count = seconds.shape[1]
    frame = pd.DataFrame({
        "matrix": pd.Categorical(np.repeat(list(matrices), count), categories=list(matrices)),
        "config": np.tile(np.arange(count, dtype=np.int16), len(matrices)),
        "simulated_seconds": seconds.astype(np.float32).ravel(),
        **{name: values.astype(np.int64).ravel() for name, values in events.items()},
        **({} if joules is None else {"estimated_joules": joules.astype(np.float32).ravel()}),
    })
    write_frame(path, frame)


@dataclass
class TuningProblem:
    """Choose a configuration for every judged matrix; evaluations, which give labels, are counted.

    Repeating one costs nothing. `budget` counts labels on all training matrices together, or on each judged matrix, as
    `labels_on` says; other matrices may not be evaluated.

    Args:
        configs: (configs, parameters), numbers, one row per configuration, index 0, 1, ...
        default: the configuration that speedups are relative to.
        statistics: (matrices, statistics) of training and judged matrices.
        labels: matrix -> (configs,), what `evaluate` returns.
        train, judged: names of the matrices to learn from and to choose for.
    """

    configs: pd.DataFrame
    default: int
    statistics: pd.DataFrame
    labels: Mapping[str, np.ndarray] = field(repr=False)
    train: tuple[str, ...]
    judged: tuple[str, ...]
    budget: int
    labels_on: LabelsOn
    evaluated: dict[str, list[int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.labels_on not in ("train", "judged"):
            raise ValueError(f"labels_on={self.labels_on!r} is unknown: use train or judged")
        if self.budget < 0:
            raise ValueError(f"budget={self.budget} is negative: give a number of labels")
        self.evaluated = {name: [] for name in (self.train if self.labels_on == "train" else self.judged)}

    def evaluate(self, matrix: str, config: int) -> float:
        """Evaluate a configuration: the seconds (or joules) of a configuration, by number, on a matrix.

        Raises:
            ValueError: the budget is spent, there is no such configuration, this matrix may not be evaluated, or the
                label is not positive and finite.
        """
        if not 0 <= config < len(self.configs):
            raise ValueError(f"there is no configuration {config}: give a number from 0 to {len(self.configs) - 1}")
        if matrix not in self.evaluated:
            raise ValueError(f"{matrix} may not be evaluated: with labels_on={self.labels_on} these may: "
                             f"{len(self.evaluated)} matrices, such as {', '.join(list(self.evaluated)[:3])}")
        if config not in self.evaluated[matrix]:
            if self.left(matrix) < 1:
                where = "training matrices" if self.labels_on == "train" else matrix
                raise ValueError(f"all {self.budget} labels on {where} are spent: return what was chosen with them")
            self.evaluated[matrix].append(config)
        return float(checked_seconds(self.labels[matrix][config], lambda _: f"{matrix}, configuration {config}"))

    def spent(self) -> int:
        """Count the labels that were taken, on all matrices together."""
        return sum(map(len, self.evaluated.values()))

    def left(self, matrix: str) -> int:
        """Count the labels that may still be taken on a matrix."""
        own = len(self.evaluated[matrix])
        return min(self.budget - (self.spent() if self.labels_on == "train" else own), len(self.configs) - own)

    def best_evaluated(self, matrix: str, first: int | None = None) -> int:
        """Return the configuration with the least label among the first that were evaluated on a matrix.

        Without a label it is the default.
        """
        return min(self.evaluated[matrix][:first], key=lambda config: self.labels[matrix][config], default=self.default)


Tuner = Callable[[TuningProblem, int], Mapping[str, int]]
"""Solves a problem with a seed: judged matrix -> number of the chosen configuration."""
