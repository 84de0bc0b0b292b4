"""Policies of decisions, and the environment variables AUTOSAGE_* that change them without changing the program.

docs/autosage.md lists them. An empty variable counts as unset. Source: AutoSAGE, second generation of its code.
"""

from __future__ import annotations

import difflib
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from sparloom.tuning.cache import PlanCache
from sparloom.tuning.racing import Guardrail, MeasurementBudget

log = logging.getLogger(__name__)

PREFIX = "AUTOSAGE_"


@dataclass(frozen=True)
class CsrPolicy:
    """Policy of decisions.

    Args:
        share: of the nonzeros in the sample, ...
        least_nonzeros: ... but at least so many.
        parts: of the sample, on which the winner and the best baseline meet in turn; the verdict includes the spread.
        effort: at most `executions` runs on the sample in the race and in the duel; at most twice `seconds` for both.
        guardrail: that our kernels must pass.
    """

    share: float = 0.05
    least_nonzeros: int = 20_000
    parts: int = 3
    effort: MeasurementBudget = field(default_factory=lambda: MeasurementBudget(
        candidates=6, repetitions=3, pairs=(5, 12), executions=40, seconds=0.2, short_seconds=0.1e-3))
    guardrail: Guardrail = field(default_factory=lambda: Guardrail(alpha=0.95))

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.parts < 1:
            raise ValueError(f"share={self.share} of the nonzeros in {self.parts} parts: give a share above 0, at most "
                             "1, and at least one part")


@dataclass(frozen=True)
class Settings:
    """Settings from environment variables; None: not set.

    Args:
        cache_dir: folder of the decisions.
        caching: read and store decisions on disk.
        replay_only: measure nothing.
        probe_frac: share of the nonzeros in the sample.
        probe_iters: repetitions.
        probe_cap_ms: half of the time of a race and its duel together.
    """

    cache_dir: Path | None = None
    caching: bool = True
    replay_only: bool = False
    probe_frac: float | None = None
    probe_iters: int | None = None
    probe_cap_ms: float | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the variables; warn once per process of those that do not exist.

        Raises:
            ValueError: a value is not allowed; names variable, value and the allowed values.
        """
        values = {}
        for name, text in sorted(environment.items()):
            if not name.startswith(PREFIX) or not text:
                continue
            if name not in _VARIABLES:
                near = difflib.get_close_matches(name, _VARIABLES, n=1, cutoff=0.8)
                _warn(f"{name} is not read" + (f": did you mean {near[0]}?" if near else ""))
                continue
            allowed, read = _VARIABLES[name]
            value = read(text)
            if value is None:
                raise ValueError(f"{name}={text!r}: give {allowed}, or unset it")
            values[name.removeprefix(PREFIX).lower()] = value
        return cls(caching=values.pop("cache", True), **values)

    def plans(self) -> PlanCache:
        """Open the cache."""
        if not self.caching:
            return PlanCache(None)
        return PlanCache.of_this_user() if self.cache_dir is None else PlanCache(self.cache_dir)

    def policy(self, default: CsrPolicy) -> CsrPolicy:
        """Override a policy by the variables that are set."""
        effort = default.effort
        if self.probe_iters is not None:
            more = math.ceil(effort.executions * self.probe_iters / effort.repetitions)
            effort = replace(effort, repetitions=self.probe_iters, executions=max(effort.executions, more))
        if self.probe_cap_ms is not None:
            effort = replace(effort, seconds=1e-3 * self.probe_cap_ms)
        return replace(default, effort=effort, share=default.share if self.probe_frac is None else self.probe_frac)


@cache
def _warn(text: str) -> None:
    """Warn once per process."""
    log.warning("%s", text)


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:16]) < 10**15 else None


def _number(text: str, *, most: float) -> float | None:
    try:
        return float(text) if 0 < float(text) <= most else None
    except ValueError:
        return None


def _folder(text: str) -> Path | None:
    try:
        path = Path(text).expanduser()
        return path if path.is_dir() or not path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such home, a byte 0
        return None


_FLAG = ("0 or 1", {"0": False, "1": True}.get)
_VARIABLES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "AUTOSAGE_CACHE_DIR": ("a folder, or the name of a new one", _folder),
    "AUTOSAGE_CACHE": _FLAG,
    "AUTOSAGE_REPLAY_ONLY": _FLAG,
    "AUTOSAGE_PROBE_FRAC": ("a number above 0, at most 1", partial(_number, most=1)),
    "AUTOSAGE_PROBE_ITERS": ("a whole number, at least 1", _count),
    "AUTOSAGE_PROBE_CAP_MS": ("a number above 0, at most 1,000,000", partial(_number, most=1e6)),
}
"""Name -> allowed values in words, and their parser, which returns None for others."""
