"""Features of performance models as data: formulas that NumPy evaluates over columns and C for one problem.

A `FeatureSpec` lists the features of an operation and is saved with every model that reads them.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from sparloom.errors import SchemaError
from sparloom.space import Config

Columns = Mapping[str, np.ndarray]
UNARY = {ast.USub: (np.negative, "(-{})")}
BINARY = {
    ast.Add: (np.add, "({} + {})"), ast.Sub: (np.subtract, "({} - {})"), ast.Mult: (np.multiply, "({} * {})"),
    ast.Div: (np.divide, "({} / {})"),
}
COMPARISONS = {
    ast.Lt: (operator.lt, "({} < {})"), ast.LtE: (operator.le, "({} <= {})"), ast.Gt: (operator.gt, "({} > {})"),
    ast.GtE: (operator.ge, "({} >= {})"), ast.Eq: (operator.eq, "({} == {})"), ast.NotEq: (operator.ne, "({} != {})"),
}
UNITS: Mapping[str, int] = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
CACHES: Mapping[str, tuple[str, float]] = {
    "l1_bytes": ("cache_l1d", 2.0**15), "l2_bytes": ("cache_l2", 2.0**20), "l3_bytes": ("cache_l3", 2.0**25),
}
"""Constant -> its key in `measure.describe_machine`, and the value to use if that is unknown."""

Group = Literal["problem", "pattern", "kernel", "interaction", "hardware"]
REQUIRED = ("flops", "bytes")


def _number(column: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Convert texts to numbers; texts that are not numbers, such as "all", become `otherwise`."""
    texts = column.astype(str)
    digits = np.char.isdigit(texts)
    return np.where(digits, np.where(digits, texts, "0").astype(np.float64), otherwise)


def _part(index: int) -> Callable[[np.ndarray], np.ndarray]:
    """Make a function that reads one number of texts such as "8x32"."""
    return lambda column: np.array([float(text.split("x")[index]) for text in column.ravel()]).reshape(column.shape)


FUNCTIONS = {
    "min": (np.minimum, "fmin({}, {})"), "max": (np.maximum, "fmax({}, {})"), "ceil": (np.ceil, "ceil({})"),
    "floor": (np.floor, "floor({})"), "number": (_number, None), "first": (_part(0), None), "second": (_part(1), None),
}


@dataclass(frozen=True)
class Formula:
    """An expression over columns.

    Grammar, a subset of Python's: numbers; names; quoted texts; + - * / and comparisons, which give 0 or 1; min, max,
    floor, ceil; and for columns of texts first, second ("8x32" -> 8, 32) and number ("all" -> the second argument).

    Raises:
        ValueError: the text is not in the grammar.
    """

    text: str

    def __post_init__(self) -> None:
        for node in ast.walk(self._tree):
            if not _known(node):
                raise ValueError(f"formula {self.text!r}: {ast.unparse(node)!r} is not allowed: use numbers, "
                                 f"names, + - * /, comparisons, {', '.join(FUNCTIONS)}")

    @cached_property
    def _tree(self) -> ast.expr:
        try:
            return ast.parse(self.text, mode="eval").body
        except SyntaxError as error:
            raise ValueError(f"formula {self.text!r} cannot be read: {error.msg}") from None

    @cached_property
    def names(self) -> frozenset[str]:
        found = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}
        return frozenset(found - set(FUNCTIONS))

    def evaluate(self, columns: Columns) -> np.ndarray:
        """Evaluate over columns that broadcast against each other; comparisons give 0.0 and 1.0.

        Raises:
            KeyError: a column is missing.
        """
        return np.asarray(_evaluate(self._tree, columns), np.float64)

    def c(self) -> str:
        """Render as a C expression over doubles with the same names.

        Raises:
            ValueError: the formula reads texts.
        """
        return _c(self._tree, self.text)


def _known(node: ast.AST) -> bool:
    """Tell whether a node of the syntax tree is in the grammar."""
    match node:
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return name in FUNCTIONS
        case ast.Compare(ops=ops):
            return len(ops) == 1 and type(ops[0]) in COMPARISONS
        case ast.UnaryOp(op=op):
            return type(op) in UNARY
        case ast.BinOp(op=op):
            return type(op) in BINARY
        case ast.Constant(value=value):
            return isinstance(value, int | float | str) and not isinstance(value, bool)
    return isinstance(node, ast.Name | ast.expr_context | ast.operator | ast.unaryop | ast.cmpop)


