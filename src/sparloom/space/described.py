"""Spaces of accelerators that a YAML file describes, so that their seconds can be learned from without Python code.

A parameter sets the tile of a shared loop, orders the shared loops, or is the accelerator's own; see
docs/tutorials/own_accelerator.md for the file. It is read as text and lists of text: nothing in it is executed.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sparloom.errors import IllegalSchedule, SchemaError, Unsupported
from sparloom.lazy import import_with_hint
from sparloom.space.expressions import integer_of
from sparloom.space.grid import MAX_LISTED, Config, GridSpace, Parameter
from sparloom.space.shared import (
    I1,
    I2,
    J1,
    J2,
    K1,
    K2,
    K3,
    SPLIT_LOOPS,
    Code,
    Shape,
    SharedSchedule,
    Value,
    flag,
    insert_after,
    logarithm,
    one_hot,
)

MAX_GRID = 2**18  # combinations that are checked one by one
MAX_ITEMS = 6  # of a permutation: 720 values
KINDS = ("integer", "categorical", "boolean", "permutation")
KEYS = ("name", "operations", "parameters", "width", "times", "illegal")
ENTRIES = ("kind", "values", "default", "tiles", "orders", "own", "of")  # of a parameter
OPERATIONS = ("spmm", "sddmm")
RESERVED = ("cpu", "cpu_kernels", "cpu_many", "cuda", "cuda_kernels", "fusion", "ragged", "spade", "triton")
TIME_COLUMNS: Mapping[str, float] = {"seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "cycles": 1.0}
"""Name of the column of times in a CSV, which is its unit -> seconds per unit; of cycles, only ratios are used."""

FALSE, TRUE = ("0", "false", "no", "off"), ("1", "true", "yes", "on")
WIDTH = 256  # columns of the dense operands where the description does not say

OUTER = {"i": I2, "j": J2, "k": K2}
DEFAULT_ORDER = ("k", "i", "j")


@dataclass(frozen=True)
class DescribedParameter:
    """A parameter and its part in the loops that all platforms share.

    Args:
        kind: one of `KINDS`.
        tiles: the loop whose tile the values set, i, j or k.
        orders: (value, shared loops outermost first) of every value; empty: the values order no loops.
        own: specific to the accelerator, so the latent encoder reads it.
        of: items of a permutation.
    """

    name: str
    kind: str
    values: tuple[Value, ...]
    default: Value
    tiles: str | None
    orders: tuple[tuple[Value, tuple[int, ...]], ...]
    own: bool
    of: tuple[str, ...]

    def parse(self, text: str) -> Value:
        """Return the value that a text such as "8", "all", "yes" or "k.i.j" stands for; it may not be in `values`."""
        return _value(self.kind, text, self.of)


@dataclass(frozen=True)
class Description:
    """What a YAML file says about an accelerator.

    Args:
        path: of the file, for messages.
        width: columns of the dense operands with which it was timed.
        times: measured times vary, and rows of one configuration are repetitions; simulated times do not.
        illegal: each forbids configurations that have one of its values in all of its parameters.
    """

    path: Path
    name: str
    operations: tuple[str, ...]
    parameters: tuple[DescribedParameter, ...]
    width: int = WIDTH
    times: Literal["measured", "simulated"] = "measured"
    illegal: tuple[Mapping[str, tuple[Value, ...]], ...] = field(default=())

    def space(self, op: str) -> GridSpace:
        """Build the space of one operation.

        Raises:
            Unsupported: the description does not list the operation.
        """
        if op not in self.operations:
            raise Unsupported(f"operation {op} on {self.name}: {self.path} has operations {', '.join(self.operations)}")
        coupled = {name for rule in self.illegal for name in rule}
        return GridSpace(
            name=self.name, op=op, parameters=tuple(Parameter(each.name, each.values) for each in self.parameters),
            defaults=tuple(each.default for each in self.parameters),
            mapping=partial(_shared, tiles={each.tiles: each.name for each in self.parameters if each.tiles},
                            orders={each.name: dict(each.orders) for each in self.parameters if each.orders},
                            width=self.width),
            latent=_latent(self.parameters), refuse=partial(_refuse, rules=self.illegal),
            coupled=tuple(each.name for each in self.parameters if each.name in coupled), meaning=self._meaning(),
        )

    def _meaning(self) -> str:
        roles = [[each.name, each.kind, each.tiles, each.orders, each.own] for each in self.parameters]
        illegal = [sorted((name, list(values)) for name, values in rule.items()) for rule in self.illegal]
        return f"described 1, width {self.width}, {json.dumps([roles, illegal])}"


def read_description(path: Path) -> Description:
    """Read and check the YAML file of an accelerator.

    Raises:
        SchemaError: names the entry that is wrong, what is allowed, and the remedy.
        FileNotFoundError: there is no such file.
    """
    tree = _load(path)
    _known(tree, KEYS, f"{path}", required=("name", "parameters"))
    name = _text(tree["name"], f"{path}: name")
    if not (name.isascii() and name.replace("_", "a").isalnum() and name[0].isalpha() and name == name.lower()):
        raise SchemaError(f"{path}: name {name!r} becomes part of file names: use lower case letters, digits and _")
    if name in RESERVED:
        raise SchemaError(f"{path}: name {name!r} is that of a platform of sparloom: choose another")
    operations = tuple(_listed(tree.get("operations", ["spmm"]), f"{path}: operations"))
    for operation in operations:
        if operation not in OPERATIONS:
            raise SchemaError(f"{path}: operation {operation!r} is not one of {', '.join(OPERATIONS)}")
    described = tree["parameters"]
    if not isinstance(described, Mapping) or not described:
        raise SchemaError(f"{path}: parameters must map names to their entries, such as "
                          "block: {kind: integer, values: [8, 64], default: 8, tiles: i}")
    parameters = tuple(_parameter(path, parameter, entry) for parameter, entry in described.items())
    times = _text(tree.get("times", "measured"), f"{path}: times")
    if times not in ("measured", "simulated"):
        raise SchemaError(f"{path}: times {times!r} is neither measured nor simulated")
    width = _text(tree.get("width", str(WIDTH)), f"{path}: width")
    columns = integer_of(width)
    if columns is None or columns < 1:
        raise SchemaError(f"{path}: width {width!r} must be a whole number of dense columns, at least 1")
    found = Description(path, name, operations, parameters, width=columns, times=times,
                        illegal=_illegal(path, tree.get("illegal", []), parameters))
    _check(found)
    return found


def _load(path: Path) -> Mapping[str, Any]:
    """Parse a file to mappings, lists and text; tags are ignored, keys must not repeat."""
    yaml = import_with_hint("yaml", "a description of parameters")

    class Loader(yaml.BaseLoader):
        """Leave every scalar as text, so that `no` and `1e3` are what they look like."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict:
            seen: set[str] = set()
            for key, _ in node.value:
                where = f"{path}, line {key.start_mark.line + 1}"
                if not isinstance(key, yaml.ScalarNode):
                    raise SchemaError(f"{where}: keys must be plain text")
                if key.value in seen:
                    raise SchemaError(f"{where}: {key.value!r} is given twice: keep one")
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    except UnicodeDecodeError:
        raise SchemaError(f"{path} is not text in UTF-8: give the YAML file that describes the parameters") from None
    except yaml.YAMLError as error:
        raise SchemaError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise SchemaError(f"{path} nests lists or mappings too deeply: a description has at most four levels, see "
                          "docs/tutorials/own_accelerator.md") from None
    if not isinstance(tree, Mapping):
        raise SchemaError(f"{path} must map {', '.join(KEYS[:3])} to values; see docs/tutorials/own_accelerator.md")
    return tree


