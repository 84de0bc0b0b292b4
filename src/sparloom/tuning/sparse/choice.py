"""The kernel of a call on a processor, chosen at once: statistics of the pattern, and what a few trees expect of them.

A thin face of kernels/cpu/choose.cpp, which says what is chosen when. The trees are those of
kernels/cpu/choice_tables.hpp, which `python run.py experiment=choose_kernels` writes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from sparloom.jit import compile_cpp
from sparloom.measure import VALUE_BYTES, Caches
from sparloom.ops import Operands
from sparloom.platforms import CpuKernels
from sparloom.space import Config
from sparloom.sparse import Pattern

OPS: Mapping[str, int] = {"spmm": 0, "spmm_mean": 0, "sddmm": 1, "attention": 2, "spmm_max": 3}
ALL, TOGETHER, GROUP = 0, 1, 16  # what parameters that a configuration lacks are in C++
CODES: Mapping[str, Mapping[Any, int]] = {
    "order": {"natural": 0, "column": 1}, "balance": {"rows": 0, "nonzeros": 1, "dynamic": 2}, "strip": {"all": ALL}}
"""Parameter -> value -> its number in C++; other values are numbers."""
VALUES = {(name, number): value for name, numbers in CODES.items() for value, number in numbers.items()}
NAMES: Mapping[str, tuple[str, ...]] = {
    "spmm": ("order", "balance", "prefetch", "strip", "together", "stream"),
    "sddmm": ("order", "balance", "prefetch", "group"), "attention": ("order", "balance", "prefetch")}
FEATURES = (
    "dense_near", "dense_far", "row_bytes", "work", "mean", "variation", "equal", "reuse", "adjacent", "span", "jump",
    "imbalance", "groups4", "aspect", "order", "prefetch", "together", "stream", "group")
"""What trees read, in order: sizes, other statistics, the configuration; see `describe_problem` in choose.cpp."""


class PatternStatistics(ctypes.Structure):
    """The struct of choose.cpp: sizes, and means over sampled rows."""

    _fields_ = (*((name, ctypes.c_int64) for name in ("rows", "cols", "nnz", "longest")),
                ("mean", ctypes.c_double), ("variance", ctypes.c_double), ("imbalance", ctypes.c_double * 7),
                *((name, ctypes.c_double) for name in ("equal", "reuse", "span", "jump", "adjacent", "groups4")))


class _Case(ctypes.Structure):
    _fields_ = (("width", ctypes.c_int64), ("value_bytes", ctypes.c_int32), ("threads", ctypes.c_int32),
                ("near_bytes", ctypes.c_double), ("far_bytes", ctypes.c_double))


class _Choice(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int32) for name in (
        "order", "balance", "prefetch", "strip", "together", "stream", "group"))


def statistics(pattern: Pattern) -> PatternStatistics:
    """Look at a pattern once: its row lengths and columns in sampled blocks of rows, always the same ones."""
    found = PatternStatistics()
    _library().sparloom_statistics(
        ctypes.c_void_p(pattern.indptr.ctypes.data), ctypes.c_void_p(pattern.indices.ctypes.data),
        ctypes.c_int64(pattern.rows), ctypes.c_int64(pattern.cols), ctypes.byref(found))
    return found


def choose(
    op: str, pattern: Pattern | PatternStatistics, width: int, *, caches: Caches, value_bytes: int = VALUE_BYTES,
    prepared: bool = False,
) -> Config:
    """Choose the configuration of `CpuKernels` for one operation.

    Args:
        width: columns of a dense operand, all heads together.
        caches: of the threads that compute.
        value_bytes: of a number.
        prepared: whether the pattern is prepared: then rows may be sorted, or compared with their neighbours, if that
            is expected to gain more than 4 %.
    """
    chosen = _Choice()
    _library().sparloom_choose(OPS[op], int(prepared), ctypes.byref(_statistics(pattern)),
                               ctypes.byref(_case(width, value_bytes, caches)), ctypes.byref(chosen))
    return _config(op, chosen)


def by_rule(
    op: str, pattern: Pattern | PatternStatistics, width: int, *, caches: Caches, value_bytes: int = VALUE_BYTES,
) -> Config:
    """Return what the rule of choose.cpp says, to which trees are compared; as `choose` for small problems."""
    chosen = _Choice()
    _library().sparloom_choice_rule(OPS[op], ctypes.byref(_statistics(pattern)),
                                    ctypes.byref(_case(width, value_bytes, caches)), ctypes.byref(chosen))
    return _config(op, chosen)


def score(
    op: str, operands: Operands, configs: Sequence[Config], *, caches: Caches, found: PatternStatistics | None = None,
) -> np.ndarray:
    """Score configurations, (configs,): the logarithm of the expected seconds, up to a number that all share.

    Args:
        found: statistics of the pattern, if they are known.
    """
    scores = np.empty(len(configs))
    _library().sparloom_scores(
        OPS[op], ctypes.byref(found or statistics(operands.matrix.pattern)),
        ctypes.byref(_case(operands.width, operands.value_bytes, caches)), _choices(configs),
        ctypes.c_int64(len(configs)), ctypes.c_void_p(scores.ctypes.data))
    return scores


def features(
    op: str, pattern: Pattern | PatternStatistics, width: int, configs: Sequence[Config], *, caches: Caches,
    value_bytes: int = VALUE_BYTES,
) -> np.ndarray:
    """Return what trees read of a problem and configurations, (configs, `FEATURES`)."""
    described = np.empty((len(configs), len(FEATURES)))
    _library().sparloom_choice_features(
        OPS[op], ctypes.byref(_statistics(pattern)), ctypes.byref(_case(width, value_bytes, caches)),
        _choices(configs), ctypes.c_int64(len(configs)), ctypes.c_void_p(described.ctypes.data))
    return described


@cache
def _library() -> ctypes.CDLL:
    return compile_cpp(["cpu/choose.cpp"])


def _statistics(pattern: Pattern | PatternStatistics) -> PatternStatistics:
    return pattern if isinstance(pattern, PatternStatistics) else statistics(pattern)


def _case(width: int, value_bytes: int, caches: Caches) -> _Case:
    return _Case(width, value_bytes, caches.threads, caches.near_bytes, caches.far_bytes)


def _choices(configs: Sequence[Config]) -> ctypes.Array:
    defaults = {"strip": ALL, "together": TOGETHER, "stream": 0, "group": GROUP}
    rows = [defaults | {name: _code(name, config[name]) for name in config.names} for config in configs]
    return (_Choice * len(rows))(*(_Choice(**row) for row in rows))


def _code(name: str, value: Any) -> int:
    return CODES[name].get(value, value) if name in CODES else int(value)


def _config(op: str, choice: _Choice) -> Config:
    names = NAMES["spmm" if OPS[op] == OPS["spmm"] else "attention" if op == "spmm_max" else op]
    return Config(CpuKernels.name, tuple(
        (name, VALUES.get((name, getattr(choice, name)), getattr(choice, name))) for name in names))
