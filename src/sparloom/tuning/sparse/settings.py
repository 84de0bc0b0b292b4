"""Policies of decisions, and the environment variables AUTOSAGE_* that change them without changing the program.

| variable | values | default | effect |
|---|---|---|---|
| `AUTOSAGE_CACHE_DIR` | folder | `plans/` of `SPARLOOM_CACHE` or `~/.cache/sparloom` | folder of the decisions |
| `AUTOSAGE_CACHE` | 0, 1 | 1 | 0: nothing is read from or stored on disk |
| `AUTOSAGE_REPLAY_ONLY` | 0, 1 | 0 | 1: nothing is measured; without a stored decision the baseline runs |
| `AUTOSAGE_LOG_PROBES` | 0, 1 | 1 | a line per decision in probe_logs.jsonl beside the decisions |
| `AUTOSAGE_PROBE_FRAC` | above 0, at most 1 | 0.05 | share of the nonzeros in a sample |
| `AUTOSAGE_PROBE_MIN_ROWS` | 1, 2, ... | 20,000 nonzeros | minimum rows, of mean length, in a sample |
| `AUTOSAGE_PROBE_ITERS` | 1, 2, ... | 3 | repetitions of candidates that stay to the end |
| `AUTOSAGE_PROBE_CAP_MS` | above 0 | 200 | half of the time of a race and its duel |
| `AUTOSAGE_SHORTLIST` | estimate, all, trees, model | estimate | what selects the candidates: `CandidateSource` |
| `AUTOSAGE_SHORTLIST_MODEL` | paths, with `:` between | | files of the learned model, if one is used |
| `AUTOSAGE_MIN_PROBE_ROWS` | 0, 1, ... | 0 | smaller matrices run the baseline, unmeasured; minimum rows of samples |
| `AUTOSAGE_MIN_PROBE_NNZ` | 0, 1, ... | 0 | the same, in nonzeros |
| `AUTOSAGE_VERBOSE` | 0, 1 | 0 | 1: log each decision, to stderr if logging is not configured |
| `AUTOSAGE_HUB_CTA`, `AUTOSAGE_VEC4` | 0, 1 | 1 | 0: no CUDA kernel with a block per hub, or loads of 4, is measured |
| `AUTOSAGE_FTILE` | 64, 128 | | of the CUDA kernels of SpMM, only those with such tiles of columns are measured |
| `AUTOSAGE_WPB` | 2, 4, 8 | | of the CUDA kernels, only those with so many warps per block are measured |

An empty variable counts as unset. Source: AutoSAGE, second generation of its code.
"""

from __future__ import annotations

import difflib
import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from sparloom.space import CUDA_KERNELS, HUBS, Config
from sparloom.sparse import Pattern
from sparloom.tuning.cache import PlanCache
from sparloom.tuning.racing import Guardrail, MeasurementBudget
from sparloom.tuning.records import ProbeLog
from sparloom.tuning.search import SHORTLISTS, CandidateSource, Given, is_object

__all__ = ["CsrPolicy", "CudaSettings", "Settings"]

log = logging.getLogger(__name__)

PREFIX = "AUTOSAGE_"
LOGGER = "sparloom.tuning"  # of all decisions

Calibration = Literal["sample", "full"]
CALIBRATIONS = get_args(Calibration)

MAX_CONFIGS = 1000  # above the size of any space of sparse kernels on a CPU