def _parameter(path: Path, name: str, entry: Any) -> DescribedParameter:
    where = f"{path}: parameter {name}"
    if name in ("matrix", *TIME_COLUMNS):
        raise SchemaError(f"{where} has the name of another column of the CSV: rename it")
    if not isinstance(entry, Mapping):
        raise SchemaError(f"{where} must have entries, such as {{kind: boolean, default: 0, own: true}}")
    _known(entry, ENTRIES, where, required=("kind", "default"))
    kind = _text(entry["kind"], f"{where}: kind")
    if kind not in KINDS:
        raise SchemaError(f"{where}: kind {kind!r} is not one of {', '.join(KINDS)}")
    own = _truth(entry.get("own", "false"), f"{where}: own")
    ordering = entry.get("orders", "false")
    orders = ordering if isinstance(ordering, Mapping) else _truth(ordering, f"{where}: orders")
    of = _items(where, kind, entry, loops=orders is True)
    values = _values(where, kind, entry, of, loops=orders is True)
    default = _value(kind, _text(entry["default"], f"{where}: default"), of)
    if default not in values:
        raise SchemaError(f"{where}: default {default} is not one of its values, {_shown(values)}")
    tiles = _text(entry["tiles"], f"{where}: tiles") if "tiles" in entry else None
    if not (tiles or orders or own):
        raise SchemaError(f"{where} has no part: give tiles (i, j or k), orders, or own: true, else no model sees it")
    if tiles is not None:
        _check_tiles(where, tiles, kind, values)
    return DescribedParameter(name, kind, values, default, tiles, _orders(where, orders, kind, values, of), own, of)


