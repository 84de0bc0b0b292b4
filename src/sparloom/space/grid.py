"""Configurations and the spaces that list them.

A space is data: a grid of parameter values, which points are illegal, and what a cost model sees of each point.
"""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.space.shared import ENCODED_WIDTH, Code, Shape, SharedSchedule, Value, Walk, encode

MAX_LISTED = 4096
"""Configurations of the largest space that models list and score whole."""
MAX_CODES = 4096
"""Most codes that `heterogeneous_codes` lists; it samples so many of a larger set (reading latent="config")."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGER = re.compile(r"-?[0-9]+")
_RESERVED = frozenset(",= \t\n")


@dataclass(frozen=True)
class Config:
    """One point of a space: values of all parameters, in the order of the space; comparable, hashable, printable.

    Args:
        space: name of the space, such as "spade".
        values: (parameter, value) pairs; text has no comma, equal sign or blank and is no number.
    """

    space: str
    values: tuple[tuple[str, Value], ...]

    def __post_init__(self) -> None:
        for name, value in self.values:
            if not _NAME.fullmatch(name):
                raise ValueError(f"parameter name {name!r} of space {self.space}: use letters, digits and _")
            if isinstance(value, str) and (not value or _RESERVED & set(value) or _INTEGER.fullmatch(value)):
                rule = "use text that is no number, without commas, equal signs and blanks"
                raise ValueError(f"value {value!r} of {name} does not fit a key: {rule}")
        if len(self._index) != len(self.values):
            raise ValueError(f"a parameter is given twice in {self.key!r} (space {self.space})")

    @cached_property
    def _index(self) -> dict[str, Value]:
        return dict(self.values)

    def __getitem__(self, name: str) -> Value:
        try:
            return self._index[name]
        except KeyError:
            raise KeyError(f"space {self.space} has no parameter {name!r}; it has {', '.join(self._index)}") from None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.values)

    @cached_property
    def key(self) -> str:
        """The values as text, "row_panel=4,column_panel=all", which `parse` reads."""
        return ",".join(f"{name}={value}" for name, value in self.values)

    def __str__(self) -> str:
        return self.key

    def replace(self, **changes: Value) -> "Config":
        """Copy with some values changed; use `ConfigSpace.validate` to check that the space has them.

        Raises:
            ValueError: no such parameter.
        """
        unknown = [name for name in changes if name not in self._index]
        if unknown:
            raise ValueError(f"space {self.space} has no parameter {unknown[0]!r}; it has {', '.join(self._index)}")
        return Config(self.space, tuple((name, changes.get(name, value)) for name, value in self.values))

    @classmethod
    def parse(cls, space: str, key: str) -> "Config":
        """Parse a key; digits become integers.

        Raises:
            ValueError: a part is not of the form name=value.
        """
        values = []
        for part in key.split(","):
            name, equals, text = part.partition("=")
            if not equals or not text:
                raise ValueError(f"{part!r} in configuration key {key!r} is not of the form name=value")
            values.append((name, int(text) if _INTEGER.fullmatch(text) else text))
        return cls(space, tuple(values))


class ConfigSpace(Protocol):
    """The configurations of a platform for one operation, and how a model sees them."""

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


def _no_objection(_: Config | Value) -> None:
    pass


def _identity(config: Config, _: Shape) -> Config:
    return config


@dataclass(frozen=True)
class Parameter:
    """A name and the values that are searched, in a fixed order.

    Args:
        fault: explains why a value outside the list is wrong, or returns None.
    """

    name: str
    values: tuple[Value, ...]
    fault: Callable[[Value], str | None] = _no_objection


def uniform(space: "GridSpace", count: int, rng: np.random.Generator) -> list[Config]:
    """Draw distinct legal configurations, all equally likely."""
    return space.draw_distinct(count, rng, fixed={}, taken=())


@dataclass(frozen=True)
class GridSpace:
    """A space given by its values; every platform's space is one of these.

    Args:
        name: of the platform; every configuration holds it.
        op: name of the operation.
        parameters: the grid.
        defaults: the configuration that speedups are relative to.
        mapping: (configuration, shape or None) -> shared schedule; may raise ValueError when it needs the shape. None:
            models cannot read this space in shared terms.
        latent: codes of the hardware-specific parameters, at least one where there is a mapping.
        refuse: explains why a combination of values of the grid is illegal, or returns None.
        coupled: the parameters that `refuse` reads.
        draw: draws a sample.
        collapse: (configuration, shape) -> representative of all configurations that are one program on that shape.
        numbers: how extents enter the vector.
        walks: configuration -> how it walks a matrix; None: not described.
        meaning: text to change whenever the mapping or the codes change; part of the digest.
        shape: rows and columns of the matrix to which the space is bound.
    """

    name: str
    op: str
    parameters: tuple[Parameter, ...]
    defaults: tuple[Value, ...]
    mapping: Callable[[Config, Shape | None], SharedSchedule] | None = None
    latent: tuple[Code, ...] = ()
    refuse: Callable[[Config], str | None] = _no_objection
    coupled: tuple[str, ...] = ()
    draw: "Callable[[GridSpace, int, np.random.Generator], list[Config]]" = uniform
    collapse: Callable[[Config, Shape], Config] = _identity
    numbers: Literal["log2", "raw"] = "log2"
    walks: Callable[[Config], Walk] | None = None
    meaning: str = ""
    shape: Shape | None = None

    def bind(self, shape: Shape) -> "GridSpace":
        """Bind the space to the shape of a matrix, which gives values such as "all" their extent."""
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
            return [points[index] for index in rng.permutation(len(points))[:count]]
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
        """Parse a key such as "row_panel=4,column_panel=all,..." and validate the configuration."""
        config = Config.parse(self.name, key)
        self.validate(config)
        return config

    def canonical(self, config: Config) -> Config:
        """Return the representative of all configurations that are the same program on the bound shape."""
        if self.shape is None:
            raise ValueError(f"space {self.name} is not bound to a matrix: call bind(shape) before canonical")
        return self.collapse(config, self.shape)

    def shared(self, config: Config) -> SharedSchedule:
        """Map a configuration to loops and extents that all platforms share; extents are clipped to the bound shape.

        Raises:
            Unsupported: the space has no such mapping.
        """
        if self.mapping is None:
            raise Unsupported(f"space {self.name} ({self.op}) has no map onto shared schedules: give GridSpace "
                              "`mapping` and `latent`, or choose a model that reads features of its own")
        return self.mapping(config, self.shape)

    def walk(self, config: Config) -> Walk:
        """Describe how a configuration walks a matrix.

        Raises:
            Unsupported: the space has no such description.
        """
        if self.walks is None:
            raise Unsupported(f"space {self.name} does not say how its configurations walk a matrix: give GridSpace "
                              "`walks` (SPADE has them for a width of 32 and from 256 on), or choose a model that "
                              "does not ask (model=cognate, model=trees)")
        return self.walks(config)

    def heterogeneous(self, config: Config) -> np.ndarray:
        """Encode the hardware-specific parameters as numbers: float32 (h,)."""
        parts = (tables[config[code.parameter]] for code, tables in zip(self.latent, self._tables, strict=True))
        return np.fromiter(itertools.chain.from_iterable(parts), np.float32)

    @property
    def heterogeneous_names(self) -> tuple[str, ...]:
        return tuple(name for code in self.latent for name in code.names)

    def heterogeneous_codes(self) -> np.ndarray:
        """List the distinct vectors that `heterogeneous` can return, at most 4096: float32 (n, h)."""
        listed = [[numbers for _, numbers in code.table] for code in self.latent]
        if math.prod(map(len, listed)) <= MAX_CODES:
            rows = itertools.product(*listed)
        else:
            rng = np.random.default_rng(0)
            rows = ([choices[rng.integers(len(choices))] for choices in listed] for _ in range(MAX_CODES))
        codes = np.array([tuple(itertools.chain.from_iterable(row)) for row in rows], np.float32)
        return np.unique(codes, axis=0)

    def vectors(self, configs: Sequence[Config]) -> tuple[np.ndarray, np.ndarray]:
        """Encode configurations for a model: shared schedules, float32 (n, 53), and specific parts, float32 (n, h)."""
        shared = [encode(self.shared(config), self.numbers) for config in configs]
        heterogeneous = [self.heterogeneous(config) for config in configs]
        count = len(configs)
        return (
            np.array(shared, np.float32).reshape(count, ENCODED_WIDTH),
            np.array(heterogeneous, np.float32).reshape(count, len(self.heterogeneous_names)),
        )

    def digest(self) -> str:
        """Hash everything except the bound shape to 16 hexadecimal digits, the version of the space."""
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
