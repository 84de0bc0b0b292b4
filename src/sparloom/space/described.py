"""Spaces of accelerators that a YAML file describes, so that their seconds can be learned from without Python code.

A parameter sets the tile of a shared loop, orders the shared loops, or is the accelerator's own; see
docs/tutorials/own_accelerator.md for the file. It is read as text and lists of text: nothing in it is executed. An
optimizer takes `Description.search_space()`, of any size; a cost model, which scores every configuration, takes
`Description.space(op)`. `read_space` also reads the T1 files of other tuners.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from sparloom.errors import IllegalSchedule, SchemaError, Unsupported
from sparloom.files import read_json
from sparloom.lazy import import_with_hint
from sparloom.space.expressions import integer_of, number_of, value_list
from sparloom.space.grid import MAX_LISTED, Config, GridSpace, Parameter
from sparloom.space.search_parameter import SearchParameter
from sparloom.space.search_space import SearchSpace
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
KEYS = ("name", "operations", "parameters", "width", "times", "illegal", "constraints", "features")
ENTRIES = ("kind", "values", "low", "high", "scale", "default", "when", "tiles", "orders", "own", "of")
SCALES = ("linear", "log", "powers_of_two")
OPERATIONS = ("spmm", "sddmm")
RESERVED = ("cpu", "cpu_kernels", "cpu_many", "cuda", "cuda_kernels", "fusion", "ragged", "spade", "triton")
TIME_COLUMNS: Mapping[str, float] = {"seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "cycles": 1.0}
"""Name of the column of times in a CSV, which is its unit -> seconds per unit; of cycles, only ratios are used."""

WIDTH = 256  # columns of the dense operands where the description does not say

OUTER = {"i": I2, "j": J2, "k": K2}
DEFAULT_ORDER = ("k", "i", "j")


@dataclass(frozen=True)
class DescribedParameter(SearchParameter):
    """A parameter and its part in the loops that all platforms share.

    Args:
        tiles: the loop whose tile the values set, i, j or k.
        orders: (value, shared loops outermost first) of every value; empty: the values order no loops.
        own: specific to the accelerator, so the latent encoder reads it.
        of: items of a permutation.
    """

    tiles: str | None = None
    orders: tuple[tuple[Value, tuple[int, ...]], ...] = ()
    own: bool = True
    of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Description:
    """What a YAML file says about an accelerator.

    Args:
        path: of the file, for messages.
        width: columns of the dense operands with which it was timed.
        times: measured times vary, and rows of one configuration are repetitions; simulated times do not.
        illegal: each forbids configurations that have one of its values in all of its parameters.
        constraints: expressions over parameters and features that hold for legal configurations.
        features: numbers of the problem that constraints may read.
    """

    path: Path
    name: str
    operations: tuple[str, ...]
    parameters: tuple[DescribedParameter, ...]
    width: int = WIDTH
    times: Literal["measured", "simulated"] = "measured"
    illegal: tuple[Mapping[str, tuple[Value, ...]], ...] = ()
    constraints: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    def search_space(self) -> SearchSpace:
        """Return the space for an optimizer, of any size."""
        return self._search_space

    @cached_property
    def _search_space(self) -> SearchSpace:
        parameters = {each.name: each for each in self.parameters}
        rules = [" and ".join(f"{name} in ({_literals(parameters[name], values)})" for name, values in rule.items())
                 for rule in self.illegal]
        constraints = (*self.constraints, *(f"not ({rule})" for rule in rules))
        return SearchSpace(self.name, self.parameters, constraints, self.features)

    @cached_property
    def _legal(self) -> frozenset[Config]:
        """All configurations, for a model that scores each.

        Raises:
            Unsupported: they cannot be listed, or are not the same on every problem.
        """
        space = self._search_space
        unlisted = space.size > MAX_GRID or self.features or any(each.kind == "float" for each in self.parameters)
        columns = None if unlisted else space.enumerate(MAX_LISTED)
        if columns is None:
            raise Unsupported(
                f"{self.path}: a cost model scores every configuration, so it needs parameters that are no floats, no "
                f"features, and at most {MAX_GRID:,} combinations of values (here {space.size:,}), of which at most "
                f"{MAX_LISTED:,} are legal: give fewer values, or let an optimizer search the space")
        return frozenset(space.configs(columns))

    def space(self, op: str) -> GridSpace:
        """Build the space of one operation for a cost model, which scores every configuration.

        Raises:
            Unsupported: the description does not list the operation, or its configurations cannot be listed.
        """
        if op not in self.operations:
            raise Unsupported(f"operation {op} on {self.name}: {self.path} has operations {', '.join(self.operations)}")
        legal, coupled = self._legal, {name for rule in self.illegal for name in rule}
        constrained = bool(self.constraints or any(each.when for each in self.parameters))
        return GridSpace(
            name=self.name, op=op, parameters=tuple(Parameter(each.name, each.values) for each in self.parameters),
            defaults=tuple(each.default for each in self.parameters),
            mapping=partial(_shared, tiles={each.tiles: each.name for each in self.parameters if each.tiles},
                            orders={each.name: dict(each.orders) for each in self.parameters if each.orders},
                            width=self.width),
            latent=_latent(self.parameters),
            refuse=partial(_refuse, rules=self.illegal, legal=legal, space=self._search_space if constrained else None),
            coupled=tuple(each.name for each in self.parameters if constrained or each.name in coupled),
            meaning=self._meaning(),
        )

    def _meaning(self) -> str:
        roles = [[each.name, each.kind, each.tiles, each.orders, each.own] for each in self.parameters]
        illegal = [sorted((name, list(values)) for name, values in rule.items()) for rule in self.illegal]
        added = [[each.when for each in self.parameters], self.constraints]
        constrained = [added] if any(added[0]) or self.constraints else []
        return f"described 1, width {self.width}, {json.dumps([roles, illegal, *constrained])}"


def read_space(path: Path) -> SearchSpace:
    """Read the search space of a YAML file, see `read_description`, or of a T1 file, whose name ends with .json.

    T1 is the format in which tuners of GPU kernels describe spaces. Its lists and conditions are read by `value_list`
    and `Expression`. A default that is none of the values is replaced by the first value.

    Raises:
        SchemaError: names the entry that is wrong, what is allowed, and the remedy.
    """
    if path.suffix != ".json":
        return read_description(path).search_space()
    try:
        tree = read_json(path)
        described = tree["ConfigurationSpace"]
        parameters = tuple(map(_t1_parameter, described["TuningParameters"]))
        constraints = tuple(each["Expression"] for each in described.get("Conditions", []))
        return SearchSpace(str(tree.get("General", {}).get("BenchmarkName", path.stem)), parameters, constraints)
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SchemaError(f"{path} is no T1 file ({type(error).__name__}: {error}): it needs ConfigurationSpace with "
                          "TuningParameters, each with Name, Type and Values, and may have Conditions") from None


def _t1_parameter(entry: Mapping[str, Any]) -> SearchParameter:
    values = entry["Values"]
    values = value_list(values) if isinstance(values, str) else tuple(values)
    values = tuple(map(bool, values)) if entry["Type"] == "bool" else values
    default = entry.get("Default")
    return SearchParameter.of_values(
        entry["Name"], values, default[0] if isinstance(default, list) and default else default)


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
                        illegal=_illegal(path, tree.get("illegal", []), parameters),
                        constraints=tuple(_listed(tree["constraints"], f"{path}: constraints"))
                        if "constraints" in tree else (),
                        features=tuple(_listed(tree["features"], f"{path}: features")) if "features" in tree else ())
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
    own = _truth(entry.get("own", "false"), f"{where}: own")
    ordering = entry.get("orders", "false")
    orders = ordering if isinstance(ordering, Mapping) else _truth(ordering, f"{where}: orders")
    tiles = _text(entry["tiles"], f"{where}: tiles") if "tiles" in entry else None
    of = _items(where, kind, entry, loops=orders is True)
    scale = _text(entry["scale"], f"{where}: scale") if "scale" in entry else None
    if scale not in (None, *SCALES):
        raise SchemaError(f"{where}: scale {scale!r} is not one of {', '.join(SCALES)}")
    values, interval = _values(where, kind, entry, of, loops=orders is True)
    try:
        parameter = DescribedParameter(
            name, kind, _text(entry["default"], f"{where}: default"), values, interval,
            None if scale == "powers_of_two" else scale,
            _text(entry["when"], f"{where}: when") if "when" in entry else "",
            tiles, own=own or not (tiles or orders), of=of)
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from None
    if tiles is not None:
        _check_tiles(where, tiles, kind, values)
    return replace(parameter, default=parameter.parse(parameter.default), orders=_orders(where, orders, parameter))


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
) -> tuple[Sequence[Value], tuple[float, float] | None]:
    """Return the listed values, or the interval."""
    if "low" in entry or "high" in entry:
        return _between(where, kind, entry)
    if kind == "boolean":
        if "values" in entry:
            raise SchemaError(f"{where}: a boolean has the values 0 and 1: leave out `values`")
        return (0, 1), None
    if "values" not in entry:
        if kind != "permutation":
            raise SchemaError(f"{where}: give its values, such as values: [8, 64, 512], or low and high")
        words = (".".join(items) for items in itertools.permutations(of))
        return tuple(word for word in words if not loops or _inner_first(word) is None), None
    texts = _listed(entry["values"], f"{where}: values")
    if kind == "permutation":
        values = tuple(text if "." in text else ".".join(text) for text in texts)
        wrong = next((value for value in values if sorted(value.split(".")) != sorted(of)), None)
        if wrong:
            raise SchemaError(f"{where}: value {wrong!r} must have each of {', '.join(of)} once, joined by dots")
        return values, None
    read = number_of if kind == "float" else integer_of
    numbers = map(read, texts)
    return tuple(text if number is None else number for text, number in zip(texts, numbers, strict=True)), None


def _between(
    where: str, kind: str, entry: Mapping[str, Any]
) -> tuple[Sequence[Value], tuple[float, float] | None]:
    """Return the values between low and high."""
    read = {"integer": integer_of, "float": number_of}.get(kind)
    ends = [read(_text(entry.get(end, ""), f"{where}: {end}")) if read else None for end in ("low", "high")]
    powers = entry.get("scale") == "powers_of_two"
    if "values" in entry or None in ends or (powers and (kind == "float" or ends[0] < 1)):
        raise SchemaError(f"{where}: give low and high of an integer or a float, or values; powers of two are integers "
                          "from 1 on")
    if kind == "float":
        return (), (ends[0], ends[1])
    numbers = range(ends[0], ends[1] + 1)
    return tuple(2**power for power in range(50) if 2**power in numbers) if powers else numbers, None


def _orders(
    where: str, orders: Mapping[str, Any] | bool, parameter: DescribedParameter
) -> tuple[tuple[Value, tuple[int, ...]], ...]:
    """Return the shared loops of every value, outermost first; k3 has extent 1 and follows k2."""
    if orders is False:
        return ()
    if orders is True:
        if parameter.kind != "permutation":
            raise SchemaError(f"{where}: orders: true needs kind: permutation; for other kinds map every value to an "
                              "order, such as orders: {0: k.i.j, 1: k.j.i}")
        words = {value: str(value) for value in parameter.values}
    else:
        words = {_parsed(where, parameter, key): _text(word, f"{where}: orders") for key, word in orders.items()}
        missing = [value for value in parameter.values if value not in words]
        if missing:
            raise SchemaError(f"{where}: orders must map each of {_shown(parameter.values)} to an order; see "
                              f"{missing[0]}")
    for value, word in words.items():
        names = word.split(".")
        known = sorted(names) == sorted(SPLIT_LOOPS) or (set(names) <= set(OUTER) and len(set(names)) == len(names))
        fault = _inner_first(word) if known else "use i, j and k, or io, ii, jo, ji, ko and ki, joined by dots"
        if fault:
            raise SchemaError(f"{where}: {word!r} of value {value} is no order of loops: {fault}")
    return tuple((value, _loop_order(words[value])) for value in parameter.values)


def _parsed(where: str, parameter: SearchParameter, text: str) -> Value:
    try:
        return parameter.parse(text)
    except IllegalSchedule as error:
        raise SchemaError(f"{where}: {error}") from None


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
            values[name] = tuple(_parsed(f"{path}: illegal", known[name], text) for text in texts)
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
    try:
        space = found.search_space()
        fault = space.fault(space.default())
    except SchemaError as error:
        raise SchemaError(f"{found.path}: {error}") from None
    if fault:
        raise SchemaError(f"{found.path}: the default configuration, {space.default()}, {fault}")


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


def _refuse(
    config: Config, *, rules: Sequence[Mapping[str, tuple[Value, ...]]], legal: frozenset[Config],
    space: SearchSpace | None,
) -> str | None:
    for rule in rules:
        if all(config[name] in values for name, values in rule.items()):
            return "illegal: " + ", ".join(f"{name}={_shown(values)}" for name, values in rule.items())
    return None if space is None or config in legal else space.fault(config)


def _literals(parameter: SearchParameter, values: Sequence[Value]) -> str:
    """Write values as they are in an expression."""
    return "".join(f"{str(value)!r}, " if parameter.is_text else f"{value}, " for value in values)


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
