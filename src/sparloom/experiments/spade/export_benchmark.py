"""Export all labels of SPADE as one documented set of Parquet files, with energies, for others to tune on."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from sparloom.data import (
    Conditions,
    SampleSource,
    describe_configs,
    labels_path,
    read_frame,
    write_frame,
    write_labels,
)
from sparloom.errors import SchemaError
from sparloom.experiments.harness import commit, run_jobs, samples_of
from sparloom.files import write_text
from sparloom.ops import Op
from sparloom.space import Config
from sparloom.sparse import Corpus

if TYPE_CHECKING:
    from sparloom.platforms import SpadePlatform
    from sparloom.platforms.spade import Machine

logger = logging.getLogger(__name__)
TOLERANCE = 1e-6  # relative; stored seconds are float32
REMEDY = "it is simulated again"


@dataclass(frozen=True)
class SimulatedEvents:
    """Cache simulated seconds and events (level T1), one file per matrix, operation and machine.

    The path of a file depends on the operation, its configurations, the width, all parameters of the machine, the
    version of the simulator, the events and the content of the pattern, so that an interrupted export continues.

    Args:
        width: columns of the dense operands.
    """

    folder: Path
    width: int

    def complete(
        self, corpus: Corpus, name: str, configs: Mapping[str, Sequence[Config]], machines: Sequence["Machine"],
    ) -> dict[tuple[str, int], Path]:
        """Simulate what a matrix lacks; return (operation, position of the machine) -> file.

        Each file has one row per configuration: simulated_seconds, then the columns of `EVENTS`.
        """
        from sparloom.platforms.spade import EVENTS, simulate_events

        pattern = corpus.load(name).pattern
        paths = {(op, place): self.path(op, configs[op], machine, pattern.digest())
                 for op in configs for place, machine in enumerate(machines)}
        lacking = {key: path for key, path in paths.items() if not _is_whole(path)}
        if not lacking:
            return paths
        places = sorted({place for _, place in lacking})
        ops = {op: configs[op] for op in configs if any(op == each for each, _ in lacking)}
        found = simulate_events(pattern, ops, width=self.width, machines=[machines[place] for place in places])
        for op, place in lacking:
            seconds, events = (values[places.index(place)] for values in found[op])
            write_frame(paths[op, place], pd.DataFrame({"simulated_seconds": seconds, **dict(zip(EVENTS, events.T,
                                                                                                 strict=True))}))
        return paths

    def path(self, op: str, configs: Sequence[Config], machine: "Machine", pattern: str) -> Path:
        """Return the file of a pattern, given by its digest."""
        from sparloom.platforms.spade import EVENTS, simulator_digest

        made = {"machine": asdict(machine), "width": self.width, "simulator": simulator_digest(), "events": EVENTS,
                "configs": [config.key for config in configs]}
        return self.folder / f"{op}-{Conditions(made).digest}" / f"{pattern[:24]}.parquet"


def _is_whole(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        read_frame(path, REMEDY)
    except SchemaError as error:
        logger.warning("%s", error)
        return False
    return True


@dataclass(frozen=True)
class ExportBenchmark:
    """Write labels of matrices x operations x configurations x designs, with statistics, split and a description.

    Seconds of the target's own design are those of the stored samples, or simulated again if events are. Both must
    agree, except for reorder=1: stored samples are older than the rule for ties (docs/readings.md).

    Args:
        ops: operations.
        target: the baseline design, at level T1; others differ from it in the parameters of the grid only.
        designs: "base": the target alone; "grid": also all other combinations of the grid.
        grid: parameter of the machine -> values, low before high.
        energies: picojoules (event -> energy per event) and source (text); None: no events, no energies, and nothing to
            simulate for the target.
        matrices: about this number of matrices, of each role in proportion, evenly by nonzeros; None: all.
        jobs: processes that simulate, one matrix each.
        kept: folder in which simulated seconds and events are cached.
    """

    ops: Sequence[Op]
    target: "SpadePlatform"
    corpus: Corpus
    samples: SampleSource
    designs: Literal["base", "grid"]
    grid: Mapping[str, Sequence[float]]
    energies: Mapping[str, Any] | None
    matrices: int | None
    width: int
    jobs: int
    kept: str

    def run(self, out: Path) -> Mapping[str, float]:
        """Write the set to `out`; return its size, and the seconds that simulating took."""
        began = time.monotonic()
        if self.designs not in ("base", "grid"):
            raise ValueError(f"task.designs={self.designs} is unknown: use base or grid")
        if self.energies is not None:
            from sparloom.platforms.spade import EVENTS, estimate_joules

            estimate_joules(np.zeros((0, len(EVENTS))), self.energies["picojoules"])  # refuses a wrong table at once
        names = self.names
        files = self._simulate(names) if self._simulated else {}
        simulated = time.monotonic() - began
        rows = 0
        for op in self.ops:
            for place, design in enumerate(self.machines):
                seconds, events, joules = self._labels(op, place, names, files)
                write_labels(labels_path(out, op.name, design), names, seconds, events, joules)
                rows += seconds.size
        self._write_tables(out, names)
        write_text(out / "README.md", describe(self, rows))
        size = sum(path.stat().st_size for path in (*out.glob("*.parquet"), out / "README.md"))
        logger.info("%s: %d labels, %.1f MB", out, rows, size / 1e6)
        return {"labels": rows, "matrices": len(names), "operations": len(self.ops),
                "configurations": len(self.configs), "designs": len(self.machines), "bytes": size,
                "simulation_seconds": simulated if files else 0.0,
                "nonzeros": int(self.samples.statistics().loc[names, "nnz"].sum()), "seconds": time.monotonic() - began}

    @cached_property
    def machines(self) -> Mapping[str, "Machine"]:
        """Name of each design -> its machine; the target's comes first and is named by its preset."""
        from sparloom.platforms.spade import designs

        base = self.target.machine
        made = designs(base, self.grid, width=self.width) if self.designs == "grid" else {}
        return {self.target.preset: base, **{name: machine for name, machine in made.items() if machine != base}}

    @cached_property
    def configs(self) -> list[Config]:
        return list(self.target.space(self.ops[0]))

    @cached_property
    def names(self) -> list[str]:
        """Matrices with samples of all operations, sorted; with a limit, of each role in proportion."""
        tables = [samples_of(self.samples, self.target, op).matrices for op in self.ops]
        roles, sizes = self.samples.split(), self.samples.statistics()["nnz"]
        known = sorted(set(tables[0]).intersection(*tables[1:]) & set(roles) & set(sizes.index))
        if self.matrices is None or self.matrices >= len(known):
            return known
        if self.matrices < 1:
            raise ValueError(f"task.matrices={self.matrices}: give a number of at least 1, or null for all")
        chosen: list[str] = []
        for role in ("train", "validation", "test"):
            pool = sorted((name for name in known if roles[name] == role), key=lambda name: (sizes[name], name))
            count = max(1, round(self.matrices * len(pool) / len(known))) if pool else 0
            chosen += [pool[(2 * place + 1) * len(pool) // (2 * count)] for place in range(count)]
        return sorted(chosen)

    @property
    def _simulated(self) -> Sequence[str]:
        """Designs of which traces are needed."""
        return [name for name in self.machines if self.energies is not None or name != self.target.preset]

    def simulate(self, name: str) -> dict[tuple[str, str], Path]:
        """Simulate one matrix; return (operation, design) -> file of its seconds and events."""
        chosen = {design: self.machines[design] for design in self._simulated}
        configs = {op.name: list(self.target.space(op)) for op in self.ops}
        made = SimulatedEvents(Path(self.kept), self.width).complete(self.corpus, name, configs, list(chosen.values()))
        return {(op, list(chosen)[place]): path for (op, place), path in made.items()}

    def _simulate(self, names: Sequence[str]) -> dict[tuple[str, str, str], Path]:
        """Simulate all matrices: (matrix, operation, design) -> file."""
        sizes = self.samples.statistics()["nnz"]
        files = {}
        for name, made in run_jobs(self.simulate, {name: name for name in names},
                                   weights={name: float(sizes[name] + 1) for name in names}, processes=self.jobs,
                                   description="benchmark", unit="matrices"):
            files |= {(name, *key): path for key, path in made.items()}
        return files

    def _labels(
        self, op: Op, place: int, names: Sequence[str], files: Mapping[tuple[str, str, str], Path],
    ) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray | None]:
        """Return seconds, events by name, and joules of one operation on one design, (matrices, configs) each."""
        from sparloom.platforms.spade import EVENTS, estimate_joules

        design = list(self.machines)[place]
        frames = [read_frame(files[name, op.name, design], REMEDY) for name in names
                  if (name, op.name, design) in files]
        stored = self._stored(op, names) if design == self.target.preset else None
        seconds = np.stack([frame["simulated_seconds"] for frame in frames]) if frames else stored
        if stored is not None:
            self._compare(seconds, stored, names, op.name)
        if self.energies is None:
            return seconds, {}, None
        events = np.stack([frame[list(EVENTS)].to_numpy() for frame in frames])
        joules = estimate_joules(events, self.energies["picojoules"])
        return seconds, {name: events[..., column] for column, name in enumerate(EVENTS)}, joules

    def _compare(self, seconds: np.ndarray, stored: np.ndarray, names: Sequence[str], op: str) -> None:
        """Refuse stored seconds that are not reproduced; warn how many matrices are now reordered differently."""
        reordered = np.array(["reorder" in config.names and bool(config["reorder"]) for config in self.configs])
        apart = np.abs(seconds / stored - 1)
        others = apart[:, ~reordered].max(axis=1, initial=0)
        if others.max() > TOLERANCE:
            raise ValueError(f"stored seconds of {op} on {names[int(others.argmax())]} differ from simulated ones by "
                             f"{others.max():.2g}: they were made by another simulator, so collect them again "
                             "(experiment=collect_spade), or export without energies (task.energies=null)")
        changed = apart.max(axis=1) > TOLERANCE
        if changed.any():
            logger.warning("%s: %d of %d matrices have another order than in the stored samples, so seconds of "
                           "reordered configurations differ by up to %.2g; simulated ones are exported", op,
                           changed.sum(), len(names), apart.max())

    def _stored(self, op: Op, names: Sequence[str]) -> np.ndarray:
        labels = samples_of(self.samples, self.target, op).labels()
        table = labels.pivot(index="matrix", columns="config", values="seconds")
        table = table.reindex(index=list(names), columns=[config.key for config in self.configs])
        gaps = table.isna().sum(axis=1)
        if gaps.any():
            raise ValueError(f"{gaps.idxmax()} has stored samples of only {table.shape[1] - int(gaps.max())} of "
                             f"{table.shape[1]} configurations: collect them with task.configs=all")
        return table.to_numpy(np.float64)

    def _write_tables(self, root: Path, names: Sequence[str]) -> None:
        roles, families = self.samples.split(), self.samples.families()
        statistics = self.samples.statistics().loc[list(names)]
        about = pd.DataFrame({"family": [families.get(name, name) for name in names],
                              "role": [roles[name] for name in names]}, index=statistics.index)
        default = self.target.space(self.ops[0]).default()
        machines = pd.DataFrame([asdict(machine) for machine in self.machines.values()],
                                pd.Index(list(self.machines), name="design"))
        for name, frame in (("configs", describe_configs(self.configs, default)), ("designs", machines),
                            ("matrices", pd.concat([about, statistics], axis=1).rename_axis("matrix"))):
            write_frame(root / f"{name}.parquet", frame)


def describe(task: ExportBenchmark, rows: int) -> str:
    """Write the README of a set: contents, columns, units, sources."""
    return "\n".join(_lines(task, rows)) + "\n"


def _lines(task: ExportBenchmark, rows: int) -> Iterator[str]:
    ops = ", ".join(op.name for op in task.ops)
    yield from (
        "# SPADE benchmark set", "",
        f"{rows:,} labels: {len(task.names)} matrices x {len(task.ops)} operations "
        f"({ops}) x {len(task.configs)} configurations x {len(task.machines)} designs "
        "of the SPADE accelerator.", "",
        f"Times are **simulated** (sparloom's simulator of SPADE, level T1, dense operands of {task.width} columns, "
        f"commit {commit()}), energies are **estimated**. Nothing was measured on hardware.", "",
        "Read it with `sparloom.data.load_benchmark(folder)`, or each file with `pandas.read_parquet`.", "",
        "## Files", "",
        "| file | rows | columns |", "|---|---|---|",
        "| configs.parquet | configurations, by number | key; default (speedups are relative to it); the parameters "
        "(column_panel 0: all columns) |",
        "| matrices.parquet | matrices of the SuiteSparse collection, \"group/name\" | family; role; statistics of the "
        "pattern |",
        "| designs.parquet | designs | parameters of the machine: bytes in KiB, times in ns, DRAM in GB/s |",
        "| labels_OPERATION_DESIGN.parquet | matrix by matrix, all configurations in order | see below |", "",
        "The split is frozen: models learn from role train, choices are made on validation, test is for results. All "
        "matrices of a family have one role.", "",
        "## Columns of labels", "",
        "| column | unit |", "|---|---|",
        "| matrix, config | index of matrices.parquet and configs.parquet |",
        "| simulated_seconds | seconds of the whole operation; float32 |",
    )
    if task.energies is None:
        yield from ("", "No energies were exported (`task.energies=null`).")
        return
    units = {"multiplications": "operations in fp32", "additions": "operations in fp32",
             "vector_operations": "operations on 16 values",
             "dram_lines": "lines of 64 bytes that DRAM reads or writes"}
    for name, value in task.energies["picojoules"].items():
        yield f"| {name} | {units.get(name, 'lines of 64 bytes that the level serves')}; {value:g} pJ each |"
    yield from (
        "| estimated_joules | J: the counts times the energies per event above, summed; float32 |", "",
        f"Source of the energies: {' '.join(str(task.energies['source']).split())}", "",
        "Dynamic energy only: no leakage and no clock, no fills of caches, tags, registers, interconnect or "
        "control processor. Compare configurations by it, not accelerators.",
    )
