"""Exhaustive search: score every configuration of the space; right for spaces of a few thousand points.

Evolutionary search: for spaces that are too large to score every configuration.

Search that fits the space: every configuration of a small one, an evolution in a large one.

A few configurations of which one is near the best on every problem.

Which few kernels of a space are worth a measurement.

Where the shortlists of decisions come from: a formula, learned models, or everything there is.

    estimate  a formula over rates of this machine, `CsrEstimate`
    all       every configuration; the formula says in which order they are measured
    trees     performance models, folders that experiment=fit_trees writes
    model     COGNATE networks, files that experiment=finetune_cpu_kernels writes

A learned model proposes, the probe decides, the guardrail protects. Where a model says that it was not trained for a
problem, the formula takes its place.

Learned models need lightgbm or torch, which this package must not import. `sparloom.models` is asked for them by name
when a decision is made, so that what is kept runs without them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sparloom.errors import IllegalSchedule, MissingArtifact, Unsupported
from sparloom.files import sha256
from sparloom.ops import Operands
from sparloom.space import Config, ConfigSpace, GridSpace
from sparloom.sparse import Pattern

if TYPE_CHECKING:
    from sparloom.models import CostModel, MatrixFeatures

__all__ = [
    "SHORTLISTS", "CandidateSource", "CsrCostModel", "Evolution", "Given", "Ranked", "best", "is_object",
    "portfolio", "shortlist", "top_k",
]


@dataclass(frozen=True)
class Ranked:
    """A configuration and its score; low = fast."""

    config: Config
    score: float


def top_k(model: CostModel, matrix: Pattern | MatrixFeatures, space: ConfigSpace, k: int) -> list[Ranked]:
    """Find the k configurations with the lowest scores, best first; equal scores keep the order of the space.

    Args:
        space: bound or not; it is bound to the shape of the matrix here.

    Raises:
        ValueError: k is not in 1..len(space), or the model gave a score that is not a number.
    """
    if not 1 <= k <= len(space):
        raise ValueError(f"top {k} of space {space.name} ({space.op}): choose k from 1 to {len(space)}")
    configs = list(space.bind(matrix.shape))
    scores = np.asarray(model.score(matrix, configs), np.float64)
    if scores.shape != (len(configs),) or np.isnan(scores).any():
        raise ValueError(f"{type(model).__name__} gave {scores.size} scores, {np.isnan(scores).sum()} of them NaN, for "
                         f"{len(configs)} configurations: its training diverged, train it again")
    best = np.argsort(scores, kind="stable")[:k]
    return [Ranked(configs[place], float(scores[place])) for place in best]


Scorer = Callable[[Sequence[Config]], np.ndarray]
"""Configurations -> scores, low = fast."""

ATTEMPTS = 20  # to make a legal child that was not scored before


@dataclass(frozen=True)
class Evolution:
    """A population whose children take each value from either parent, and some values from neither.

    Args:
        population: configurations that may have children; as many children are born in each generation.
        generations: at most.
        patience: generations without a better one after which it ends.
        mutation: probability that a value is drawn anew; half of the draws are of a neighbouring value.
        tournament: candidates among which the best becomes a parent.
        seed: of all draws.
    """

    population: int
    generations: int
    patience: int
    mutation: float
    tournament: int
    seed: int

    def top_k(self, score: Scorer, space: GridSpace, k: int) -> list[Ranked]:
        """Find k configurations with low scores, best first.

        Raises:
            ValueError: k is not in 1..population.
        """
        if not 1 <= k <= self.population:
            raise ValueError(f"top {k} of a population of {self.population}: choose k from 1 to {self.population}")
        rng = np.random.default_rng(self.seed)
        scored = _scored(score, space.sample(min(self.population, len(space)), rng))
        living, idle = _best(scored, self.population), 0
        for _ in range(self.generations):
            children = self._children(living, space, scored, rng)
            if idle == self.patience or not children:
                break
            before = scored[living[0]]
            scored |= _scored(score, children)
            living = _best(scored, self.population)
            idle = 0 if scored[living[0]] < before else idle + 1
        return [Ranked(config, scored[config]) for config in living[:k]]

    def _children(
        self, living: Sequence[Config], space: GridSpace, known: dict[Config, float], rng: np.random.Generator
    ) -> list[Config]:
        children: dict[Config, None] = {}
        for _ in range(self.population):
            for _ in range(ATTEMPTS):
                first, second = (living[min(rng.integers(len(living), size=self.tournament))] for _ in range(2))
                child = self._child(first, second, space, rng)
                if child not in known and child not in children and _legal(child, space):
                    children[child] = None
                    break
        return list(children)

    def _child(self, first: Config, second: Config, space: GridSpace, rng: np.random.Generator) -> Config:
        values = {}
        for parameter in space.parameters:
            value = (first, second)[rng.integers(2)][parameter.name]
            if rng.random() < self.mutation:
                value = _mutated(parameter.values, parameter.values.index(value), rng)
            values[parameter.name] = value
        return first.replace(**values)


def _mutated(values: tuple, place: int, rng: np.random.Generator) -> object:
    if rng.random() < 0.5:
        return values[min(len(values) - 1, max(0, place + (1 if rng.random() < 0.5 else -1)))]
    return values[rng.integers(len(values))]


def _legal(config: Config, space: GridSpace) -> bool:
    try:
        space.validate(config)
    except IllegalSchedule:
        return False
    return True


def _scored(score: Scorer, configs: Sequence[Config]) -> dict[Config, float]:
    return dict(zip(configs, np.asarray(score(configs), np.float64).tolist(), strict=True))


def _best(scored: dict[Config, float], count: int) -> list[Config]:
    return sorted(scored, key=scored.__getitem__)[:count]


LISTED = 4096  # configurations of a space that is scored whole


def best(
    score: Callable[[Sequence[Config]], np.ndarray], space: GridSpace, k: int, *, evolution: Evolution
) -> list[Ranked]:
    """Find k configurations with low scores, best first.

    Args:
        score: configurations -> scores, low = fast.
        evolution: for a space of more than 4096 configurations.
    """
    if len(space) > LISTED:
        return evolution.top_k(score, space, k)
    configs = list(space)
    scores = np.asarray(score(configs), np.float64)
    return [Ranked(configs[place], float(scores[place])) for place in np.argsort(scores, kind="stable")[:k]]


def portfolio(seconds: np.ndarray, count: int) -> list[int]:
    """Choose configurations one by one, each as the mean logarithm of the least seconds falls the most.

    Args:
        seconds: (problems, configurations).
        count: of configurations, at most: it ends where another one would not help.

    Returns:
        Columns, in the order in which they were chosen.
    """
    logs, chosen = np.log(seconds), []
    least = np.full(len(logs), np.inf)
    while len(chosen) < count:
        means = np.minimum(logs, least[:, None]).mean(axis=0)
        best = int(means.argmin())
        if best in chosen or not means[best] < least.mean():
            break
        chosen.append(best)
        least = np.minimum(least, logs[:, best])
    return chosen


class CsrCostModel(Protocol):
    """Orders configurations of one operation for one problem."""

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Score, (configs,): low = fast.

        Raises:
            Unsupported: the model was not trained for this; a formula is asked in its place.
        """