def _items(where: str, kind: str, entry: Mapping[str, Any], *, loops: bool) -> tuple[str, ...]:
    if kind != "permutation":
        if "of" in entry:
            raise SchemaError(f"{where}: only a permutation has items: leave out `of`, or give kind: permutation")
        return ()
    if "of" not in entry and not loops:
        raise SchemaError(f"{where}: a permutation needs its items, such as of: [x, y, z]")
    items = tuple(_listed(entry.get("of", list("ijk")), f"{where}: of"))
    if not 2 <= len(items) <= MAX_ITEMS or len(set(items)) < len(items) or any("." in item for item in items):
        raise SchemaError(f"{where}: of has {_shown(items)}: give 2 to {MAX_ITEMS} different items without dots")
    if loops and not (set(items) <= set(OUTER) or set(items) == set(SPLIT_LOOPS)):
        raise SchemaError(f"{where}: loops are i, j and k, or all of {', '.join(SPLIT_LOOPS)}; not {_shown(items)}")
    return items


def _values(
    where: str, kind: str, entry: Mapping[str, Any], of: tuple[str, ...], *, loops: bool
) -> tuple[Value, ...]:
    if kind == "boolean":
        if "values" in entry:
            raise SchemaError(f"{where}: a boolean has the values 0 and 1: leave out `values`")
        return (0, 1)
    if "values" not in entry:
        if kind != "permutation":
            raise SchemaError(f"{where}: give its values, such as values: [8, 64, 512]")
        words = (".".join(items) for items in itertools.permutations(of))
        return tuple(word for word in words if not loops or _inner_first(word) is None)
    texts = _listed(entry["values"], f"{where}: values")
    values = tuple(_value(kind, text, of) for text in texts)
    if not values or len(set(values)) < len(values):
        raise SchemaError(f"{where}: values {_shown(values)} must be one or more, each once")
    for value in values:
        if kind == "integer" and not isinstance(value, int) and value != "all":
            raise SchemaError(f"{where}: value {value!r} is neither a whole number nor all: correct it, or give kind: "
                              "categorical")
        if kind == "permutation" and sorted(str(value).split(".")) != sorted(of):
            raise SchemaError(f"{where}: value {value!r} must have each of {', '.join(of)} once, joined by dots")
        try:
            Config("values", (("value", value),))
        except ValueError as error:
            raise SchemaError(f"{where}: {error}") from None
    return values