@dataclass(frozen=True)
class CsrPolicy:
    """Policy of decisions.

    Args:
        share: of the nonzeros in the sample, ...
        least_nonzeros: ... but at least so many.
        parts: of the sample, on which the winner and the best baseline meet in turn; the verdict includes the spread.
        calibrate: "sample"; "full": measure on all rows, however long that takes.
        runs: measurements take at most as long as so many runs of the default configuration on all rows.
        least_seconds: if that is less than this, or too few runs on the sample, nothing is measured.
        effort: at most `executions` runs on the sample in the race and in the duel; at most twice `seconds` for both.
        guardrail: that our kernels must pass.
        seed: of the sample.
    """

    share: float = 0.05
    least_nonzeros: int = 20_000
    parts: int = 3
    calibrate: Calibration = "sample"
    runs: float = 7.0
    least_seconds: float = 20e-3
    effort: MeasurementBudget = field(default_factory=lambda: MeasurementBudget(
        candidates=6, repetitions=3, pairs=(5, 12), executions=40, seconds=0.2, short_seconds=0.1e-3))
    guardrail: Guardrail = field(default_factory=lambda: Guardrail(alpha=0.95))
    seed: int = 0

    def __post_init__(self) -> None:
        if self.calibrate not in CALIBRATIONS:
            raise ValueError(f"calibrate={self.calibrate!r}: give one of {', '.join(CALIBRATIONS)}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} of the nonzeros: give a number above 0, at most 1")
        if self.parts < 1:
            raise ValueError(f"parts={self.parts} of the sample: give at least 1")

    def measuring_all(self) -> CsrPolicy:
        """Admit every configuration, within the same limits of time."""
        effort = self.effort
        return replace(self, effort=replace(effort, candidates=MAX_CONFIGS, executions=max(
            effort.executions, MAX_CONFIGS * (effort.repetitions + 1))))

    def seconds(self, run: float) -> float:
        """Seconds that measurements may take if a run takes so many; 0: measure nothing."""
        if self.calibrate == "full":
            return 2 * self.effort.seconds
        allowed = min(self.runs * run, 2 * self.effort.seconds)
        return allowed if allowed >= self.least_seconds else 0.0

    def enough(self, seconds: float, runs: float, sample_seconds: float) -> bool:
        """Tell whether so many seconds suffice for some runs on the sample of `sample_seconds` each."""
        return self.calibrate == "full" or seconds >= runs * max(sample_seconds, self.effort.short_seconds)


@dataclass(frozen=True)
class CudaSettings:
    """Settings of the CUDA kernels, without effect on a CPU; None: not set.

    Args:
        hub_cta: False: no kernel gives a block of threads to a hub row.
        vec4: False: no kernel loads four values at once.
        ftile: columns of a tile of SpMM.
        wpb: warps of a block.
    """

    hub_cta: bool | None = None
    vec4: bool | None = None
    ftile: int | None = None
    wpb: int | None = None

    def allows(self, config: Config) -> bool:
        """Tell whether a kernel may be measured."""
        if config.space != CUDA_KERNELS:
            return True
        tile = int(config["lanes"]) * int(config["vector"]) * int(config["loads"]) if "loads" in config.names else None
        return not (
            (self.hub_cta is False and config["balance"] in HUBS)
            or (self.vec4 is False and int(config["vector"]) == 4)
            or (self.ftile is not None and tile not in (None, self.ftile))
            or (self.wpb is not None and int(config["warps"]) != self.wpb))


