"""Time two implementations of a layer in alternating calls of a program, and keep the faster one.

Each call runs one of them, and its result is what the program goes on with, so that nothing is computed twice. Calls
that draw random numbers are never timed, as a seed would then give results that depend on the clock. Where a gradient
is needed, the backward pass is timed, too: from the gradient of the result to those of the inputs and parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from threading import RLock
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.nn.parameter import UninitializedParameter

from sparloom.forks import forkable
from sparloom.nn.custom_ops import in_functorch

__all__ = ["Guard", "SizeClass", "Team", "Verdict", "size_class"]

log = logging.getLogger(__name__)

MIN_SAMPLES_TO_ACCEPT, MIN_SAMPLES_TO_REJECT = 5, 8  # of each implementation: for a win, for a clear defeat
MAX_SAMPLES = 10  # of each, for any decision
CLEAR = 1.5  # times as slow
WINDOW = 5  # latest samples that a decision rests on: the first ones prepare graphs
UNFINISHED = 10  # calls without a backward pass, after which only forward passes are timed
SETTLED_CALLS = 64  # calls without a class of sizes that is new, after which the guard leaves
SHARED = 0.1  # share of preparing in a layer's time from which layers depend on each other


class SizeClass(NamedTuple):
    """Calls that are judged together.

    Args:
        edges, nodes: bits of their numbers.
        width: columns of the features.
        training: a gradient is needed.
    """

    edges: int
    nodes: int
    width: int
    training: bool

    def __str__(self) -> str:
        passes = "forward and backward" if self.training else "forward"
        return f"{passes}, up to {(1 << self.edges) - 1:,} edges, {self.width} columns"


@dataclass(frozen=True)
class Verdict:
    """Median seconds of both implementations."""

    own: float
    original: float

    @property
    def speedup(self) -> float:
        """Original over own."""
        return self.original / self.own if self.own else 1.0


@dataclass
class _Trial:
    """Seconds of both implementations for one class of sizes, and of preparing the graph for the own one."""

    own: list[float] = field(default_factory=list)
    original: list[float] = field(default_factory=list)
    preparing: list[float] = field(default_factory=list)
    unfinished: int = 0

    def add(self, is_own: bool, seconds: float, preparing: float) -> None:
        (self.own if is_own else self.original).append(seconds)
        if is_own:
            self.preparing.append(preparing)

    def verdict(self, shared: float) -> Verdict | None:
        """Decide, or return None.

        Args:
            shared: seconds of preparing per layer, added to each sample.
        """
        count = min(len(self.own), len(self.original))
        if count < MIN_SAMPLES_TO_ACCEPT:
            return None
        made = Verdict(median(self.own[-WINDOW:]) + shared, median(self.original[-WINDOW:]))
        least, least_original = min(self.own) + shared, min(self.original)
        won = made.own <= made.original and least <= least_original
        lost = count >= MIN_SAMPLES_TO_REJECT and least > CLEAR * least_original
        return made if won or lost or count >= MAX_SAMPLES else None


class Team:
    """Guards of the layers of one model, which share prepared graphs: who prepares one pays for all."""

    def __init__(self) -> None:
        self.guards: list[Guard] = []
        self.lock = forkable(RLock())

    def __getstate__(self) -> dict[str, Any]:
        return {"guards": self.guards}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=forkable(RLock()))

    def preparing(self, edges: int, training: bool) -> float:
        """Return the seconds that a layer spends with preparing, on average over the layers."""
        found = [median(trial.preparing[-WINDOW:]) for guard in self.guards for key, trial in guard.trials.items()
                 if (key.edges, key.training) == (edges, training) and trial.preparing]
        return sum(found) / len(found) if found else 0.0

    def reopen(self, loser: Guard, edges: int) -> None:
        """Let the other layers be timed again, as one that may have prepared graphs for them has left."""
        for guard in self.guards:
            if guard is not loser:
                for key in [key for key in guard.verdicts if key.edges == edges and guard.verdicts[key].speedup >= 1]:
                    del guard.verdicts[key]


class Guard:
    """Chooses between two implementations of a layer, for each class of sizes.

    Copies and pickles keep what is decided and time the rest again. Threads may share a guard.

    Args:
        name: of the layer, for messages.
        team: guards of the same model (default: none).
    """

    def __init__(self, name: str, team: Team | None = None) -> None:
        self.name, self.team = name, Team() if team is None else team
        self.verdicts: dict[SizeClass, Verdict] = {}
        self.trials: dict[SizeClass, _Trial] = {}
        self.settled_calls = 0
        self._pending: _Sample | None = None  # waits for its backward pass
        self.team.guards.append(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "trials": {}, "settled_calls": 0, "_pending": None}

    @property
    def outcome(self) -> bool | None:
        """Whether the own implementation has won everywhere (True) or nowhere (False), and no new class has come."""
        if self.settled_calls < SETTLED_CALLS:
            return None
        won = {verdict.speedup >= 1 for verdict in list(self.verdicts.values())}
        return won.pop() if len(won) == 1 else None

    def call(
        self, key: SizeClass, prepare: Callable[[], Any], own: Callable[..., torch.Tensor],
        original: Callable[[Any], torch.Tensor], x: Any, parameters: Iterable[torch.Tensor],
    ) -> torch.Tensor:
        """Compute a layer by one of its implementations.

        Args:
            prepare: given features, returns the arguments of `own`; None: it does not support them.
            x: features, which `prepare` and `original` take.
        """
        if self._pending is not None:
            self._close_pending()
        verdict = self.verdicts.get(key)
        if verdict is not None:
            self.settled_calls += 1
            prepared = prepare(x) if verdict.speedup >= 1 else None
            return original(x) if prepared is None else own(*prepared)
        self.settled_calls = 0
        with self.team.lock:
            trial = self.trials.setdefault(key, _Trial())
            is_own = len(trial.own) <= len(trial.original)
        if key.training:
            x = _aliases(x)
        start = _now(x)
        prepared = prepare(x) if is_own else None
        begin = _now(x)
        result = original(x) if prepared is None else own(*prepared)
        sample = _Sample(key, is_own, begin - start, _now(x) - begin)
        if (is_own and prepared is None) or not isinstance(result, torch.Tensor):  # no fair sample
            return result
        watched = key.training and trial.unfinished < UNFINISHED + 3 * len(trial.original)
        if watched and result.requires_grad:
            sample.watch(result, [*(x if isinstance(x, tuple) else (x,)), *parameters])
            self._pending = sample
        else:
            self.record(sample)
        return result

    def _close_pending(self) -> None:
        """Record the latest call if its backward pass has run."""
        with self.team.lock:
            sample, self._pending = self._pending, None
            if sample is None:
                return
            if sample.close():
                self.record(sample)
            elif sample.key in self.trials:
                self.trials[sample.key].unfinished += 1

    def record(self, sample: _Sample) -> None:
        """Add a sample, and decide."""
        with self.team.lock:
            trial = self.trials.get(sample.key)
            if trial is None or sample.key in self.verdicts:
                return
            trial.add(sample.is_own, sample.seconds, sample.preparing)
            shared = self.team.preparing(sample.key.edges, sample.key.training)
            verdict = trial.verdict(shared)
            if verdict is None:
                return
            self.verdicts[sample.key] = verdict
            del self.trials[sample.key].own[:], trial.original[:]
            if verdict.speedup < 1 and shared > SHARED * verdict.own:
                self.team.reopen(self, sample.key.edges)
        self.tell(verdict, sample.key)

    def tell(self, verdict: Verdict, key: SizeClass) -> None:
        """Log a decision."""
        kept = "kept" if verdict.speedup >= 1 else "PyTorch Geometric's is used"
        log.info("%s: sparloom's layer is %.2f times as fast as PyTorch Geometric's (%s): %s", self.name,
                 verdict.speedup, key, kept)


class _Sample:
    """One timed call."""

    def __init__(self, key: SizeClass, is_own: bool, preparing: float, seconds: float) -> None:
        self.key, self.is_own, self.preparing, self.seconds = key, is_own, preparing, seconds
        self._begin: float | None = None
        self._end: float | None = None
        self._handles: list[Any] = []

    def watch(self, result: torch.Tensor, inputs: list[Any]) -> None:
        """Time the backward pass, too: from the gradient of the result to the last one of an input."""
        self._handles = [result.register_hook(self._start), *(
            each.register_hook(self._stop) for each in inputs if isinstance(each, torch.Tensor) and each.requires_grad
            and not isinstance(each, UninitializedParameter))]

    def close(self) -> bool:
        """Stop watching; return whether the backward pass has run."""
        for handle in self._handles:
            handle.remove()
        if self._begin is None or self._end is None:
            return False
        self.seconds += self._end - self._begin
        return True

    def _start(self, grad: torch.Tensor) -> None:
        if self._begin is None:
            self._begin = _now(grad)

    def _stop(self, grad: torch.Tensor) -> None:
        if self._begin is not None:
            self._end = _now(grad)


def can_be_timed() -> bool:
    """Return whether the present call can be timed.

    It cannot inside a backward pass and under hooks of saved tensors, where checkpoints compute a layer again and must
    get the same implementation, and while a compiler, torch.func or forward mode replaces tensors.
    """
    return not (torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1 or torch._C._is_tracing()
                or in_functorch() or forward_ad._current_level >= 0
                or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None)


def size_class(x: Any, edge_index: Any) -> SizeClass | None:
    """Return the class of a call; None: it cannot be timed."""
    if not can_be_timed():
        return None
    features = x[0] if isinstance(x, tuple | list) else x
    if not isinstance(features, torch.Tensor) or features.dim() != 2:
        return None
    if not isinstance(edge_index, torch.Tensor):
        edges = int(edge_index.nnz()) if hasattr(edge_index, "nnz") else 0
    elif edge_index.layout == torch.strided:
        edges = edge_index.shape[-1]
    else:
        edges = edge_index._nnz()
    return SizeClass(edges.bit_length(), features.shape[0].bit_length(), features.shape[1], torch.is_grad_enabled())


def _aliases(x: Any) -> Any:
    """Return the same features under names of their own, whose gradients are complete when this layer is done."""
    if isinstance(x, tuple | list):
        first, second = x
        alias = _aliases(first)
        return alias, alias if second is first else _aliases(second)
    return x.view_as(x) if isinstance(x, torch.Tensor) and x.requires_grad else x


def _now(x: Any) -> float:
    """Return the time when the work so far is done, on the device of x."""
    features = x[0] if isinstance(x, tuple) else x
    if isinstance(features, torch.Tensor) and features.is_cuda:
        torch.cuda.synchronize(features.device)
    return perf_counter()
