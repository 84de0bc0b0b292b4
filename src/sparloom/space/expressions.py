"""Expressions over columns, in which search spaces state constraints and conditions; nothing in them is executed.

`ast.parse` reads the text, every node is checked against the grammar below, and `_value` computes it:

    e := number | "text" | True | False | name | (e) | -e | +e | e + e | e - e | e * e | e / e | e // e | e % e
       | e ** e | e < e <= e ... | e == e | e != e | e in (e, ...) | e not in [e, ...] | not e | e and e | e or e
       | e if e else e | abs(e) | ceil(e) | floor(e) | log2(e) | round(e) | sqrt(e) | min(e, e, ...) | max(e, e, ...)

The meaning is Python's, element by element, with all numbers in float64: a column is an array of numbers or of text,
and a single configuration is columns of length one. Two departures: a division by zero and what has no real value are
nan, and a comparison with nan is false. Text and numbers do not mix. The name `all` is infinity, as is the value "all"
of an integer parameter in a column.
"""

import ast
import functools
import math
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np

from sparloom.errors import SchemaError
from sparloom.space.shared import Value

Columns = Mapping[str, np.ndarray]
"""Name -> values, one for each configuration; all of one length."""

ALL = "all"  # infinity
MAX_TEXT = 4096  # characters of an expression
MAX_LIST_TEXT = 2**16  # characters of a list of values
MAX_DEPTH = 100  # levels of nesting
MAX_VALUES = 2**20  # of a list
MAX_EXACT = 2**53  # above it float64 has not all whole numbers

_INTEGER = re.compile(r"[+-]?[0-9]{1,15}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")

BINARY: Mapping[type, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply,
    ast.Div: lambda left, right: np.where(right == 0, np.nan, left / right),
    ast.FloorDiv: lambda left, right: np.where(right == 0, np.nan, left // right),
    ast.Mod: lambda left, right: np.where(right == 0, np.nan, left % right),
    ast.Pow: lambda left, right: np.where((left == 0) & (right < 0), np.nan, left**right),
}
COMPARISONS: Mapping[type, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    ast.Eq: np.equal, ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal,
    ast.NotEq: lambda left, right: (left < right) | (left > right),  # false for nan, unlike np.not_equal
}
UNARY_FUNCTIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "abs": np.abs, "ceil": np.ceil, "floor": np.floor, "round": np.round, "sqrt": np.sqrt,
    "log2": lambda number: np.where(number > 0, np.log2(number), np.nan),
}
REDUCTIONS = {"min": np.minimum, "max": np.maximum}
FUNCTIONS = (*UNARY_FUNCTIONS, *REDUCTIONS)
GRAMMAR = (
    ast.Constant, ast.Name, ast.Load, ast.UnaryOp, ast.UAdd, ast.USub, ast.Not, ast.BinOp, *BINARY, ast.Compare,
    *COMPARISONS, ast.In, ast.NotIn, ast.BoolOp, ast.And, ast.Or, ast.IfExp, ast.Call,
)


@dataclass(frozen=True)
class Expression:
    """Arithmetic and comparisons over named columns, as the docstring of this module defines them.

    Args:
        text: such as "block_x * block_y <= 1024".
        known: the names that it may read.

    Attributes:
        names: those that it reads.

    Raises:
        SchemaError: the text is no such expression; names the offending part and what is allowed.
    """

    text: str
    known: InitVar[Collection[str]]
    names: tuple[str, ...] = field(init=False)
    _tree: ast.expr = field(init=False, repr=False, compare=False)

    def __post_init__(self, known: Collection[str]) -> None:
        tree = _parse(self.text, MAX_TEXT)
        try:
            names = _check(tree, self.text, known)
        except SchemaError as error:
            raise SchemaError(f"expression {_short(self.text)}: {error}") from None
        object.__setattr__(self, "names", tuple(sorted(names)))
        object.__setattr__(self, "_tree", tree)

    def __call__(self, columns: Columns) -> np.ndarray:
        """Compute the values: float64, bool or text, as many as the columns have.

        Raises:
            SchemaError: text is used as a number, or compared with one.
        """
        try:
            with np.errstate(all="ignore"):
                value = _value(self._tree, columns)
        except (TypeError, ValueError):  # NumPy's, too
            raise SchemaError(f"expression {_short(self.text)} uses text as a number: compare text with text, and "
                              "write all, which is infinity, without quotes") from None
        return np.broadcast_to(value, np.shape(next(iter(columns.values()), np.zeros(1))))

    def holds(self, columns: Columns) -> np.ndarray:
        """Return where the value is true: a number other than 0 and nan."""
        values = self(columns)
        if values.dtype.kind == "U":
            raise SchemaError(f"expression {_short(self.text)} is text: write a comparison")
        return _truth(values)


