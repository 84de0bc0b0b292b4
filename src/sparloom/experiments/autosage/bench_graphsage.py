"""Run GraphSAGE with kernels that COGNATE chose, beside other choices of the kernel and other libraries."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from sparloom import nn
from sparloom.data import SampleSource
from sparloom.errors import MissingArtifact, Unsupported
from sparloom.experiments.autosage.bench_gcn import GraphChoice
from sparloom.experiments.autosage.cases import check_environment
from sparloom.experiments.autosage.cpu_cases import layers_keep_in
from sparloom.experiments.autosage.graph_training import (
    OWN_LAYER,
    REFERENCE,
    Classification,
    MeanLayer,
    NeighbourMean,
    Steps,
    Trainee,
    geometric,
    kernel_product,
    mean_matrices,
    peer_forms,
    relative_distance,
    scipy_mean,
    sorted_out,
)
from sparloom.experiments.harness import (
    evenly_by_size,
    finish,
    note_failure,
    run_folder,
    side_by_side,
    statistics_of,
    timed_cases,
)
from sparloom.files import sha256
from sparloom.measure import TimingProtocol
from sparloom.models import NetworkShortlists, Static, load_checkpoint, load_networks
from sparloom.nn import Graph
from sparloom.ops import Operands, SpMM
from sparloom.platforms import CpuKernels, interleaved, keep_threads_awake, reallocated
from sparloom.report import draw_graphsage, graphsage_metrics
from sparloom.space import Config
from sparloom.sparse import Corpus, MatrixEntry, SparseMatrix
from sparloom.tuning.sparse import CpuBackend

METHODS = ("default", "adapted", "static", "cognate", "cognate_5", "optimum")
STAGES = ("inference", "training")
TOP = 5  # choices of the network of which cognate_5 measures the fastest
WARM_UP_STEPS = 3  # of training with our layers, in which graphs are prepared and kernels are loaded
SHARE_STEPS = 3  # in which the time of products is counted
TOLERANCE = 1e-3  # of scores and gradients, relative to the largest, ...
ROUNDING = 3.0  # ... or so many times the distance of SciPy's products in float32: gradients jump where ReLU begins
FLOAT_BYTES = 4

Row = dict[str, Any]


@dataclass(frozen=True)
class ProductChoice:
    """Configurations of one product by method, and what choosing them took.

    Args:
        configs: method -> configuration.
        choice_seconds: method -> wall seconds of scoring, binding and measuring; methods that do none of it are absent.
        seconds: key of every configuration -> median seconds of the product alone.
    """

    configs: Mapping[str, Config]
    choice_seconds: Mapping[str, float]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class KernelChooser:
    """Choose the configuration of SpMM on a matrix by every method.

    "default" is the default of the space, "adapted" that of our decisions, which regards sizes and caches, "static" the
    same for all matrices, "cognate" the network's first choice, "cognate_5" the fastest of its first five by
    measurement, "optimum" the fastest of all by measurement.

    Args:
        networks: fine-tuned networks.
        timing: protocol for configurations in turn.
    """

    networks: NetworkShortlists
    static: Config
    width: int
    threads: int
    timing: TimingProtocol
    seed: int

    def choose(self, matrix: SparseMatrix) -> ProductChoice:
        """Choose for the product with a matrix.

        Raises:
            AssertionError: a kernel computes a wrong product.
        """
        op = SpMM()
        operands, space = reallocated(op.operands(matrix, self.width, self.seed)), self._kernels().space(op)
        start = time.perf_counter()
        configs = list(space)
        scores = self.networks.score(op.name, operands, configs)
        ranked = [configs[index] for index in np.argsort(scores, kind="stable")]
        scoring = time.perf_counter() - start
        self._check(operands, configs)
        start = time.perf_counter()
        first = self._measured(operands, ranked[:TOP])
        measuring = time.perf_counter() - start
        start = time.perf_counter()
        seconds = self._measured(operands, ranked)  # fast ones first, see `interleaved`
        measuring_all = time.perf_counter() - start
        keys = {config.key: config for config in configs}
        chosen = {"default": space.default(), "adapted": CpuBackend(self.threads).default_config(op, operands),
                  "static": self.static, "cognate": ranked[0],
                  "cognate_5": keys[min(first, key=first.__getitem__)],
                  "optimum": keys[min(seconds, key=seconds.__getitem__)]}
        return ProductChoice(chosen, {"cognate": scoring, "cognate_5": scoring + measuring, "optimum": measuring_all},
                             seconds)

    def _check(self, operands: Operands, configs: Sequence[Config]) -> None:
        family = self._kernels().family(SpMM())
        result, check = family.result(operands), family.check(SpMM(), operands, seed=self.seed)
        for config in configs:
            result.fill(np.nan)
            family.bind(operands, config, result)()
            try:
                check(result)
            except AssertionError as error:
                raise AssertionError(f"spmm with {config} is wrong: {error}") from error

    def _measured(self, operands: Operands, configs: Sequence[Config]) -> dict[str, float]:
        """Bind configurations and time them in turn: key -> median seconds."""
        family = self._kernels().family(SpMM())
        result = family.result(operands)
        calls = {config.key: family.bind(operands, config, result) for config in configs}
        taken = interleaved(calls, self.timing, threads=self.threads, settle=0.0)
        return {key: float(np.median(each.seconds)) for key, each in taken.items()}

    def _kernels(self) -> CpuKernels:
        return CpuKernels(self.threads, self.width)


@dataclass(frozen=True)
class BenchGraphsage:
    """Time inference and training steps of GraphSAGE, whose sparse products run kernels chosen by each method.

    A network has `depth` layers, W1 x_i + b + W2 mean of x_j, with ReLU in between, and as many features, hidden
    channels and classes as `width`. Inference is a forward pass, training a forward pass, cross entropy, the backward
    pass and Adam. The kernels of a method are fixed for each graph: one for the mean, one for its transpose in the
    backward pass. All else is PyTorch's and the same for all methods; those with equal kernels are timed once. Our
    layers and PyTorch Geometric's run beside them. Scores and gradients are compared with float64 before; a wrong
    method of ours raises AssertionError, a wrong one of PyTorch Geometric is left out. An interrupted run continues
    with the next graph if commit and settings are unchanged.

    Args:
        graphs: square matrices, of which those with more nonzeros than rows count; their diagonals are left out.
        count: number of timed graphs, evenly over their nonzeros; None: all.
        model: checkpoint of a network from experiment=finetune_cpu_kernels.
        samples: labels of the matrices that the network has learned from, for "static".
        timing: protocol for steps in turn.
        choice_timing: protocol for products in turn, by which "cognate_5" and "optimum" choose.
        memory_bytes: PyTorch Geometric's edge_index is left out if it gathers more.

    Source: COGNATE §4.3, end to end. Departures: CPU kernels instead of SparseTIR on a GPU, many graphs instead of one,
    measured choices for the backward pass, too.
    """

    corpus: Corpus
    graphs: GraphChoice
    count: int | None
    width: int
    depth: int
    model: str
    samples: SampleSource
    timing: TimingProtocol
    choice_timing: TimingProtocol
    threads: int
    memory_bytes: float
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet, a row for each graph, stage and method, tables and a figure; return speedups.

        Raises:
            ValueError: the network has learned from a chosen graph, variables AUTOSAGE_* are set, or the samples lack
                the labels that the network has learned from.
            MissingArtifact: there is no checkpoint; names the command that makes it.
        """
        check_environment()
        chosen = self.entries()
        chooser = KernelChooser(load_networks([self._unseen(chosen)]), self.static(), self.width,
                                self.threads, self.choice_timing, self.seed)
        torch.set_num_threads(self.threads)
        keep_threads_awake()
        folder = run_folder(self, sha256(Path(self.model)), chooser.static.key, corpora=[self.corpus],
                            without=("samples", "model"))
        with layers_keep_in(folder / "plans"):
            frame = timed_cases(partial(self._rows, chooser), {entry.name: entry for entry in chosen}, folder,
                                threads=self.threads,
                                costs={entry.name: float(entry.nnz + self.width * entry.rows) for entry in chosen})
        return finish(out, folder, graphsage_metrics(frame, seed=self.seed),
                      lambda out: draw_graphsage(frame, out / "speedups"), per_case=frame)

    def entries(self) -> Sequence[MatrixEntry]:
        """List the timed graphs."""
        return evenly_by_size([entry for entry in self.graphs.of(self.corpus) if entry.nnz > entry.rows], self.count)

    def static(self) -> Config:
        """Return the configuration that is best over the labels of the matrices that the network was fine-tuned on."""
        notes = load_checkpoint(Path(self.model), kind="cognate").notes
        width, matrices = notes["width"], set(notes.get("matrices", ()))
        table = self.samples.table(CpuKernels.name, notes.get("preset", f"t{self.threads}"), SpMM().name)
        labels = table.filter(width=width).labels()
        labels = labels[labels["matrix"].isin(matrices)]
        missing = matrices - set(labels["matrix"])
        if missing or not matrices:
            raise ValueError(f"the samples have no labels of {len(missing) or 'the'} matrices that {self.model} has "
                             f"learned from ({min(missing, default='it names none')}): give task.samples those of its "
                             "fine-tuning")
        space = CpuKernels(self.threads, width).space(SpMM())
        fitted, configs = Static().fit(labels, space=space), list(space)
        return configs[int(np.argmin(fitted.score_configs(configs)))]

    def _unseen(self, chosen: Sequence[MatrixEntry]) -> Path:
        """Return the path of the network, which must not have learned from any of these matrices."""
        path = Path(self.model).expanduser().resolve()
        if not path.exists():
            raise MissingArtifact(f"{path} does not exist: `python run.py experiment=finetune_cpu_kernels` makes it",
                                  experiment="finetune_cpu_kernels")
        notes = load_checkpoint(path, kind="cognate").notes
        learned = {*notes.get("matrices", ()), *notes.get("anchors", ())}
        seen = [entry.name for entry in chosen if {entry.name, entry.family} & learned]
        if seen:
            raise ValueError(f"{self.model} has learned from {len(seen)} of {len(chosen)} timed graphs ({seen[0]}, "
                             "...): choose another corpus.role, or a network of other matrices by task.model")
        return path

    def _rows(self, chooser: KernelChooser, entry: MatrixEntry) -> list[Row]:
        task = Classification.drawn(self.corpus.load(entry.name).pattern, self.width, seed=self.seed)
        matrices = mean_matrices(task)
        choices = [chooser.choose(matrix) for matrix in matrices]
        pairs = {method: tuple(choice.configs[method] for choice in choices) for method in METHODS}
        means = {pair: NeighbourMean(*(kernel_product(matrix, config, threads=self.threads)
                                       for matrix, config in zip(matrices, pair, strict=True)))
                 for pair in dict.fromkeys(pairs.values())}
        kernels = {pair: self._trainee(MeanLayer, mean, task) for pair, mean in means.items()}
        trainees, refused = self._trainees(task, {method: kernels[pair] for method, pair in pairs.items()})
        own, (apart, limit) = (*METHODS, OWN_LAYER), self._distances(trainees, task, refused)
        about = {"matrix": entry.name, "kind": entry.kind, "rows": entry.rows, "edges": task.edges.shape[1]}
        rows: list[Row] = []
        for stage in STAGES:
            timed_as = {method: next(other for other in METHODS if _kernels(pairs[other], stage) ==
                                     _kernels(pairs[method], stage)) for method in METHODS}
            calls = {name: _step(trainee, stage) for name, trainee in trainees.items()
                     if timed_as.get(name, name) == name}
            steps = sorted_out(Steps({name: call for name, call in calls.items() if name in own},
                                     {name: call for name, call in calls.items() if name not in own}, refused),
                               apart, limit=limit, what="scores or gradients")
            failed = dict(steps.refused)
            taken = side_by_side(steps.own, steps.baselines, failed, self.timing, threads=self.threads)
            shares = {method: _aggregation_share(_step(trainees[method], stage), means[pairs[method]])
                      for method in set(timed_as.values())}
            for name in (*METHODS, *(name for name in taken if name not in METHODS)):
                row = about | {"stage": stage, "method": name, "failure": ""}
                row |= statistics_of(taken[timed_as.get(name, name)])
                if name in METHODS:
                    row |= _choice_columns(name, choices, stage) | {
                        "timed_as": timed_as[name], "aggregation_share": shares[timed_as[name]]}
                rows.append(row)
            rows += [about | {"stage": stage, "method": name, "failure": reason} for name, reason in failed.items()]
        return rows

    def _trainee(self, layer: Callable[[int, int], torch.nn.Module], graph: Any, task: Classification) -> Trainee:
        return Trainee(layer, lambda: graph, task, seed=self.seed, depth=self.depth)

    def _trainees(
        self, task: Classification, kernels: Mapping[str, Trainee],
    ) -> tuple[dict[str, Trainee], dict[str, str]]:
        """Add our layers, which are warmed up here, and those of PyTorch Geometric; also return what failed."""
        refused: dict[str, str] = {}
        own = Trainee(nn.SAGEConv, partial(Graph, task.edges, task.nodes), task, seed=self.seed, depth=self.depth)
        own.train(WARM_UP_STEPS)
        trainees = {**kernels, OWN_LAYER: own}
        with note_failure("pyg", refused):
            peer = geometric().nn.SAGEConv
            for name, graph in peer_forms(task).items():
                with note_failure(name, refused):
                    gathered = FLOAT_BYTES * self.width * task.edges.shape[1]
                    if name == REFERENCE and gathered > self.memory_bytes:
                        raise Unsupported(f"it makes {gathered / 2**30:.1f} GiB")
                    trainees[name] = self._trainee(peer, graph, task)
        return trainees, refused

    def _distances(
        self, trainees: dict[str, Trainee], task: Classification, refused: dict[str, str],
    ) -> tuple[dict[str, float], float]:
        """Give all methods the weights of a reference in float64 and compare scores and gradients.

        Methods of PyTorch Geometric that fail are removed.

        Returns:
            Distances from the reference by method, and the largest that is allowed.
        """
        reference = self._trainee(MeanLayer, scipy_mean(task.double()), task.double())
        gradients, scores = reference.gradients(), reference.infer()

        def distance(trainee: Trainee) -> float:
            trainee.layers.load_state_dict(reference.layers.state_dict())
            found = trainee.gradients()
            return max(relative_distance(trainee.infer(), scores),
                       *(relative_distance(found[weight], wanted) for weight, wanted in gradients.items()))

        apart = {"float64": 0.0}
        for name, trainee in list(trainees.items()):
            failed: dict[str, str] = {}
            with note_failure(name, failed):
                apart[name] = distance(trainee)
            if failed and name in (*METHODS, OWN_LAYER):
                raise AssertionError(f"{name} fails: {failed[name]}")
            if failed:
                del trainees[name]
                refused |= failed
        single = distance(self._trainee(MeanLayer, scipy_mean(task), task))
        return apart, max(TOLERANCE, ROUNDING * single)