@dataclass(frozen=True)
class Settings:
    """Settings from environment variables; None: not set.

    Args:
        cache_dir: folder of the decisions.
        caching: read and store decisions on disk.
        replay_only: measure nothing.
        log_probes: write a line for each decision.
        probe_frac: share of the nonzeros in the sample, ...
        probe_min_rows: ... but at least as many as in so many rows of mean length.
        probe_iters: repetitions.
        probe_cap_ms: half of the time of a race and its duel together.
        shortlist, shortlist_model: kind and files of the `CandidateSource`.
        min_probe_rows, min_probe_nnz: of a matrix that is measured, and of a sample.
        verbose: log decisions, to stderr if logging is not configured.
    """

    cache_dir: Path | None = None
    caching: bool = True
    replay_only: bool = False
    log_probes: bool = True
    probe_frac: float | None = None
    probe_min_rows: int | None = None
    probe_iters: int | None = None
    probe_cap_ms: float | None = None
    shortlist: str | None = None
    shortlist_model: tuple[Path, ...] = ()
    min_probe_rows: int = 0
    min_probe_nnz: int = 0
    verbose: bool = False
    cuda: CudaSettings = field(default_factory=CudaSettings)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the variables; warn once per process of those that have no effect or do not exist.

        Raises:
            ValueError: a value is not allowed; names variable, value and the allowed values.
        """
        given = {name: text for name, text in environment.items() if name.startswith(PREFIX) and text}
        if not given:
            return cls()
        for name in sorted(given.keys() - _VARIABLES.keys() - _CUDA_VARIABLES.keys()):
            near = difflib.get_close_matches(name, [*_VARIABLES, *_CUDA_VARIABLES], n=1)
            _warn(f"{name} is not read" + (f": did you mean {near[0]}?" if near else ""))
        cuda = _values(given, _CUDA_VARIABLES)
        if cuda:
            _warn(f"{', '.join(sorted(_CUDA_VARIABLES.keys() & given.keys()))}: no effect on a CPU")
        return cls(**_values(given, _VARIABLES), cuda=CudaSettings(**cuda))

    def plans(self) -> PlanCache:
        """Open the cache."""
        if not self.caching:
            return PlanCache(None)
        return PlanCache.of_this_user() if self.cache_dir is None else PlanCache(self.cache_dir)

    def probe_log(self, plans: PlanCache) -> ProbeLog | None:
        """Open the log beside the decisions; None if it is switched off or there is no folder."""
        return ProbeLog(plans.folder) if self.log_probes and plans.folder is not None else None

    def candidate_source(self, shortlist: str | None = None, model: Given = None) -> CandidateSource:
        """Make the source of shortlists; arguments, as of `CandidateSource.of`, override the variables."""
        kind = shortlist if shortlist is not None or is_object(model) else self.shortlist
        learned = kind in ("trees", "model")
        return CandidateSource.of(kind, self.shortlist_model if model is None and learned else model)

    def policy(self, default: CsrPolicy, pattern: Pattern | None = None) -> CsrPolicy:
        """Override a policy by the variables that are set.

        Args:
            pattern: of the matrix to decide about; needed for limits in rows.
        """
        effort = default.effort
        if self.probe_iters is not None:
            more = math.ceil(effort.executions * self.probe_iters / effort.repetitions)
            effort = replace(effort, repetitions=self.probe_iters, executions=max(effort.executions, more))
        if self.probe_cap_ms is not None:
            effort = replace(effort, seconds=1e-3 * self.probe_cap_ms)
        mean = pattern.nnz / max(1, pattern.rows) if pattern is not None else 0.0
        least = default.least_nonzeros if self.probe_min_rows is None or pattern is None else (
            math.ceil(self.probe_min_rows * mean))
        least = max(least, self.min_probe_nnz, math.ceil(self.min_probe_rows * mean))
        return replace(default, effort=effort, least_nonzeros=least,
                       share=default.share if self.probe_frac is None else self.probe_frac)

    def unmeasured(self, pattern: Pattern) -> str:
        """Reason why nothing is measured for a matrix without a stored decision; "" if it is measured."""
        if self.replay_only:
            return "AUTOSAGE_REPLAY_ONLY=1 and no decision is stored"
        if pattern.rows < self.min_probe_rows:
            return f"{pattern.rows} rows, AUTOSAGE_MIN_PROBE_ROWS={self.min_probe_rows}"
        if pattern.nnz < self.min_probe_nnz:
            return f"{pattern.nnz} nonzeros, AUTOSAGE_MIN_PROBE_NNZ={self.min_probe_nnz}"
        return ""

    def show_decisions(self) -> None:
        """Log decisions if `verbose`: to the existing handlers, else to stderr."""
        if not self.verbose:
            return
        decisions = logging.getLogger(LOGGER)
        if not decisions.isEnabledFor(logging.INFO):
            decisions.setLevel(logging.INFO)
        if not decisions.hasHandlers():
            shown = logging.StreamHandler()
            shown.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            decisions.addHandler(shown)


@dataclass(frozen=True)
class _Variable:
    """A variable: the field it sets, its allowed values in words, and its parser, which returns None for others."""

    field: str
    allowed: str
    read: Callable[[str], Any]


def _values(given: Mapping[str, str], variables: Mapping[str, _Variable]) -> dict[str, Any]:
    values = {}
    for name, variable in variables.items():
        if name in given:
            values[variable.field] = variable.read(given[name])
            if values[variable.field] is None:
                raise ValueError(f"{name}={given[name]!r}: give {variable.allowed}, or unset it")
    return values


@cache
def _warn(text: str) -> None:
    """Warn once per process."""
    log.warning("%s", text)


def _flag(name: str) -> _Variable:
    return _Variable(name, "0 or 1", {"0": False, "1": True}.get)


def _one_of(name: str, *values: int | str) -> _Variable:
    return _Variable(name, " or ".join(map(str, values)), {str(value): value for value in values}.get)


def _count(name: str, least: int) -> _Variable:
    def read(text: str) -> int | None:
        return int(text) if re.fullmatch("[0-9]{1,15}", text) and int(text) >= least else None

    return _Variable(name, f"a whole number, at least {least}", read)


def _number(name: str, most: float) -> _Variable:
    def read(text: str) -> float | None:
        whole = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text)
        return float(text) if whole and 0 < float(text) <= most else None

    return _Variable(name, f"a number above 0, at most {most:,.15g}", read)


def _folder(name: str) -> _Variable:
    def read(text: str) -> Path | None:
        path = _path(text)
        try:
            return path if path is None or path.is_dir() or not path.exists() else None
        except (OSError, ValueError):  # too long, a byte 0
            return None

    return _Variable(name, "a folder, or the name of a new one", read)


def _paths(name: str) -> _Variable:
    def read(text: str) -> tuple[Path, ...] | None:
        paths = tuple(_path(each) for each in text.split(os.pathsep) if each)
        return None if None in paths or not paths else paths

    return _Variable(name, f"paths, with {os.pathsep} between", read)


def _path(text: str) -> Path | None:
    """Expand ~ in a path; None if there is no such home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return None


