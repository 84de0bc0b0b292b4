"""One point of a platform's space: named values, comparable, hashable, printable."""

import re
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Config", "Shape", "Value"]

Value = int | str
Shape = tuple[int, int]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_INTEGER = re.compile(r"-?[0-9]+")
_RESERVED = frozenset(",= \t\n")


@dataclass(frozen=True)
class Config:
    """Values of all parameters of one program, in the order of the space that made it.

    Args:
        space: name of the space, such as "spade".
        values: (parameter, value) pairs; text has no comma, equal sign or blank and does not read as a number.
    """

    space: str
    values: tuple[tuple[str, Value], ...]

    def __post_init__(self) -> None:
        for name, value in self.values:
            if not _NAME.fullmatch(name):
                raise ValueError(f"parameter name {name!r} of space {self.space}: use lower case letters, digits and _")
            if isinstance(value, str) and (not value or _RESERVED & set(value) or _INTEGER.fullmatch(value)):
                rule = "use text that is no number, without , = and blanks"
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
        """The values as text: "row_panel=4,column_panel=all"; `parse` reads it back."""
        return ",".join(f"{name}={value}" for name, value in self.values)

    def __str__(self) -> str:
        return self.key

    def replace(self, **changes: Value) -> "Config":
        """Copy with some values changed; whether the space has the values is not checked here.

        Raises:
            ValueError: no such parameter.
        """
        unknown = [name for name in changes if name not in self._index]
        if unknown:
            raise ValueError(f"space {self.space} has no parameter {unknown[0]!r}; it has {', '.join(self._index)}")
        return Config(self.space, tuple((name, changes.get(name, value)) for name, value in self.values))

    @classmethod
    def parse(cls, space: str, key: str) -> "Config":
        """Read a key; digits become integers.

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
