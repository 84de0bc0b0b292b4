"""Explore designs of the SPADE accelerator: the value of each with default and with chosen configurations.

`DesignSeconds` stores simulated seconds by matrix and machine, so that an interrupted run continues.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom.data import Conditions, SampleSource, Selection, Spread
from sparloom.experiments.cognate import EvaluationData
from sparloom.experiments.harness import finish, run_jobs
from sparloom.files import read_json, write_json
from sparloom.models import CostModel, Learner, MatrixFeatures
from sparloom.ops import Op
from sparloom.report import design_metrics, draw_designs, op_title, per_design
from sparloom.space import Config
from sparloom.sparse import Corpus, Pattern, Role, stratified_choice

if TYPE_CHECKING:
    from sparloom.platforms import SpadePlatform
    from sparloom.platforms.spade import Machine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DesignSeconds:
    """Cache simulated seconds (level T1), one file per matrix and machine.

    The path of a file depends on the operation, the width, all parameters of the machine, the version of the simulator
    and the content of the pattern.

    Args:
        width: columns of the dense operands.
    """

    folder: Path
    op: str
    width: int

    def of(self, pattern: Pattern, configs: Sequence[Config], machines: Sequence["Machine"]) -> np.ndarray:
        """Return seconds of each configuration on each machine, (machines, configs); simulate what is missing."""
        from sparloom.platforms.spade import simulate_many

        paths = [self._path(pattern, machine) for machine in machines]
        known = [_read(path) for path in paths]
        lacking = [tuple(config for config in configs if config.key not in found) for found in known]
        for missing in dict.fromkeys(lack for lack in lacking if lack):
            indices = [index for index, lack in enumerate(lacking) if lack == missing]
            times = simulate_many(pattern, self.op, width=self.width, configs=missing,
                                  machines=[machines[index] for index in indices])
            for index, row in zip(indices, times, strict=True):
                fresh = {config.key: float(value) for config, value in zip(missing, row, strict=True)}
                known[index] = {**known[index], **fresh}
                write_json(paths[index], known[index])
        return np.array([[found[config.key] for config in configs] for found in known])

    def _path(self, pattern: Pattern, machine: "Machine") -> Path:
        from sparloom.platforms.spade import simulator_digest

        made = {"machine": asdict(machine), "width": self.width, "simulator": simulator_digest()}
        digest = Conditions(made).digest
        return self.folder / f"{self.op}-{digest}" / f"{pattern.digest()[:24]}.json"


def _read(path: Path) -> Mapping[str, float]:
    if not path.exists():
        return {}
    try:
        return read_json(path)
    except ValueError as error:
        logger.warning("%s is damaged (%s): it is simulated again", path, error)
        return {}


@dataclass(frozen=True)
class ExploreDesigns:
    """Simulate all configurations of a few matrices on every machine of a grid, and choose programs for each.

    Four choices: the default; that of a model fitted to stored samples of the target ("transferred"); that of a model
    fitted to a few labels simulated on the machine itself ("learned"); the best of all ("optimum").
    Limit: walk features count the lanes of 32 elements (`WALKS`), also for machines with other numbers.

    Args:
        target: the baseline, at level T1; other machines differ from it in the parameters of the grid only.
        selection: labels of the transferred model.
        grid: parameter of the machine -> values, low before high.
        prices: arguments of `Prices`, the proxy of cost.
        role: role of the judged matrices; "test" is for results only.
        matrices: number of judged matrices, chosen evenly over row bins and density.
        nonzeros: larger matrices are left out.
        own_matrices, own_configs: training matrices of the learned models, and labels of each on every machine.
        seeds: seeds of drawn labels and of fitting.
        jobs: processes that simulate, one matrix each.
        kept: folder in which simulated seconds are cached.
    """

    op: Op
    target: "SpadePlatform"
    corpus: Corpus
    samples: SampleSource
    selection: Selection
    model: Learner
    grid: Mapping[str, Sequence[float]]
    prices: Mapping[str, float]
    role: Role
    matrices: int
    nonzeros: int
    own_matrices: int
    own_configs: int
    seeds: Sequence[int]
    width: int
    jobs: int
    kept: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet, designs.parquet and split.json; print and draw the designs; return metrics."""
        began = time.monotonic()
        if self.role == "train":
            raise ValueError("task.role=train: models learn from train matrices, so validation or test ones must judge")
        costs = self.costs()
        baseline = next(name for name, machine in self.machines.items() if machine == self.target.machine)
        judged = self._chosen(self.role, self.matrices, self.seed)
        drawn = {seed: self._draw(seed) for seed in self.seeds}
        seconds = self._simulated({name: self.configs for name in judged}, drawn)
        logger.info("%d designs, %d matrices simulated in %.0f s", len(costs), len(seconds), time.monotonic() - began)
        frame = pd.concat([self._fixed(judged, seconds), *self._modelled(judged, drawn, seconds)], ignore_index=True)
        first = frame[(frame["method"] == "default") & (frame["design"] == baseline)].set_index("matrix")["seconds"]
        frame["speedup"] = frame["matrix"].map(first) / frame["seconds"]
        table = per_design(frame, costs).merge(self._parameters(), on="design")
        title = (f"{op_title(self.op.name)} on {len(costs)} designs around {self.target.preset}, "
                 f"{len(judged)} {self.role} matrices")
        metrics = {
            "matrices": len(judged), **design_metrics(table, baseline=baseline),
            "labels/transferred": self.selection.matrices * self.selection.configs_per_matrix,
            "labels/learned": len(costs) * self.own_matrices * self.own_configs, "seconds": time.monotonic() - began}
        split = {"judged": judged, "own_labels": {str(seed): sorted(draws) for seed, draws in drawn.items()}}
        return finish(out, None, metrics, lambda out: draw_designs(table, out / "designs", title=title),
                      facts={"split": split}, per_matrix=frame, designs=table)

    @cached_property
    def machines(self) -> Mapping[str, "Machine"]:
        from sparloom.platforms.spade import designs

        return designs(self.target.machine, self.grid, width=self.width)

    @cached_property
    def configs(self) -> list[Config]:
        return list(self.target.space(self.op))

    def costs(self) -> dict[str, float]:
        """Return the cost of every design, relative to the baseline."""
        from sparloom.platforms.spade import Prices

        prices = Prices(**self.prices)
        return {name: prices.of(machine) / prices.of(self.target.machine) for name, machine in self.machines.items()}

    def simulate(self, job: tuple[str, Sequence[Config]]) -> np.ndarray:
        """Return the seconds of one matrix, (machines, configs)."""
        name, configs = job
        cache = DesignSeconds(Path(self.kept), self.op.name, self.width)
        return cache.of(self.corpus.load(name).pattern, configs, list(self.machines.values()))

    def _chosen(self, role: Role, count: int, seed: int) -> list[str]:
        roles = self.corpus.split()
        entries = [entry for entry in self.corpus.entries() if roles[entry.name] == role and entry.nnz <= self.nonzeros]
        return list(stratified_choice(entries, count, seed=seed))

    def _draw(self, seed: int) -> dict[str, list[Config]]:
        """Draw the configurations that are labelled on all machines, for every training matrix, as selection=spread."""
        spread, taken = Spread(matrices=self.own_matrices, configs_per_matrix=self.own_configs), Counter[str]()
        keys, drawn = [config.key for config in self.configs], {}
        for number, name in enumerate(self._chosen("train", self.own_matrices, seed)):
            chosen = spread.configs(keys, taken, np.random.default_rng([seed, number]))
            drawn[name] = [self.configs[index] for index in chosen]
            taken.update(config.key for config in drawn[name])
        return drawn

    def _simulated(
        self, judged: Mapping[str, list[Config]], drawn: Mapping[int, Mapping[str, list[Config]]]
    ) -> dict[str, pd.DataFrame]:
        """Simulate: matrix -> seconds, one row per design, one column per configuration."""
        asked: dict[str, dict[Config, None]] = {name: dict.fromkeys(configs) for name, configs in judged.items()}
        for draws in drawn.values():
            for name, configs in draws.items():
                asked.setdefault(name, {}).update(dict.fromkeys(configs))
        entries = {entry.name: entry.nnz for entry in self.corpus.entries()}
        jobs = {name: (name, tuple(configs)) for name, configs in asked.items()}
        weights = {name: float(entries[name] * len(configs) + 1) for name, (_, configs) in jobs.items()}
        found = run_jobs(self.simulate, jobs, weights=weights, processes=self.jobs, description="designs",
                         unit="matrices")
        return {name: pd.DataFrame(times, list(self.machines), [config.key for config in jobs[name][1]])
                for name, times in found}

    def _fixed(self, judged: Sequence[str], seconds: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
        default, rows = self.target.space(self.op).default().key, []
        for name in judged:
            for design, times in seconds[name].iterrows():
                for method, key in (("default", default), ("optimum", times.idxmin())):
                    rows.append({"method": method, "seed": 0, "design": design, "matrix": name, "config": key,
                                 "seconds": times[key]})
        return pd.DataFrame(rows)

    def _modelled(
        self, judged: Sequence[str], drawn: Mapping[int, Mapping[str, list[Config]]],
        seconds: Mapping[str, pd.DataFrame],
    ) -> list[pd.DataFrame]:
        """Return rows of the two models, one frame per seed."""
        study = EvaluationData(self.target, self.op, self.samples, self.role)
        names = dict.fromkeys([*judged, *(name for draws in drawn.values() for name in draws)])
        views = {name: MatrixFeatures.from_pattern(self.corpus.load(name).pattern, name) for name in names}
        frames = []
        for seed in self.seeds:
            start, learner = time.monotonic(), self.model.with_seed(seed)
            labels = study.draw(self.selection, seed)
            transferred = learner.fit(labels, space=study.space, matrices=study.views)
            chosen = self._choices(transferred, judged, views)
            rows = [{"method": "transferred", "design": design, "matrix": name, "config": key}
                    for design in self.machines for name, key in chosen.items()]
            for design in self.machines:
                own = learner.fit(_labels(drawn[seed], seconds, design), space=study.space, matrices=views)
                rows += [{"method": "learned", "design": design, "matrix": name, "config": key}
                         for name, key in self._choices(own, judged, views).items()]
            times = [seconds[row["matrix"]].at[row["design"], row["config"]] for row in rows]
            frames.append(pd.DataFrame(rows).assign(seed=seed, seconds=times))
            logger.info("seed %d: %d models learned in %.0f s", seed, 1 + len(self.machines), time.monotonic() - start)
        return frames

    def _choices(self, model: CostModel, names: Sequence[str], views: Mapping[str, MatrixFeatures]) -> dict[str, str]:
        return {name: self.configs[int(model.score(views[name], self.configs).argmin())].key for name in names}

    def _parameters(self) -> pd.DataFrame:
        values = {name: [getattr(machine, name) for machine in self.machines.values()] for name in self.grid}
        return pd.DataFrame({"design": list(self.machines), **values})


def _labels(drawn: Mapping[str, list[Config]], seconds: Mapping[str, pd.DataFrame], design: str) -> pd.DataFrame:
    """Return labels as `SampleTable.labels`; simulated seconds have no spread."""
    rows = [{"matrix": name, "config": config.key, "seconds": seconds[name].at[design, config.key], "spread": 0.0}
            for name, configs in drawn.items() for config in configs]
    return pd.DataFrame(rows)
