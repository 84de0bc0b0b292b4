"""Select what to measure: configurations found by search or proposed by a cost model, and sample rows for them.

`best` searches a space: every configuration of a small one, by evolution in a large one. `shortlist` keeps the few
configurations that a cost model ranks first. `CandidateSource` says which model that is:

    estimate  a small learned model on a processor, a formula over rates of this machine on a GPU
    all       every configuration; the formula gives the order in which they are measured
    trees     performance models, folders written by experiment=fit_trees
    model     COGNATE networks, files written by experiment=finetune_cpu_kernels

If a learned model was not trained for a problem, the formula takes its place. Learned models need lightgbm or torch,
which this package must not import: `sparloom.models` is imported when such a model is used.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sparloom.errors import IllegalSchedule, MissingArtifact, Unsupported
from sparloom.files import sha256
from sparloom.ops import Operands
from sparloom.space import MAX_LISTED, Config, ConfigSpace, GridSpace
from sparloom.sparse import Pattern

if TYPE_CHECKING:
    from sparloom.models import CostModel, MatrixFeatures

__all__ = [
    "SHORTLISTS", "CandidateSource", "CsrCostModel", "Evolution", "Given", "Ranked", "Sample", "best",
    "favour", "is_object", "portfolio", "sample_rows", "shortlist", "top_k",
]


log = logging.getLogger(__name__)

SHORTLISTS = ("estimate", "all", "trees", "model")
"""What may select the candidates of a decision."""
OBJECT = "given"  # kind of a source that is a model object
LOADERS: Mapping[str, str] = {"trees": "load_trees", "model": "load_networks"}
EXPERIMENTS: Mapping[str, tuple[str, str]] = {
    "trees": ("fit_trees", "python run.py experiment=fit_trees"),
    "model": ("finetune_cpu_kernels", "python run.py -m experiment=finetune_cpu_kernels op=spmm,sddmm")}
"""Source of shortlists -> the experiment that makes its files, and the command."""

HEADER = "model.json"  # of a performance model
SUBFOLDERS = ("", "full", "small")  # in which it may lie, the best model first

ATTEMPTS = 20  # to make a legal child that was not scored before

NOT_FAVOURED = 1.5  # factor of configurations that are not favoured: less than a bad balance costs
BLOCK_ROWS, STRATA = 64, 8  # of samples

Scorer = Callable[[Sequence[Config]], np.ndarray]
"""Configurations -> scores, low = fast."""

Stamp = tuple[Path, int, int]
"""A file, the time of its last change in nanoseconds, and its size: the key under which its content is cached."""


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
    return [Ranked(configs[index], float(scores[index])) for index in np.argsort(scores, kind="stable")[:k]]


@dataclass(frozen=True)
class Evolution:
    """Evolutionary search: children take each value from either parent, or a mutated one.

    Args:
        population: configurations that may have children, and number of children in each generation.
        generations: at most.
        patience: stop after so many generations without improvement.
        mutation: probability that a value is redrawn; half of the draws are of a neighbouring value.
        tournament: size; the best of these candidates becomes a parent.
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


def _mutated(values: tuple, index: int, rng: np.random.Generator) -> object:
    if rng.random() < 0.5:
        return values[min(len(values) - 1, max(0, index + (1 if rng.random() < 0.5 else -1)))]
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


def best(score: Scorer, space: GridSpace, k: int, *, evolution: Evolution) -> list[Ranked]:
    """Find k configurations with low scores, best first.

    Args:
        evolution: searches a space of more than 4096 configurations.
    """
    if len(space) > MAX_LISTED:
        return evolution.top_k(score, space, k)
    configs = list(space)
    scores = np.asarray(score(configs), np.float64)
    return [Ranked(configs[index], float(scores[index])) for index in np.argsort(scores, kind="stable")[:k]]


