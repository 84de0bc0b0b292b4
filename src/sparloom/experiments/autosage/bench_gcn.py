"""Train graph convolutional networks with our layers and with PyTorch Geometric: wall time."""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sparloom.experiments.autosage.graph_training import (
    LEARNING_RATE,
    Classification,
    Method,
    Trainee,
    baseline_methods,
    own_methods,
)
from sparloom.experiments.harness import finish, run_folder, timed_cases
from sparloom.files import scratch_folder
from sparloom.report import draw_gcn, gcn_metrics
from sparloom.sparse import Corpus, MatrixEntry
from sparloom.tuning import PlanCache


@dataclass(frozen=True)
class GraphChoice:
    """Select square matrices by kind and size.

    Args:
        kinds: words, one of which must occur in the kind of a matrix.
        least_nonzeros, most_nonzeros, most_rows: inclusive bounds.
    """

    kinds: Sequence[str]
    least_nonzeros: int
    most_nonzeros: int
    most_rows: int

    def of(self, corpus: Corpus) -> list[MatrixEntry]:
        """List the selected matrices, smallest first.

        Raises:
            ValueError: no matrix is selected.
        """
        found = [entry for entry in corpus.entries() if entry.rows == entry.cols and entry.rows <= self.most_rows and
                 self.least_nonzeros <= entry.nnz <= self.most_nonzeros and
                 any(kind in entry.kind for kind in self.kinds)]
        if not found:
            raise ValueError(f"no square matrix with {self.least_nonzeros} to {self.most_nonzeros} nonzeros whose kind "
                             f"is one of {', '.join(self.kinds)}: widen task.graphs.kinds or the bounds")
        return sorted(found, key=lambda entry: entry.nnz)


@dataclass(frozen=True)
class BenchGcn:
    """Train the same network by each method in turn, a block of steps at a time.

    Every method starts with the same weights, features and labels. The first step is timed separately and contains all
    preparation of the graph: normalisation, schedules, decisions. Before, another instance of each method takes a few
    steps, so that code is compiled and memory is allocated; PyTorch Geometric uses the graph format that is fastest in
    these steps. An interrupted run continues with the next case if commit and settings are unchanged.

    Args:
        widths: features, hidden channels and classes.
        blocks, block_steps: blocks after the first step; a training takes 1 + blocks * block_steps steps.
        probe_steps: steps with each graph format; the first of them is not timed.
    """

    corpus: Corpus
    graphs: GraphChoice
    widths: Sequence[int]
    blocks: int
    block_steps: int
    probe_steps: int
    threads: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet, table and figure; return speedups with bounds."""
        torch.set_num_threads(self.threads)
        entries = {entry.name: entry for entry in self.graphs.of(self.corpus)}
        planned = {f"{name} {width}": (entries[name], width) for width in self.widths for name in entries}
        folder = run_folder(self, corpora=[self.corpus])
        frame = timed_cases(self._case, planned, folder, threads=self.threads, costs={
            key: float(entry.nnz * width) for key, (entry, width) in planned.items()})
        return finish(out, folder, gcn_metrics(frame, seed=self.seed),
                      lambda out: draw_gcn(frame, out / "training"), per_matrix=frame)

    def _case(self, case: tuple[MatrixEntry, int]) -> list[dict[str, object]]:
        entry, width = case
        task = Classification.drawn(self.corpus.load(entry.name).pattern, width, seed=self.seed)
        about = {"matrix": entry.name, "kind": entry.kind, "rows": entry.rows, "edges": task.edges.shape[1],
                 "width": width, "role": self.corpus.split()[entry.name]}
        baselines = baseline_methods(task, seed=self.seed)
        probes = {name: self._probed(method) for name, method in baselines.items()}
        form = min(probes, key=probes.__getitem__)
        with scratch_folder("cache") as warm, scratch_folder("cache") as fresh:
            for method in own_methods(task, PlanCache(Path(warm)), seed=self.seed).values():
                self._probed(method)
            own = own_methods(task, PlanCache(Path(fresh)), seed=self.seed)
            methods = {"pyg": baselines[form], **own}
            rows = list(self._trained(methods))
        rest = rest_seconds(task, steps=self.block_steps)
        forms = {f"probe_{name}": seconds for name, seconds in probes.items()}
        return [about | row | {"form": form if row["method"] == "pyg" else "", "rest_seconds": rest} | forms
                for row in rows]

    def _probed(self, method: Method) -> float:
        """Return the seconds of a step of a temporary instance."""
        trainee = method()
        trainee.train(1)
        return trainee.train(self.probe_steps - 1) / (self.probe_steps - 1)

    def _trained(self, methods: Mapping[str, Method]) -> Iterator[dict[str, object]]:
        trainees: dict[str, Trainee] = {name: method() for name, method in methods.items()}
        first = {name: trainee.train(1) for name, trainee in trainees.items()}
        blocks: dict[str, list[float]] = {name: [] for name in trainees}
        order = list(trainees)
        for turn in range(self.blocks):
            start = turn % len(order)
            for name in order[start:] + order[:start]:
                blocks[name].append(trainees[name].train(self.block_steps) / self.block_steps)
        steps = 1 + self.blocks * self.block_steps
        for name, trainee in trainees.items():
            step = statistics.median(blocks[name])
            yield {"method": name, "first_seconds": first[name], "step_seconds": step, "block_seconds": blocks[name],
                   "steps": steps, "seconds": first[name] + (steps - 1) * step, "loss": trainee.loss}


def rest_seconds(task: Classification, *, steps: int) -> float:
    """Time the work outside of the layers (ReLU, loss, both backward, Adam): wall seconds of a step."""
    shape = (task.nodes, task.width)
    hidden, scores = (torch.rand(shape, requires_grad=True) for _ in range(2))
    weights = [torch.zeros(extents, requires_grad=True) for extents in 2 * [(task.width, task.width), (task.width,)]]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer, grad = torch.optim.Adam(weights, lr=LEARNING_RATE), torch.rand(shape)
    seconds = []
    for _ in range(steps + 1):
        hidden.grad = scores.grad = None
        start = time.perf_counter()
        torch.relu(hidden).backward(grad)
        torch.nn.functional.cross_entropy(scores, task.labels).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[1:]))