def value_list(text: str) -> tuple[Value | bool, ...]:
    """Read a list of values, such as "[1, 2, 4] + list(range(8, 65, 8))", "[2**i for i in range(6)]" or "['a', 'b']".

    Whole numbers become integers.

    Raises:
        SchemaError: it is none, or longer than 2**20; names the offending part and what is allowed.
    """
    tree = _parse(text, MAX_LIST_TEXT)
    try:
        _levels(tree)
        with np.errstate(all="ignore"):
            return tuple(map(_plain, _items(tree, text).tolist()))
    except (TypeError, ValueError):  # NumPy's, too
        raise SchemaError(f"values {_short(text)} use text as a number") from None
    except SchemaError as error:
        raise SchemaError(f"values {_short(text)}: {error}") from None


def integer_of(text: str) -> int | None:
    """Read a whole number of at most 15 ASCII digits; None if the text is none, such as 1_000, which Python reads."""
    return int(text) if _INTEGER.fullmatch(text) else None


def number_of(text: str) -> float | None:
    """Read a number in ASCII digits; None if the text is none, such as 1_000, which Python reads, nan or inf."""
    return float(text) if _NUMBER.fullmatch(text) else None


def _parse(text: str, limit: int) -> ast.expr:
    if len(text) > limit:
        raise SchemaError(f"expression {_short(text)} has {len(text):,} characters: use at most {limit:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd literals, which are refused or read as Python does
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else f"nested too deeply, or {error}"
        raise SchemaError(f"expression {_short(text)} cannot be read: {reason}") from None


def _levels(tree: ast.AST) -> list[list[ast.AST]]:
    """Return the nodes level by level, without recursion."""
    levels = [[tree]]
    while levels[-1]:
        if len(levels) > MAX_DEPTH:
            raise SchemaError(f"it is nested more than {MAX_DEPTH} deep: use shorter parts")
        levels.append([child for node in levels[-1] for child in ast.iter_child_nodes(node)])
    return levels


def _check(tree: ast.AST, text: str, known: Collection[str]) -> set[str]:
    """Check every node against the grammar and return the names that are read."""
    nodes = [node for level in _levels(tree) for node in level]
    called = {node.func for node in nodes if isinstance(node, ast.Call)}
    listed = {node.comparators[index] for node in nodes if isinstance(node, ast.Compare)
              for index, operator in enumerate(node.ops) if isinstance(operator, (ast.In, ast.NotIn))}
    names = set()
    for node in nodes:
        fault = None
        if node in called:
            if not (isinstance(node, ast.Name) and node.id in FUNCTIONS):
                fault = "is no function: use " + ", ".join(FUNCTIONS)
        elif node in listed:
            if not isinstance(node, (ast.Tuple, ast.List)):
                fault = "is no list in brackets, such as (1, 2)"
        elif isinstance(node, ast.Name):
            names |= {node.id} & set(known)
            fault = None if node.id in (*known, ALL) else f"is no known name: use {', '.join(sorted(known)) or 'none'}"
        else:
            fault = _fault(node)
        if fault:
            raise SchemaError(f"{_part(node, text)} {fault}")
    return names


def _fault(node: ast.AST) -> str | None:
    """Return why a node is not in the grammar, whatever the names are."""
    if not isinstance(node, GRAMMAR):
        return ("is not allowed: use numbers, text, names, + - * / // % **, comparisons, in, and, or, not, "
                f"... if ... else ..., and {', '.join(FUNCTIONS)}")
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, (str, int, float)):
            return "is neither a number nor text"
        if isinstance(node.value, int) and abs(node.value) > MAX_EXACT:
            return "is too large: write numbers above 2**53 as floats"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        wrong = len(node.args) < 2 if node.func.id in REDUCTIONS else len(node.args) != 1
        if node.keywords or wrong:
            return "takes " + ("two or more arguments" if node.func.id in REDUCTIONS else "one argument")
    return None