_VARIABLES: Mapping[str, _Variable] = {
    "AUTOSAGE_CACHE_DIR": _folder("cache_dir"),
    "AUTOSAGE_CACHE": _flag("caching"),
    "AUTOSAGE_REPLAY_ONLY": _flag("replay_only"),
    "AUTOSAGE_LOG_PROBES": _flag("log_probes"),
    "AUTOSAGE_PROBE_FRAC": _number("probe_frac", 1),
    "AUTOSAGE_PROBE_MIN_ROWS": _count("probe_min_rows", 1),
    "AUTOSAGE_PROBE_ITERS": _count("probe_iters", 1),
    "AUTOSAGE_PROBE_CAP_MS": _number("probe_cap_ms", 1e6),
    "AUTOSAGE_SHORTLIST": _one_of("shortlist", *SHORTLISTS),
    "AUTOSAGE_SHORTLIST_MODEL": _paths("shortlist_model"),
    "AUTOSAGE_MIN_PROBE_ROWS": _count("min_probe_rows", 0),
    "AUTOSAGE_MIN_PROBE_NNZ": _count("min_probe_nnz", 0),
    "AUTOSAGE_VERBOSE": _flag("verbose"),
}

_CUDA_VARIABLES: Mapping[str, _Variable] = {
    "AUTOSAGE_HUB_CTA": _flag("hub_cta"),
    "AUTOSAGE_VEC4": _flag("vec4"),
    "AUTOSAGE_FTILE": _one_of("ftile", 64, 128),
    "AUTOSAGE_WPB": _one_of("wpb", 2, 4, 8),
}