def _orders(
    where: str, orders: Mapping[str, Any] | bool, kind: str, values: Sequence[Value], of: tuple[str, ...]
) -> tuple[tuple[Value, tuple[int, ...]], ...]:
    """Return the shared loops of every value, outermost first; k3 has extent 1 and follows k2."""
    if orders is False:
        return ()
    if orders is True:
        if kind != "permutation":
            raise SchemaError(f"{where}: orders: true needs kind: permutation; for other kinds map every value to an "
                              "order, such as orders: {0: k.i.j, 1: k.j.i}")
        words = {value: str(value) for value in values}
    else:
        words = {_value(kind, key, of): _text(word, f"{where}: orders") for key, word in orders.items()}
        if set(words) != set(values):
            wrong = next(iter(set(words) ^ set(values)))
            raise SchemaError(f"{where}: orders must map each of {_shown(values)} to an order, not more or less: "
                              f"see {wrong}")
    for value, word in words.items():
        names = word.split(".")
        known = sorted(names) == sorted(SPLIT_LOOPS) or (set(names) <= set(OUTER) and len(set(names)) == len(names))
        fault = _inner_first(word) if known else "use i, j and k, or io, ii, jo, ji, ko and ki, joined by dots"
        if fault:
            raise SchemaError(f"{where}: {word!r} of value {value} is no order of loops: {fault}")
    return tuple((value, _loop_order(words[value])) for value in values)


def _inner_first(word: str) -> str | None:
    names = word.split(".")
    wrong = next((loop for loop in "ijk" if f"{loop}o" in names and names.index(f"{loop}i") < names.index(f"{loop}o")),
                 None)
    return None if wrong is None else f"{wrong}o must come before {wrong}i, which is inside a tile"


def _loop_order(word: str) -> tuple[int, ...]:
    """Translate k.i.j, or ko.io.jo.ii.ji.ki; loops that are not named keep their places in k.i.j."""
    names = word.split(".")
    if set(names) <= set(OUTER):
        rest = iter(names)
        outer = [next(rest) if loop in names else loop for loop in DEFAULT_ORDER]
        order = [*(OUTER[loop] for loop in outer), I1, J1, K1]
    else:
        order = [SPLIT_LOOPS[loop] for loop in names]
    return insert_after(order, K2, K3)


def _check_tiles(where: str, tiles: str, kind: str, values: Sequence[Value]) -> None:
    if tiles not in OUTER:
        raise SchemaError(f"{where}: tiles {tiles!r} is not i (sparse rows), j (sparse columns) or k (dense columns)")
    if kind != "integer":
        raise SchemaError(f"{where}: the size of a tile needs kind: integer, not {kind}")
    small = [value for value in values if isinstance(value, int) and value < 1]
    if small:
        raise SchemaError(f"{where}: a tile of {small[0]} is empty: give sizes from 1, or all")


def _illegal(
    path: Path, rules: Any, parameters: Sequence[DescribedParameter]
) -> tuple[Mapping[str, tuple[Value, ...]], ...]:
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) and rule for rule in rules):
        raise SchemaError(f"{path}: illegal must list combinations, such as - {{block: 512, compress: 1}}")
    known = {parameter.name: parameter for parameter in parameters}
    found = []
    for rule in rules:
        _known(rule, tuple(known), f"{path}: illegal")
        values = {}
        for name, given in rule.items():
            texts = _listed(given if isinstance(given, list) else [given], f"{path}: illegal: {name}")
            values[name] = tuple(known[name].parse(text) for text in texts)
            other = [value for value in values[name] if value not in known[name].values]
            if other:
                raise SchemaError(f"{path}: illegal: {name} has no value {other[0]}: its values are "
                                  f"{_shown(known[name].values)}")
        found.append(values)
    return tuple(found)


def _check(found: Description) -> None:
    """Check what concerns several parameters: loops that two of them set, the size of the space, its default."""
    for what, users in (*((f"tile {loop}", [each.name for each in found.parameters if each.tiles == loop])
                          for loop in OUTER),
                        ("order the loops", [each.name for each in found.parameters if each.orders])):
        if len(users) > 1:
            raise SchemaError(f"{found.path}: {' and '.join(users)}: only one parameter can {what}: give the others "
                              "own: true")
    total = math.prod(len(each.values) for each in found.parameters)
    if total > MAX_GRID:
        raise SchemaError(f"{found.path}: {total:,} combinations of values, above the {MAX_GRID:,} that are checked by "
                          "the rules of `illegal`: give fewer values")
    try:
        space = found.space(found.operations[0])
        legal = len(space)
        if legal <= MAX_LISTED:
            space.validate(space.default())
    except (ValueError, IllegalSchedule) as error:
        raise SchemaError(f"{found.path}: {error}") from None
    if legal > MAX_LISTED:
        raise SchemaError(f"{found.path}: {legal:,} configurations, and a model scores each: give fewer values, or "
                          f"rule combinations out by `illegal`, so that at most {MAX_LISTED:,} remain")