def portfolio(seconds: np.ndarray, count: int) -> list[int]:
    """Choose configurations greedily, each to lower the mean logarithm of the least seconds the most.

    Args:
        seconds: (problems, configurations).
        count: of configurations, at most; fewer if another one would not help.

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


def favour(seconds: np.ndarray, configs: Sequence[Config], favoured: Collection[str]) -> np.ndarray:
    """Lengthen estimated seconds of configurations that are not favoured, unless none is.

    Formulas seldom tell similar configurations apart, so those that were measured to be good come first.

    Args:
        favoured: keys of configurations.
    """
    if not favoured:
        return seconds
    return seconds * np.array([1.0 if config.key in favoured else NOT_FAVOURED for config in configs])


class CsrCostModel(Protocol):
    """Ranks configurations of one operation for one problem."""

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Score, (configs,): low = fast.

        Raises:
            Unsupported: the model was not trained for this; the formula takes its place.
        """


def shortlist(
    model: CsrCostModel, op: str, operands: Operands, configs: Sequence[Config], *, count: int,
    kind: Callable[[Config], str],
) -> list[Config]:
    """Choose the most promising configurations, best first, with at least one of each kind if `count` allows.

    Args:
        count: of configurations; if there are more kinds, each is of another kind.
        kind: of a configuration; the model cannot compare those of different kinds well enough to drop a kind.
    """
    ranked = [configs[index] for index in np.argsort(model.score(op, operands, configs), kind="stable")]
    chosen = ranked[:count]
    for missing in dict.fromkeys(map(kind, ranked)):
        held = Counter(map(kind, chosen))
        if missing not in held:
            last = max((index for index, config in enumerate(chosen) if held[kind(config)] > 1), default=None)
            if last is None:
                break
            del chosen[last]
            chosen.append(next(config for config in ranked if kind(config) == missing))
    return chosen


@dataclass(frozen=True)
class CandidateSource:
    """Source of shortlists.

    Args:
        kind: one of `SHORTLISTS`, or "given" for a model object.
        files: of a learned model: folders with a model.json, or checkpoints.
        given: the model object.
    """

    kind: str
    files: tuple[Path, ...] = ()
    given: CsrCostModel | None = None

    @classmethod
    def of(cls, shortlist: str | None, model: Given = None) -> CandidateSource:
        """Check what a user asks for.

        Args:
            shortlist: one of `SHORTLISTS`; None: the formula, or `model` if it is an object.
            model: paths of the files of a learned model, one or several, or a model object.

        Raises:
            ValueError: an unknown word, a model that it does not use, or a learned model without files.
            MissingArtifact: a file does not exist; names the command that makes it.
        """
        if shortlist is not None and shortlist not in SHORTLISTS:
            raise ValueError(f"shortlist={shortlist!r}: give one of {', '.join(SHORTLISTS)}")
        if is_object(model):
            if shortlist is not None:
                raise ValueError(f"shortlist={shortlist!r} beside a model object: give one of them")
            return cls(OBJECT, given=model)
        paths = [model] if isinstance(model, str | Path) else list(model or ())
        kind = shortlist or "estimate"
        if kind not in LOADERS:
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
        """Tell whether it is a model that may take longer than a race."""
        return self.kind in LOADERS or self.kind == OBJECT

    @property
    def key(self) -> Mapping[str, str]:
        """Part of the key of a decision, so that those of several sources do not mix; empty for the formula.

        Learned models are identified by the content of their files, objects by their class and `digest`, if any.
        """
        if self.kind == "estimate":
            return {}
        if self.kind == OBJECT:
            named = f"{type(self.given).__module__}.{type(self.given).__qualname__}"
            return {"shortlist": f"{named} {getattr(self.given, 'digest', '')}".strip()}
        return {"shortlist": " ".join([self.kind, *sorted(_content(_stamp(path)) for path in self.files)])}

    def scorer(self, formula: Callable[[], CsrCostModel], *, threads: int) -> CsrCostModel:
        """Load the cost model.

        Args:
            formula: makes the formula, which replaces a model that was not trained for a problem.
            threads: of the kernels.

        Raises:
            SchemaError: a file has unexpected content.
        """
        if not self.learned:
            return formula()
        opened = self.given or _opened(self.kind, tuple(map(_stamp, self.files)), threads)
        return _OrFormula(opened, formula)