def _kernels(pair: Sequence[Config], stage: str) -> Sequence[Config]:
    """Select the configurations that run in a stage."""
    return pair[:1] if stage == "inference" else pair


def _step(trainee: Trainee, stage: str) -> Callable[[], object]:
    return trainee.infer if stage == "inference" else partial(trainee.train, 1)


def _aggregation_share(step: Callable[[], object], mean: NeighbourMean) -> float:
    """Return the share of a step's seconds that its sparse products take, median of a few steps."""
    shares = []
    for _ in range(SHARE_STEPS):
        before, start = mean.seconds, time.perf_counter()
        step()
        shares.append((mean.seconds - before) / (time.perf_counter() - start))
    return median(shares)


def _choice_columns(method: str, choices: Sequence[ProductChoice], stage: str) -> Row:
    """Return the configurations of both products, their seconds alone, and the seconds of choosing for a stage."""
    forward, backward = choices
    used = [forward] if stage == "inference" else choices
    return {"config": forward.configs[method].key, "config_transposed": backward.configs[method].key,
            "product_seconds": forward.seconds.get(forward.configs[method].key),
            "transposed_seconds": backward.seconds.get(backward.configs[method].key),
            "choice_seconds": sum(choice.choice_seconds.get(method, 0.0) for choice in used)}