def _latent(parameters: Sequence[DescribedParameter]) -> tuple[Code, ...]:
    """Encode the accelerator's own parameters; a constant where there is none, because an encoder needs an input."""
    codes = tuple(_code(parameter) for parameter in parameters if parameter.own)
    first = parameters[0]
    return codes or (Code(first.name, ("constant",), tuple((value, (0.0,)) for value in first.values)),)


def _code(parameter: DescribedParameter) -> Code:
    name, values = parameter.name, parameter.values
    if parameter.kind == "permutation":
        last = len(parameter.of) - 1
        return Code(name, tuple(f"{name}_{item}" for item in parameter.of), tuple(
            (value, tuple(str(value).split(".").index(item) / last for item in parameter.of)) for value in values))
    if parameter.kind == "integer":
        numbers = [value for value in values if isinstance(value, int)]
        if min(numbers, default=1) >= 1:
            return logarithm(name, values, 16)
        largest = max(abs(number) for number in numbers) or 1
        return Code(name, (name, f"{name}_all"), tuple(
            (value, (value / largest, 0.0) if isinstance(value, int) else (0.0, 1.0)) for value in values))
    return flag(name, values) if len(values) <= 2 else one_hot(name, values)


def _shared(
    config: Config, shape: Shape | None, *, tiles: Mapping[str, str], orders: Mapping[str, Mapping[Value, tuple]],
    width: int,
) -> SharedSchedule:
    if shape is None:
        raise ValueError(f"space {config.space} gives tiles no extent before it is bound to a matrix: call bind(shape)")
    extents = {}
    for loop, extent in zip("ijk", (*shape, width), strict=True):
        size = config[tiles[loop]] if loop in tiles else "all"
        extents[loop] = max(1, extent if size == "all" else min(extent, int(size)))
    order = next((words[config[name]] for name, words in orders.items()), _loop_order(".".join(DEFAULT_ORDER)))
    return SharedSchedule(I=extents["i"], J=extents["j"], K=extents["k"], K_inner=1, order=order)


def _refuse(config: Config, *, rules: Sequence[Mapping[str, tuple[Value, ...]]]) -> str | None:
    for rule in rules:
        if all(config[name] in values for name, values in rule.items()):
            return "illegal: " + ", ".join(f"{name}={_shown(values)}" for name, values in rule.items())
    return None


def _value(kind: str, text: str, of: tuple[str, ...]) -> Value:
    if kind == "boolean":
        return 0 if text.lower() in FALSE else 1 if text.lower() in TRUE else text
    if kind == "permutation":
        return ".".join(text) if "." not in text and all(len(item) == 1 for item in of) else text
    number = integer_of(text)
    return text if number is None else number


def _known(tree: Mapping[str, Any], keys: Sequence[str], where: str, *, required: Sequence[str] = ()) -> None:
    unknown = next((key for key in tree if key not in keys), None)
    if unknown is not None:
        raise SchemaError(f"{where}: {unknown!r} is unknown; known are {', '.join(keys)}")
    missing = next((key for key in required if key not in tree), None)
    if missing is not None:
        raise SchemaError(f"{where} lacks {missing!r}: add it")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SchemaError(f"{where} must be one value, not {'nothing' if value == '' else 'a list or mapping'}")
    return value.strip()


def _listed(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise SchemaError(f"{where} must be a list, such as [a, b]")
    return [_text(item, where) for item in value]


def _truth(value: Any, where: str) -> bool:
    text = _text(value, where).lower()
    if text not in ("true", "false"):
        raise SchemaError(f"{where} {text!r} is neither true nor false")
    return text == "true"


def _shown(values: Sequence[Value]) -> str:
    return ", ".join(map(str, values))
