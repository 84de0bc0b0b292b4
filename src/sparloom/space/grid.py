"""Spaces as data: a grid of parameter values, the illegal points, and what the model sees of each point."""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.space.config import ENCODED_WIDTH, Code, Config, Shape, SharedSchedule, Value, Walk, encode

__all__ = ["ConfigSpace", "GridSpace", "Parameter", "uniform"]

CODE_LIMIT = 4096
"""Most codes that `heterogeneous_codes` lists; beyond it they are drawn, as for the reading latent="config"."""


class ConfigSpace(Protocol):
    """Which programs a platform can run for one operation, and how a model sees them."""

    name: str
    op: str
    parameters: "tuple[Parameter, ...]"

    def bind(self, shape: Shape) -> "ConfigSpace": ...
    def __iter__(self) -> Iterator[Config]: ...
    def __len__(self) -> int: ...
    def sample(self, count: int, rng: np.random.Generator) -> list[Config]: ...
    def validate(self, config: Config) -> None: ...
    def default(self) -> Config: ...
    def canonical(self, config: Config) -> Config: ...
    def shared(self, config: Config) -> SharedSchedule: ...
    def heterogeneous(self, config: Config) -> np.ndarray: ...
    @property
    def heterogeneous_names(self) -> tuple[str, ...]: ...
    def heterogeneous_codes(self) -> np.ndarray: ...
    def vectors(self, configs: Sequence[Config]) -> tuple[np.ndarray, np.ndarray]: ...
    def walk(self, config: Config) -> Walk: ...
    def parse(self, key: str) -> Config: ...
    def digest(self) -> str: ...


def _nothing(_: Config | Value) -> None:
    """No objection."""


def _itself(config: Config, _: Shape) -> Config:
    return config


@dataclass(frozen=True)
class Parameter:
    """A name and the values that are searched, in a fixed order.

    Args:
        fault: says why a value outside the list is wrong, or None when there is nothing to add.
    """

    name: str
    values: tuple[Value, ...]
    fault: Callable[[Value], str | None] = _nothing


def uniform(space: "GridSpace", count: int, rng: np.random.Generator) -> list[Config]:
    """Draw distinct legal configurations, all equally likely."""
    return space.draw_distinct(count, rng, fixed={}, taken=())