@dataclass(frozen=True)
class _OrFormula:
    """A model with the formula as its fallback, which is logged once per process."""

    model: CsrCostModel
    formula: Callable[[], CsrCostModel]

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> np.ndarray:
        """Score configurations."""
        try:
            return self.model.score(op, operands, configs)
        except Unsupported as reason:
            _warn_once(f"shortlists of {op} are made by the formula: {reason}")
            return self.formula().score(op, operands, configs)


def is_object(model: Given) -> bool:
    """Tell whether a model is an object rather than paths of files, or None."""
    return model is not None and not isinstance(model, str | Path | Sequence)


Given = CsrCostModel | str | Path | Sequence[str | Path] | None
"""A model as users give it."""


def _file(kind: str, path: Path) -> Path:
    """Find the file or folder that a path names."""
    found = [path] if kind == "model" else [path / part for part in SUBFOLDERS if (path / part / HEADER).is_file()]
    if not found or not found[0].exists():
        experiment, command = EXPERIMENTS[kind]
        raise MissingArtifact(f"{path} does not exist, for shortlist={kind!r}, whose files `{command}` makes",
                              experiment=experiment)
    return found[0].resolve()


def _stamp(path: Path) -> Stamp:
    status = (path / HEADER if path.is_dir() else path).stat()
    return path, status.st_mtime_ns, status.st_size


@lru_cache(16)
def _content(stamp: Stamp) -> str:
    """Digest of a file; the header of a performance model contains those of its trees."""
    path = stamp[0]
    return sha256(path / HEADER if path.is_dir() else path)[:16]


@lru_cache(4)
def _opened(kind: str, stamps: tuple[Stamp, ...], threads: int) -> Any:
    return getattr(import_module("sparloom.models"), LOADERS[kind])([path for path, *_ in stamps], threads=threads)


@cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


@dataclass(frozen=True)
class Sample:
    """Rows, divided into parts that are samples themselves.

    Args:
        rows: (sampled,) int64, ascending.
        part: (sampled,) int64, part of each row; all 0 if there is only one.
    """

    rows: np.ndarray
    part: np.ndarray

    @property
    def parts(self) -> list[np.ndarray]:
        """Rows of each part, ascending."""
        return [self.rows[self.part == number] for number in range(int(self.part.max(initial=0)) + 1)]


def sample_rows(pattern: Pattern, *, nonzeros: int, parts: int, seed: int) -> Sample:
    """Draw rows with about so many nonzeros; all rows, as one part, if the pattern has no more.

    Rows are drawn in blocks of neighbours, so they share as much in the caches as before; all their columns are kept,
    and the dense operands they read are whole. Blocks are drawn from strata of equal size by nonzeros. The block with
    the most nonzeros is always drawn, so hubs are in the sample; blocks without nonzeros never are.

    Args:
        parts: at most; the blocks of every stratum are dealt to them in turn.

    Departure from AutoSAGE, which probes an induced subgraph: that thins every row by the sampling fraction.
    """
    if pattern.nnz <= nonzeros:
        return Sample(np.arange(pattern.rows), np.zeros(pattern.rows, np.int64))
    begins = np.arange(0, pattern.rows, BLOCK_ROWS)
    held = np.diff(pattern.indptr[np.append(begins, pattern.rows)])
    begins, held = begins[held > 0], held[held > 0]
    rng, chosen = np.random.default_rng(seed), []
    *lighter, heavy = np.array_split(np.argsort(held, kind="stable"), min(STRATA, begins.size))
    drawn = [*map(rng.permutation, lighter), np.append(heavy[-1:], rng.permutation(heavy[:-1]))]
    for stratum in drawn:
        wanted, got = nonzeros * held[stratum].sum() / pattern.nnz, 0
        for block in stratum:
            if got + held[block] / 2 > wanted and block != heavy[-1]:
                break
            chosen.append(int(block))
            got += int(held[block])
    dealt = np.arange(len(chosen)) % min(parts, len(chosen))
    order = np.argsort(chosen)
    blocks = [np.arange(begins[block], min(begins[block] + BLOCK_ROWS, pattern.rows))
              for block in np.array(chosen)[order]]
    return Sample(np.concatenate(blocks), np.repeat(dealt[order], [rows.size for rows in blocks]))
