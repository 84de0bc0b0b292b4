"""Where the shortlists of decisions come from: a formula, learned models, or everything there is.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from sparloom.errors import MissingArtifact, Unsupported
from sparloom.files import sha256
from sparloom.ops import Operands
from sparloom.space import Config
from sparloom.tuning.sparse.decide import CsrPolicy
from sparloom.tuning.sparse.shortlist import CsrCostModel

__all__ = ["SHORTLISTS", "Given", "Proposals", "is_object"]

log = logging.getLogger(__name__)

Given = CsrCostModel | str | Path | Sequence[str | Path] | None

SHORTLISTS = ("estimate", "all", "trees", "model")
GIVEN = "given"  # a model that came as an object
OPENED: Mapping[str, str] = {"trees": "open_trees", "model": "open_networks"}
EXPERIMENTS: Mapping[str, tuple[str, str]] = {
    "trees": ("fit_trees", "python run.py experiment=fit_trees"),
    "model": ("finetune_cpu_kernels", "python run.py -m experiment=finetune_cpu_kernels op=spmm,sddmm")}
"""Source of shortlists -> the experiment that makes its files, and the command."""

HEADER = "model.json"  # of a performance model
BEST_FIRST = ("", "full", "small")  # folders in which it may lie
MOST = 1000  # configurations, above any space of sparse kernels on a CPU


@dataclass(frozen=True)
class Proposals:
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
    def of(cls, shortlist: str | None, model: Given = None) -> Proposals:
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

    def policy(self, policy: CsrPolicy) -> CsrPolicy:
        """Let every configuration take part where all are asked for; the limits of time stay."""
        if self.kind != "all":
            return policy
        effort = policy.effort
        return replace(policy, effort=replace(
            effort, candidates=MOST, executions=max(effort.executions, MOST * (effort.repetitions + 1))))

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
