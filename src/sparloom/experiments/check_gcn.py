"""How much of a final loss is rounding: trainings in float32 beside the same training in float64."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from sparloom import log
from sparloom.data import write_frame
from sparloom.experiments.gcn_graphs import GraphChoice
from sparloom.experiments.gcn_methods import Method, own_methods, peer_methods
from sparloom.experiments.gcn_training import Classification
from sparloom.files import scratch_folder
from sparloom.fusion import pinned
from sparloom.report import loss_error_metrics, loss_error_table
from sparloom.sparse import Corpus
from sparloom.tuning import PlanCache

__all__ = ["CheckGcn"]

REFERENCE = "csr"  # form of the graph that PyTorch Geometric gets in float64


@dataclass(frozen=True)
class CheckGcn:
    """Train by every form of PyTorch Geometric and every own method; nothing is timed.

    The reference is PyTorch Geometric's layer in float64, with the same weights, features and labels.

    Args:
        corpus, graphs: what is trained on.
        widths: features, hidden channels and classes.
        steps: of a training.
        seed: of weights, features and labels.
    """

    corpus: Corpus
    graphs: GraphChoice
    widths: Sequence[int]
    steps: int
    threads: int
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet, a row for each graph, width and method; print how far losses are off."""
        torch.set_num_threads(self.threads)
        cases = [(entry, width) for entry in self.graphs.of(self.corpus) for width in self.widths]
        rows = []
        with pinned(self.threads):
            for entry, width in log.track(cases, "trainings", total=len(cases)):
                task = Classification.drawn(self.corpus.load(entry.name).pattern, width, seed=self.seed)
                rows += [{"matrix": entry.name, "width": width, "method": method, "loss": loss}
                         for method, loss in self._losses(task).items()]
        frame = pd.DataFrame(rows)
        write_frame(out / "per_matrix.parquet", frame)
        metrics = loss_error_metrics(frame)
        log.console.print(loss_error_table(metrics))
        return metrics

    def _losses(self, task: Classification) -> dict[str, float]:
        with scratch_folder("cache") as folder:
            own = own_methods(task, PlanCache(Path(folder), keep_busy=True), seed=self.seed)
            peers = {f"pyg_{form}": method for form, method in peer_methods(task, seed=self.seed).items()}
            found = {name: self._loss(method) for name, method in (peers | own).items()}
        return found | {"float64": self._loss(peer_methods(task.double(), seed=self.seed)[REFERENCE])}

    def _loss(self, method: Method) -> float:
        trainee = method()
        trainee.train(self.steps)
        return trainee.loss