def _evaluate(node: ast.expr, columns: Columns) -> np.ndarray | float | str:
    match node:
        case ast.Constant(value=value):
            return value if isinstance(value, str) else float(value)
        case ast.Name(id=name):
            return columns[name]
        case ast.UnaryOp(op=op, operand=operand):
            return UNARY[type(op)][0](_evaluate(operand, columns))
        case ast.BinOp(op=op, left=left, right=right):
            return BINARY[type(op)][0](_evaluate(left, columns), _evaluate(right, columns))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return COMPARISONS[type(op)][0](_evaluate(left, columns), _evaluate(right, columns)) * 1.0
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name][0](*(_evaluate(argument, columns) for argument in arguments))
    raise AssertionError(ast.dump(node))


def _c(node: ast.expr, text: str) -> str:
    match node:
        case ast.Constant(value=value) if not isinstance(value, str):
            return repr(float(value))
        case ast.Name(id=name):
            return name
        case ast.UnaryOp(op=op, operand=operand):
            return UNARY[type(op)][1].format(_c(operand, text))
        case ast.BinOp(op=op, left=left, right=right):
            return BINARY[type(op)][1].format(_c(left, text), _c(right, text))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return COMPARISONS[type(op)][1].format(_c(left, text), _c(right, text))
        case ast.Call(func=ast.Name(id=name), args=arguments) if FUNCTIONS[name][1] is not None:
            return FUNCTIONS[name][1].format(*(_c(argument, text) for argument in arguments))
    raise ValueError(f"formula {text!r} reads texts, which C cannot: move that part into a feature of group kernel")


def machine_constants(machine: Mapping[str, str | int], *, threads: int) -> dict[str, float]:
    """Read the constants that features use, cache sizes and threads, from the description of a machine."""
    caches = {name: _bytes(str(machine.get(key, "")), otherwise) for name, (key, otherwise) in CACHES.items()}
    return caches | {"threads": float(threads)}


def _bytes(text: str, otherwise: float) -> float:
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    return float(int(found[1]) * UNITS[found[2]]) if found else otherwise


@dataclass(frozen=True)
class Feature:
    """One number that a model reads.

    Args:
        name: lower-case name; if the formula equals it, the feature is an input.
        group: problem and pattern are equal for all configurations, kernel for all problems, hardware for both;
            interaction depends on problem and configuration.
        formula: over inputs, parameters of the configuration (group kernel) and earlier features.
        unit: unit of the number; "1" for ratios and flags.
    """

    name: str
    group: Group
    formula: str
    unit: str


