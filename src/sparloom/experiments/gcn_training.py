"""Training a graph convolutional network of two layers, by whichever layers compute it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sparloom.sparse import Pattern

__all__ = ["Classification", "Trainee", "rest_seconds"]

LEARNING_RATE = 0.01

Layer = Callable[[int, int], torch.nn.Module]
"""Makes a layer from its input and output channels; it is called with features and the prepared graph."""


@dataclass(frozen=True)
class Classification:
    """Nodes to be classified by random features and labels, as many classes as features.

    Args:
        edges: (2, edges) int64, senders above receivers, without self-loops.
        features: (nodes, width).
        labels: (nodes,) int64 below width.
    """

    edges: torch.Tensor
    features: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def drawn(cls, pattern: Pattern, width: int, *, seed: int) -> "Classification":
        """Take a square pattern as a graph, its rows as receivers."""
        rows, cols = pattern.row_ids().astype(np.int64), pattern.indices.astype(np.int64)
        edges = torch.from_numpy(np.stack([cols, rows])[:, rows != cols])
        generator = torch.Generator().manual_seed(seed)
        return cls(edges, torch.rand(pattern.rows, width, generator=generator),
                   torch.randint(width, (pattern.rows,), generator=generator))

    def double(self) -> "Classification":
        """The same with features in float64, in which it is then trained."""
        return replace(self, features=self.features.double())

    def to(self, device: torch.device) -> "Classification":
        """The same on a device."""
        return Classification(*(tensor.to(device) for tensor in (self.edges, self.features, self.labels)))

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.features.shape[0]

    @property
    def width(self) -> int:
        """Features, hidden channels and classes."""
        return self.features.shape[1]


class Trainee:
    """Two layers with ReLU between them, trained where the features are and in their type.

    Adam lowers the cross entropy of all nodes.

    Args:
        prepare: makes what the layers take as the graph; called by the first step.
        seed: of the weights; layers that draw alike begin alike.
    """

    def __init__(self, layer: Layer, prepare: Callable[[], Any], task: Classification, *, seed: int) -> None:
        torch.manual_seed(seed)
        self.layers = torch.nn.ModuleList([layer(task.width, task.width) for _ in range(2)]).to(task.features)
        self.loss = float("nan")
        self._optimizer = torch.optim.Adam(self.layers.parameters(), lr=LEARNING_RATE)
        self._prepare, self._task = prepare, task
        self._graph: Any = None

    def train(self, steps: int) -> float:
        """Take steps; returns wall seconds."""
        start = time.perf_counter()
        if self._graph is None:
            self._graph = self._prepare()
        for _ in range(steps):
            self._optimizer.zero_grad()
            hidden = torch.relu(self.layers[0](self._task.features, self._graph))
            loss = torch.nn.functional.cross_entropy(self.layers[1](hidden, self._graph), self._task.labels)
            loss.backward()
            self._optimizer.step()
        self.loss = float(loss.detach())
        return time.perf_counter() - start


def rest_seconds(task: Classification, *, steps: int) -> float:
    """Time what is not in the layers: ReLU, loss, both backward, and Adam; wall seconds of a step."""
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
