"""Machines, configurations and patterns that tests of SPADE share."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from sparloom.platforms.spade import Machine
from sparloom.space import Config
from sparloom.sparse import Pattern, reorder

PLATFORMS = OmegaConf.load(Path(__file__).resolve().parents[4] / "conf" / "options" / "platforms.yaml").platform


def machine_of(preset: str, **changes) -> Machine:
    """The machine of a platform in conf/options/platforms.yaml with some parameters changed."""
    chosen = OmegaConf.merge(PLATFORMS.spade, PLATFORMS[preset])
    machine = Machine(**{field.name: chosen[field.name] for field in fields(Machine)})
    return replace(machine, **changes)


def config_of(row_panel=256, column_panel="all", split=256, barrier=0, bypass=0, reorder=0) -> Config:
    values = (row_panel, column_panel, split, barrier, bypass, reorder)
    names = ("row_panel", "column_panel", "split", "barrier", "bypass", "reorder")
    return Config("spade", tuple(zip(names, values, strict=True)))


def symmetric(rows: np.ndarray, cols: np.ndarray, size: int) -> Pattern:
    return Pattern.from_coo(np.r_[rows, cols], np.r_[cols, rows], (size, size))


def banded(size: int, half: int, degree: int, seed: int = 0) -> Pattern:
    """About 2 * degree nonzeros per row within `half` of the diagonal."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(size), degree)
    return symmetric(rows, np.clip(rows + rng.integers(-half, half + 1, rows.size), 0, size - 1), size)


def uniform(size: int, degree: int, seed: int = 0, cols: int | None = None) -> Pattern:
    rng = np.random.default_rng(seed)
    count = size * degree
    cols = size if cols is None else cols
    return Pattern.from_coo(rng.integers(0, size, count), rng.integers(0, cols, count), (size, cols))


def even_rows(size: int, degree: int, cols: int) -> Pattern:
    """Exactly `degree` nonzeros in each row, spread over all columns."""
    rows = np.repeat(np.arange(size), degree)
    return Pattern.from_coo(rows, (rows * 7 + np.tile(np.arange(degree), size) * (cols // degree)) % cols, (size, cols))


def grid(width: int, height: int) -> Pattern:
    """Five-point stencil without the diagonal."""
    number = np.arange(width * height).reshape(height, width)
    rows = np.r_[number[:, :-1].ravel(), number[:-1].ravel()]
    return symmetric(rows, np.r_[number[:, 1:].ravel(), number[1:].ravel()], width * height)


def shuffled(pattern: Pattern, seed: int = 0) -> Pattern:
    """Permute rows and columns of the matrix in the same way."""
    order = np.random.default_rng(seed).permutation(pattern.rows)
    return reorder(pattern, order, order)