def shortlist(
    model: CsrCostModel, op: str, operands: Operands, configs: Sequence[Config], *, count: int,
    kind: Callable[[Config], str],
) -> list[Config]:
    """Choose the most promising configurations, best first, with at least one of each kind as far as they suffice.

    Args:
        count: of them; where there are more kinds, these are each of another kind.
        kind: of a configuration, in which an estimate does not see enough to leave one out.
    """
    ranked = [configs[place] for place in np.argsort(model.score(op, operands, configs), kind="stable")]
    chosen = ranked[:count]
    for missing in dict.fromkeys(map(kind, ranked)):
        held = Counter(map(kind, chosen))
        if missing not in held:
            last = max((place for place, config in enumerate(chosen) if held[kind(config)] > 1), default=None)
            if last is None:
                break
            del chosen[last]
            chosen.append(next(config for config in ranked if kind(config) == missing))
    return chosen


log = logging.getLogger(__name__)

Given = CsrCostModel | str | Path | Sequence[str | Path] | None

SHORTLISTS = ("estimate", "all", "trees", "model")
GIVEN = "given"  # a model that came as an object
OPENED: Mapping[str, str] = {"trees": "load_trees", "model": "load_networks"}
EXPERIMENTS: Mapping[str, tuple[str, str]] = {
    "trees": ("fit_trees", "python run.py experiment=fit_trees"),
    "model": ("finetune_cpu_kernels", "python run.py -m experiment=finetune_cpu_kernels op=spmm,sddmm")}
"""Source of shortlists -> the experiment that makes its files, and the command."""

HEADER = "model.json"  # of a performance model
BEST_FIRST = ("", "full", "small")  # folders in which it may lie