def _value(node: ast.expr, columns: Columns) -> np.ndarray:
    """Compute a node that `_check` has passed."""
    match node:
        case ast.Constant(value=value):
            return np.asarray(value if isinstance(value, (str, bool)) else float(value))
        case ast.Name(id=name):
            return _column(columns.get(name, np.inf))  # `all`, if it is no column
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_truth(_value(operand, columns))
        case ast.UnaryOp(op=operator, operand=operand):
            return np.multiply(-1.0 if isinstance(operator, ast.USub) else 1.0, _number(operand, columns))
        case ast.BinOp(left=left, op=operator, right=right):
            return BINARY[type(operator)](_number(left, columns), _number(right, columns))
        case ast.BoolOp(op=operator, values=[*others, last]):
            value = _value(last, columns)
            for each in reversed(others):
                first = _value(each, columns)
                value = np.where(_truth(first), *((value, first) if isinstance(operator, ast.And) else (first, value)))
            return value
        case ast.IfExp(test=test, body=body, orelse=other):
            return np.where(_truth(_value(test, columns)), _value(body, columns), _value(other, columns))
        case ast.Call(func=ast.Name(id=name), args=args):
            numbers = [_number(each, columns) for each in args]
            return functools.reduce(REDUCTIONS[name], numbers) if len(args) > 1 else UNARY_FUNCTIONS[name](*numbers)
    return _compared(node, columns)


def _compared(node: ast.Compare, columns: Columns) -> np.ndarray:
    """Compute a chain of comparisons."""
    left, holds = _value(node.left, columns), np.asarray(True)
    for operator, other in zip(node.ops, node.comparators, strict=True):
        if isinstance(operator, (ast.In, ast.NotIn)):
            compare, combine = ((np.equal, np.logical_or) if isinstance(operator, ast.In)
                                else (COMPARISONS[ast.NotEq], np.logical_and))
            each = [compare(left, _value(item, columns)) for item in other.elts]
            holds = holds & functools.reduce(combine, each, np.asarray(isinstance(operator, ast.NotIn)))
        else:
            right = _value(other, columns)
            holds, left = holds & COMPARISONS[type(operator)](left, right), right
    return holds


def _column(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values)
    if values.dtype.kind == "O":
        values = values.astype(str if all(isinstance(value, str) for value in values.flat) else np.float64)
    return values if values.dtype.kind in "bU" else values.astype(np.float64, copy=False)


def _number(node: ast.expr, columns: Columns) -> np.ndarray:
    value = _value(node, columns)
    if value.dtype.kind == "U":
        raise TypeError
    return value.astype(np.float64, copy=False)


def _truth(value: np.ndarray) -> np.ndarray:
    return value if value.dtype == bool else (value < 0) | (value > 0)


def _items(node: ast.expr, text: str) -> np.ndarray:
    """Compute the items of a list; see `value_list`."""
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            found = _joined([_single(each, text, {"": np.zeros(1)}) for each in parts])
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            found = _joined([_items(left, text), _items(right, text)])
        case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner], keywords=[]):
            found = _items(inner, text)
        case ast.Call(func=ast.Name(id="range"), args=[_, *_] as args, keywords=[]) if len(args) <= 3:
            found = _range([float(_single(each, text, {"": np.zeros(1)})[0]) for each in args])
        case ast.ListComp(elt=element, generators=[ast.comprehension(target=ast.Name(id=name), is_async=0) as loop]):
            columns = {name: _items(loop.iter, text)}
            for each in loop.ifs:
                columns = {name: columns[name][_single(each, text, columns).astype(bool)]}
            found = _single(element, text, columns)
        case _:
            raise SchemaError(f"{_part(node, text)} is no list: use [...], list(range(...)), [... for i in ...], +")
    if len(found) > MAX_VALUES:
        raise SchemaError(f"{_part(node, text)} has {len(found):,} values: use at most {MAX_VALUES:,}")
    return found


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    mixed = len({each.dtype.kind == "U" for each in parts}) > 1
    return np.concatenate([each.astype(object) if mixed else each for each in parts] or [np.zeros(0)])


def _single(node: ast.expr, text: str, columns: Columns) -> np.ndarray:
    _check(node, text, columns)
    return np.broadcast_to(_value(node, columns), np.shape(next(iter(columns.values()))))


def _range(ends: Sequence[float]) -> np.ndarray:
    if not all(each.is_integer() for each in ends) or ends[2:] == [0]:
        raise SchemaError("range takes one to three whole numbers, and a step that is not 0")
    found = range(*map(int, ends))
    if found[MAX_VALUES:]:
        raise SchemaError(f"a range has more than {MAX_VALUES:,} values")
    return np.array(found, np.float64)


def _plain(value: str | bool | float) -> Value | bool:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        raise SchemaError("a value is infinite or not a number")
    return int(value) if value.is_integer() and abs(value) <= MAX_EXACT else value


def _part(node: ast.AST, text: str) -> str:
    segment = ast.get_source_segment(text.strip(), node) if isinstance(node, (ast.expr, ast.keyword)) else None
    return _short(segment) if segment else type(node).__name__


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
