"""Train graph networks on mini-batches by our layers and by those of PyTorch Geometric: wall time of steps."""

import importlib
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sparloom.experiments.autosage.graph_training import LEARNING_RATE, geometric
from sparloom.experiments.autosage.mini_batches import MiniBatch, Sampler, samplers, small_graphs_batch
from sparloom.experiments.harness import finish, note_failure, run_folder, timed_cases
from sparloom.report import minibatch_metrics
from sparloom.sparse import Corpus

OWN, REFERENCE, ALTERNATIVE = "sparloom", "pyg", "pyg_csr"
HEADS = 4
TOLERANCE = 1e-4  # of the scores of a batch, relative to the largest
WARM_UP = 3  # batches

LAYERS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "gcn": ("GCNConv", lambda layer, inputs, outputs: layer(inputs, outputs)),
    "sage": ("SAGEConv", lambda layer, inputs, outputs: layer(inputs, outputs)),
    "gat": ("GATConv", lambda layer, inputs, outputs: layer(inputs, outputs // HEADS, heads=HEADS)),
}
"""Name -> class in both libraries, and how a layer is built."""


class BatchCase(NamedTuple):
    """Batches of one kind, and a kind of layer.

    Args:
        kind: "sampled", or "small" for joined small graphs.
        data: a graph of the corpus, or how many small graphs of which size are joined.
        way: of sampling, see `samplers`; "" for small graphs.
        size: seeds, or graphs, of a batch.
    """

    kind: str
    data: str
    way: str
    size: int
    layer: str


@dataclass(frozen=True)
class BenchMinibatch:
    """Train a network of two layers, each step on a batch that was not seen before, by each method in turn.

    All methods have the same weights at first, and see the same batches in the same order; the time of sampling is
    measured apart. A step is forward pass, loss, backward pass and Adam. PyTorch Geometric gets edge_index and, beside
    it, a CSR tensor that was made outside of the timed steps; a method whose scores differ is left out. An interrupted
    run continues with the next case if commit and settings are unchanged.

    Args:
        graphs: names in the corpus.
        seeds: of a sampled batch.
        fanouts: of the hops of sampled neighbourhoods.
        small: joined small graphs: batch size -> mean nodes of a graph.
        layers: of "gcn", "sage" and "gat".
        width: features and hidden channels.
        batches: that are timed in each round.
        rounds: the weights go on learning.
    """

    corpus: Corpus
    graphs: Sequence[str]
    seeds: Sequence[int]
    fanouts: Sequence[int]
    small: Mapping[int, int]
    layers: Sequence[str]
    width: int
    classes: int
    batches: int
    rounds: int
    threads: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet and a table; return speedups with bounds.

        Raises:
            ValueError: a layer is unknown or the corpus has no such graph.
        """
        unknown = [*(set(self.layers) - LAYERS.keys()),
                   *(set(self.graphs) - {entry.name for entry in self.corpus.entries()})]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: expected layers of {', '.join(LAYERS)} and graphs of the corpus: "
                             "see task.layers and task.graphs")
        torch.set_num_threads(self.threads)
        planned = {" ".join(map(str, case)): case for case in self._cases()}
        folder = run_folder(self, corpora=[self.corpus])
        frame = timed_cases(self._case, planned, folder, threads=self.threads,
                            costs={key: float(case.size) for key, case in planned.items()})
        return finish(out, folder, minibatch_metrics(frame, seed=self.seed), per_matrix=frame)

    def _cases(self) -> list[BatchCase]:
        ways = ("neighbour", "cluster", "saint")
        sampled = [("sampled", graph, way, seeds) for graph in self.graphs for seeds in self.seeds for way in ways]
        small = [("small", f"{nodes} nodes", "", int(size)) for size, nodes in self.small.items()]
        return [BatchCase(*case, layer) for case in (*sampled, *small) for layer in self.layers]

    def _sampler(self, case: BatchCase) -> Sampler:
        if case.kind == "small":
            return lambda rng: small_graphs_batch(case.size, mean_nodes=self.small[case.size], rng=rng)
        return samplers(self.corpus.load(case.data).pattern, case.size, self.fanouts)[case.way]

    def _case(self, case: BatchCase) -> list[dict[str, object]]:
        draw, rng = self._sampler(case), np.random.default_rng(self.seed)
        batches, sampling = [], []
        for _ in range(self.batches):
            start = time.perf_counter()
            batches.append(draw(rng))
            sampling.append(time.perf_counter() - start)
        tasks = [self._task(batch, number) for number, batch in enumerate(batches)]
        failed: dict[str, str] = {}
        trainees = self._trainees(case.layer, tasks[0], failed)
        seconds = _timed(trainees, tasks, rounds=self.rounds)
        about = case._asdict() | {
            "nodes": statistics.mean(batch.nodes.numel() for batch in batches),
            "edges": statistics.mean(batch.edges.shape[1] for batch in batches),
            "sample_seconds": statistics.median(sampling)}
        return [about | {"method": name, "step_seconds": statistics.median(taken), "seconds": taken, "failure": ""}
                for name, taken in seconds.items()] + [
            about | {"method": name, "step_seconds": None, "seconds": [], "failure": reason}
            for name, reason in failed.items()]

    def _task(self, batch: MiniBatch, number: int) -> "_Task":
        generator = torch.Generator().manual_seed(self.seed + number)
        return _Task(batch, torch.rand(batch.nodes.numel(), self.width, generator=generator),
                     torch.randint(self.classes, (batch.size,), generator=generator))

    def _trainees(self, layer: str, task: "_Task", failed: dict[str, str]) -> "dict[str, _Trainee]":
        """Make all methods from equal weights; leave out those with other scores."""
        name, build = LAYERS[layer]
        own = getattr(importlib.import_module("sparloom.nn"), name)
        theirs = getattr(geometric().nn, name)
        made: dict[str, _Trainee] = {}
        for method, kind in ((REFERENCE, theirs), (OWN, own), (ALTERNATIVE, theirs)):
            torch.manual_seed(self.seed)
            made[method] = _Trainee(_Network(kind, build, self.width, self.classes), csr=method == ALTERNATIVE)
            made[method].network.load_state_dict(made[REFERENCE].network.state_dict())
        expected = made[REFERENCE].scores(task)
        far = float((made[OWN].scores(task) - expected).abs().max() / expected.abs().max())
        if not far < TOLERANCE:
            raise AssertionError(f"scores of our {name} are {far:.1e} apart from those of PyTorch Geometric")
        with note_failure(ALTERNATIVE, failed):
            apart = float((made[ALTERNATIVE].scores(task) - expected).abs().max() / expected.abs().max())
            if not apart < TOLERANCE:
                raise AssertionError(f"scores are {apart:.1e} apart")
            made[ALTERNATIVE].train(task)
        if ALTERNATIVE in failed:
            del made[ALTERNATIVE]
        return made


@dataclass(frozen=True)
class _Task:
    """A batch with features (nodes, width) and labels (size,)."""

    batch: MiniBatch
    features: torch.Tensor
    labels: torch.Tensor

    def graph(self, *, csr: bool) -> torch.Tensor:
        """Return the edges as a tensor that was not seen before."""
        batch = self.batch.seen_first()
        if not csr:
            return batch.edges
        nodes = self.features.shape[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch: sparse tensors are in beta
            return torch.sparse_coo_tensor(
                batch.edges.flip(0), torch.ones(batch.edges.shape[1]), (nodes, nodes)).to_sparse_csr()


class _Network(torch.nn.Module):
    """Two layers with ReLU in between; means over the graphs of a batch, if it consists of graphs."""

    def __init__(self, kind: Any, build: Callable[..., Any], width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = build(kind, width, width), build(kind, width, classes)

    def forward(self, task: _Task, graph: torch.Tensor) -> torch.Tensor:
        scores = self.second(self.first(task.features, graph).relu(), graph)
        batch = task.batch
        if batch.graph_of_node is None:
            return scores[:batch.size]
        sums = scores.new_zeros(batch.size, scores.shape[1]).index_add(0, batch.graph_of_node, scores)
        return sums / torch.bincount(batch.graph_of_node, minlength=batch.size).unsqueeze(1)


class _Trainee:
    """A network with Adam."""

    def __init__(self, network: _Network, *, csr: bool) -> None:
        self.network, self._csr = network, csr
        self._optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)

    def scores(self, task: _Task) -> torch.Tensor:
        with torch.no_grad():
            return self.network(task, task.graph(csr=self._csr))

    def train(self, task: _Task) -> float:
        """Take a step; return its seconds."""
        graph = task.graph(csr=self._csr)
        start = time.perf_counter()
        self._optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.network(task, graph), task.labels).backward()
        self._optimizer.step()
        return time.perf_counter() - start


def _timed(trainees: Mapping[str, _Trainee], tasks: Sequence[_Task], *, rounds: int) -> dict[str, list[float]]:
    """Train all methods on every batch in turn, after a few steps that are not counted."""
    names = list(trainees)
    for task in tasks[:WARM_UP]:
        for name in names:
            trainees[name].train(task)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds * len(tasks)):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            seconds[name].append(trainees[name].train(tasks[turn % len(tasks)]))
    return seconds