@dataclass(frozen=True)
class GridSpace:
    """A space given by its values; every platform's space is one of these.

    Args:
        name: of the platform, written into every configuration.
        op: name of the operation.
        parameters: the grid.
        defaults: the configuration that speedups are relative to.
        mapping: (configuration, shape or None) -> shared schedule; may raise ValueError when it needs the shape. None:
            no model reads this space in shared terms.
        latent: codes of the hardware-specific parameters, at least one where there is a mapping.
        refuse: says why a combination of values of the grid is illegal, or None.
        coupled: the parameters that `refuse` looks at.
        draw: how a sample is taken.
        collapse: (configuration, shape) -> the one that stands for all that are the same program on that shape.
        numbers: how extents enter the vector.
        walks: configuration -> how it walks a matrix; None where that was not described.
        meaning: text that must change when the mapping or the codes do; part of the digest.
        shape: rows and columns of the matrix it is bound to.
    """

    name: str
    op: str
    parameters: tuple[Parameter, ...]
    defaults: tuple[Value, ...]
    mapping: Callable[[Config, Shape | None], SharedSchedule] | None = None
    latent: tuple[Code, ...] = ()
    refuse: Callable[[Config], str | None] = _nothing
    coupled: tuple[str, ...] = ()
    draw: "Callable[[GridSpace, int, np.random.Generator], list[Config]]" = uniform
    collapse: Callable[[Config, Shape], Config] = _itself
    numbers: Literal["log2", "raw"] = "log2"
    walks: Callable[[Config], Walk] | None = None
    meaning: str = ""
    shape: Shape | None = None

    def bind(self, shape: Shape) -> "GridSpace":
        """Fix the size of the matrix, which values such as "all" stand for."""
        return replace(self, shape=(int(shape[0]), int(shape[1])))

    def __iter__(self) -> Iterator[Config]:
        for values in itertools.product(*(parameter.values for parameter in self.parameters)):
            config = self._config(values)
            if self.refuse(config) is None:
                yield config

    def __len__(self) -> int:
        return self._size

    def default(self) -> Config:
        return self._config(self.defaults)

    def sample(self, count: int, rng: np.random.Generator) -> list[Config]:
        """Draw distinct legal configurations.

        Raises:
            ValueError: the space has fewer than `count`.
        """
        if not 0 <= count <= len(self):
            raise ValueError(f"cannot draw {count} configurations: space {self.name} ({self.op}) has {len(self)}")
        return self.draw(self, count, rng)

    def draw_distinct(
        self, count: int, rng: np.random.Generator, *, fixed: dict[str, Sequence[Value]], taken: Sequence[Config]
    ) -> list[Config]:
        """Draw `count` distinct legal configurations outside `taken`, uniformly over the grid narrowed to `fixed`."""
        choices = [tuple(fixed.get(parameter.name, parameter.values)) for parameter in self.parameters]
        total = math.prod(map(len, choices))
        if count * 4 >= total:
            seen = set(taken)
            points = [config for config in map(self._config, itertools.product(*choices))
                      if config not in seen and self.refuse(config) is None]
            if count > len(points):
                raise ValueError(f"cannot draw {count} configurations: {len(points)} remain in space {self.name}")
            return [points[place] for place in rng.permutation(len(points))[:count]]
        drawn: list[Config] = []
        seen = set(taken)
        while len(drawn) < count:
            config = self._config(tuple(values[rng.integers(len(values))] for values in choices))
            if config not in seen and self.refuse(config) is None:
                seen.add(config)
                drawn.append(config)
        return drawn

    def validate(self, config: Config) -> None:
        """Check that a configuration belongs to this space.

        Raises:
            IllegalSchedule: another space, other parameters, a value outside the grid, or an illegal combination.
        """
        names = tuple(parameter.name for parameter in self.parameters)
        if config.space != self.name:
            raise IllegalSchedule(f"configuration {config} belongs to space {config.space}, not to {self.name}")
        if config.names != names:
            raise IllegalSchedule(f"configuration {config} must give {', '.join(names)}, in this order")
        for parameter in self.parameters:
            value = config[parameter.name]
            if value not in parameter.values:
                reason = parameter.fault(value) or f"its values are {', '.join(map(str, parameter.values))}"
                raise IllegalSchedule(f"{parameter.name}={value} is not in space {self.name} ({self.op}): {reason}")
        reason = self.refuse(config)
        if reason is not None:
            raise IllegalSchedule(f"{self.name} ({self.op}) cannot run {config}: {reason}")

    def config(self, **changes: Value) -> Config:
        """Change some values of the default and validate the result."""
        config = self.default().replace(**changes)
        self.validate(config)
        return config

    def parse(self, key: str) -> Config:
        """Read a key such as "row_panel=4,column_panel=all,..." and validate it."""
        config = Config.parse(self.name, key)
        self.validate(config)
        return config

    def canonical(self, config: Config) -> Config:
        """Choose the representative of all configurations that are the same program on the bound shape."""
        if self.shape is None:
            raise ValueError(f"space {self.name} is not bound to a matrix: call bind(shape) before canonical")
        return self.collapse(config, self.shape)

    def shared(self, config: Config) -> SharedSchedule:
        """Give loops and extents in the terms that all platforms share; extents are clipped to the bound shape.

        Raises:
            Unsupported: the space is not described in them.
        """
        if self.mapping is None:
            raise Unsupported(f"space {self.name} ({self.op}) has no map onto shared schedules: give GridSpace "
                              "`mapping` and `latent`, or choose a model that reads features of its own")
        return self.mapping(config, self.shape)

    def walk(self, config: Config) -> Walk:
        """Say how a configuration walks a matrix.

        Raises:
            Unsupported: the space does not describe it.
        """
        if self.walks is None:
            raise Unsupported(f"space {self.name} does not say how its configurations walk a matrix: give GridSpace "
                              "`walks`, or choose a model that does not ask (model=cognate, model=trees)")
        return self.walks(config)

    def heterogeneous(self, config: Config) -> np.ndarray:
        """Write the hardware-specific parameters as numbers: float32 (h,)."""
        parts = (tables[config[code.parameter]] for code, tables in zip(self.latent, self._tables, strict=True))
        return np.fromiter(itertools.chain.from_iterable(parts), np.float32)

    @property
    def heterogeneous_names(self) -> tuple[str, ...]:
        return tuple(name for code in self.latent for name in code.names)

    def heterogeneous_codes(self) -> np.ndarray:
        """List every distinct vector that `heterogeneous` can give, at most 4096 of them: float32 (n, h)."""
        listed = [[numbers for _, numbers in code.table] for code in self.latent]
        if math.prod(map(len, listed)) <= CODE_LIMIT:
            rows = itertools.product(*listed)
        else:
            rng = np.random.default_rng(0)
            rows = ([choices[rng.integers(len(choices))] for choices in listed] for _ in range(CODE_LIMIT))
        codes = np.array([tuple(itertools.chain.from_iterable(row)) for row in rows], np.float32)
        return np.unique(codes, axis=0)

    def vectors(self, configs: Sequence[Config]) -> tuple[np.ndarray, np.ndarray]:
        """Write what a model reads: shared schedules, float32 (n, 53), and hardware-specific parts, float32 (n, h)."""
        shared = [encode(self.shared(config), self.numbers) for config in configs]
        heterogeneous = [self.heterogeneous(config) for config in configs]
        count = len(configs)
        return (
            np.array(shared, np.float32).reshape(count, ENCODED_WIDTH),
            np.array(heterogeneous, np.float32).reshape(count, len(self.heterogeneous_names)),
        )

    def digest(self) -> str:
        """Hash everything but the bound shape: 16 hexadecimal digits, the version of the space."""
        grid = [[parameter.name, parameter.values] for parameter in self.parameters]
        codes = [[code.parameter, code.names, code.table] for code in self.latent]
        content = [self.name, self.op, grid, self.defaults, self.numbers, self.meaning, codes]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def _config(self, values: Sequence[Value]) -> Config:
        return Config(self.name, tuple(zip((parameter.name for parameter in self.parameters), values, strict=True)))

    @cached_property
    def _size(self) -> int:
        free = math.prod(len(parameter.values) for parameter in self.parameters if parameter.name not in self.coupled)
        coupled = [parameter for parameter in self.parameters if parameter.name in self.coupled]
        legal = 0
        for values in itertools.product(*(parameter.values for parameter in coupled)):
            changes = dict(zip((parameter.name for parameter in coupled), values, strict=True))
            legal += self.refuse(self.default().replace(**changes)) is None
        return free * legal

    @cached_property
    def _tables(self) -> tuple[dict[Value, tuple[float, ...]], ...]:
        return tuple(dict(code.table) for code in self.latent)