@dataclass(frozen=True)
class FeatureSpec:
    """Features in the order in which a model reads them.

    They include `flops` and `bytes` of a problem, which turn seconds into rates.

    Args:
        version: version of the meaning of the inputs; raise it when that changes and the formulas do not.
        features: all features; a model does not read those of group hardware.
        fallback: formula over inputs; the model does not apply where it is not 0.
    """

    op: str
    version: int
    features: tuple[Feature, ...]
    fallback: str

    @cached_property
    def _formulas(self) -> dict[str, Formula]:
        return {feature.name: Formula(feature.formula) for feature in self.features}

    @cached_property
    def _groups(self) -> dict[str, Group]:
        return {feature.name: feature.group for feature in self.features}

    def formula(self, name: str) -> Formula:
        return self._formulas[name]

    def group(self, name: str) -> Group:
        return self._groups[name]

    @property
    def fallback_formula(self) -> Formula:
        """Formula that is not 0 for problems to which models do not apply."""
        return Formula(self.fallback)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names that a problem must provide: sizes, statistics, constants of the machine."""
        return tuple(feature.name for feature in self.features
                     if feature.group != "kernel" and feature.formula == feature.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Columns that a model reads, in order; those of group hardware are constants of its training data."""
        return tuple(feature.name for feature in self.features if feature.group != "hardware")

    def needed(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return these features and all that they are computed from, in order."""
        wanted = set(names)
        for feature in reversed(self.features):
            if feature.name in wanted and feature.group != "kernel":
                wanted |= self._formulas[feature.name].names
        return tuple(feature.name for feature in self.features if feature.name in wanted)

    def kernel(self, configs: Sequence[Config]) -> dict[str, np.ndarray]:
        """Evaluate the features of group kernel: arrays (configs,)."""
        columns = config_columns(configs)
        found: dict[str, np.ndarray] = {}
        for feature in self.features:
            if feature.group == "kernel":
                found[feature.name] = self._value(feature, columns | found)
        return found

    def evaluate(self, problems: Columns, kernel: Columns) -> dict[str, np.ndarray]:
        """Evaluate all features over columns that broadcast: (problems, 1) against (configs,), or row by row.

        Raises:
            ValueError: a value is missing or not finite.
        """
        missing = [name for name in self.inputs if name not in problems]
        if missing:
            raise ValueError(f"a problem of {self.op} must provide {', '.join(missing)}")
        return self._evaluated(self.features, problems, kernel)

    def matrix(
        self, problems: Columns, kernel: Columns, *, names: Sequence[str]
    ) -> Float[np.ndarray, "*shape features"]:
        """Stack the columns that a model reads along a last axis, behind the broadcast shape."""
        found = self.evaluate(problems, kernel)
        shape = np.broadcast_shapes(*(found[name].shape for name in names))
        stacked = np.empty((*shape, len(names)))
        for index, name in enumerate(names):
            stacked[..., index] = found[name]
        return stacked

    def work(self, problems: Columns) -> tuple[np.ndarray, np.ndarray]:
        wanted = self.needed(REQUIRED)
        found = self._evaluated([feature for feature in self.features if feature.name in wanted], problems, {})
        return found["flops"], found["bytes"]

    def _evaluated(self, features: Sequence[Feature], problems: Columns, kernel: Columns) -> dict[str, np.ndarray]:
        found = dict(kernel)
        for feature in features:
            if feature.group != "kernel":
                columns = found if feature.formula != feature.name else {feature.name: problems[feature.name]}
                found[feature.name] = self._value(feature, columns)
        return found

    def falls_back(self, problems: Columns) -> np.ndarray:
        """Return for each problem whether the model does not apply: bool."""
        return self.fallback_formula.evaluate(problems) != 0

    def record(self) -> dict[str, Any]:
        """Return the JSON values that are saved."""
        return {"op": self.op, "version": self.version, "fallback": self.fallback,
                "features": [asdict(feature) for feature in self.features]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "FeatureSpec":
        features = tuple(Feature(**entry) for entry in record["features"])
        return cls(op=record["op"], version=record["version"], features=features, fallback=record["fallback"])

    def check(self, other: "FeatureSpec", *, origin: str) -> None:
        """Check that a model was trained on these features.

        Args:
            other: features that it was trained on.
            origin: where the model comes from, for the message.

        Raises:
            SchemaError: operation, version, order, or any name, group, formula or unit differs.
        """
        if other == self:
            return
        names = {feature.name for feature in {*self.features} ^ {*other.features}} or {"order or fallback"}
        raise SchemaError(f"{origin} was trained on other features ({other.op}, version {other.version}; this version "
                          f"has {self.op}, version {self.version}; changed: {', '.join(sorted(names))}): "
                          "train it again, experiment=fit_trees")

    def _value(self, feature: Feature, columns: Columns) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            value = self._formulas[feature.name].evaluate(columns)
        if not np.isfinite(value).all():
            raise ValueError(f"feature {feature.name} = {feature.formula} is not finite for some of its inputs")
        return value


def config_columns(configs: Sequence[Config]) -> dict[str, np.ndarray]:
    """Return the values of every parameter: float64 (configs,), or texts if not all are numbers."""
    if not configs:
        return {}
    columns = {}
    for name in configs[0].names:
        values = [config[name] for config in configs]
        numbers = all(isinstance(value, int) for value in values)
        columns[name] = np.array(values, np.float64) if numbers else np.array([str(value) for value in values])
    return columns