@dataclass(frozen=True)
class CandidateSource:
    """A source of shortlists.

    Args:
        kind: one of `SHORTLISTS`, or "given".
        files: of a learned model: folders with a model.json, or checkpoints.
        given: the model that came as an object.
    """

    kind: str
    files: tuple[Path, ...] = ()
    given: CsrCostModel | None = None

    @classmethod
    def of(cls, shortlist: str | None, model: Given = None) -> CandidateSource:
        """Take what a user says.

        Args:
            shortlist: one of `SHORTLISTS`; None: the formula, or the model that is given as an object.
            model: paths of a learned model's files, one or several, or a model as an object.

        Raises:
            ValueError: another word, a model without a word for it, or a learned model that is not given.
            MissingArtifact: a file is not there; names the command that makes it.
        """
        if shortlist is not None and shortlist not in SHORTLISTS:
            raise ValueError(f"shortlist={shortlist!r}: give one of {', '.join(SHORTLISTS)}")
        if is_object(model):
            if shortlist is not None:
                raise ValueError(f"shortlist={shortlist!r} beside a model that is an object: give one of them")
            return cls(GIVEN, given=model)
        paths = [model] if isinstance(model, str | Path) else list(model or ())
        kind = shortlist or "estimate"
        if kind not in OPENED:
            if paths:
                raise ValueError(f"model={paths[0]!s} is not read with shortlist={kind!r}: give shortlist=\"trees\" or "
                                 "\"model\"")
            return cls(kind)
        if not paths:
            raise ValueError(f"shortlist={kind!r} needs model=<paths of its files>, or AUTOSAGE_SHORTLIST_MODEL: "
                             f"{EXPERIMENTS[kind][1]} makes them")
        return cls(kind, tuple(_file(kind, Path(path).expanduser()) for path in paths))

    @property
    def learned(self) -> bool:
        """Whether a model is asked that may think longer than a race takes."""
        return self.kind in OPENED or self.kind == GIVEN

    @property
    def key(self) -> Mapping[str, str]:
        """What the key of a decision must hold, so that those of several sources do not mix; nothing for the formula.

        A learned model is known by the content of its files, an object by its class and by its `digest`, if it has one.
        """
        if self.kind == "estimate":
            return {}
        if self.kind == GIVEN:
            named = f"{type(self.given).__module__}.{type(self.given).__qualname__}"
            return {"shortlist": f"{named} {getattr(self.given, 'digest', '')}".strip()}
        return {"shortlist": " ".join([self.kind, *sorted(_content(_stamp(path)) for path in self.files)])}

    def scorer(self, formula: Callable[[], CsrCostModel], *, threads: int) -> CsrCostModel:
        """Make what orders the configurations.

        Args:
            formula: makes the formula, which takes the place of a model that was not trained for a problem.
            threads: of the kernels.

        Raises:
            SchemaError: a file holds something else than it should.
        """
        if not self.learned:
            return formula()
        opened = self.given or _opened(self.kind, tuple(map(_stamp, self.files)), threads)
        return _OrFormula(opened, formula)


@dataclass(frozen=True)
class _OrFormula:
    """A model, and the formula where it was not trained for a problem, which is said once per process."""

    model: CsrCostModel
    formula: Callable[[], CsrCostModel]

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Score configurations."""
        try:
            return self.model.score(op, operands, configs)
        except Unsupported as reason:
            _say(f"shortlists of {op} are made by the formula: {reason}")
            return self.formula().score(op, operands, configs)


def is_object(model: Given) -> bool:
    """Whether a model is one, rather than paths of its files or nothing."""
    return model is not None and not isinstance(model, str | Path | Sequence)


Stamp = tuple[Path, int, int]
"""A file, the time of its last change in nanoseconds, and its bytes: what of it was read before may be used again."""


def _file(kind: str, path: Path) -> Path:
    """Find what a path stands for."""
    found = [path] if kind == "model" else [path / place for place in BEST_FIRST if (path / place / HEADER).is_file()]
    if not found or not found[0].exists():
        experiment, command = EXPERIMENTS[kind]
        raise MissingArtifact(f"{path} is not there, for shortlist={kind!r}: {command} makes it", experiment=experiment)
    return found[0].resolve()


def _stamp(path: Path) -> Stamp:
    status = (path / HEADER if path.is_dir() else path).stat()
    return path, status.st_mtime_ns, status.st_size


@lru_cache(16)
def _content(stamp: Stamp) -> str:
    """Digest of a file; the header of a performance model holds those of its trees."""
    path = stamp[0]
    return sha256(path / HEADER if path.is_dir() else path)[:16]


@lru_cache(4)
def _opened(kind: str, stamps: tuple[Stamp, ...], threads: int) -> Any:
    return getattr(import_module("sparloom.models"), OPENED[kind])([path for path, *_ in stamps], threads=threads)


@cache
def _say(text: str) -> None:
    log.warning("%s", text)
