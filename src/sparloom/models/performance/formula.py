"""Formulas of features: one text that NumPy evaluates over columns and that C computes for one problem."""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

__all__ = ["Formula"]

Columns = Mapping[str, np.ndarray]


def _number(column: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Read numbers; a text that is none, such as "all", becomes the other value."""
    texts = column.astype(str)
    digits = np.char.isdigit(texts)
    return np.where(digits, np.where(digits, texts, "0").astype(np.float64), otherwise)


def _part(place: int) -> Callable[[np.ndarray], np.ndarray]:
    """Read one number of a text such as "8x32"."""
    return lambda column: np.array([float(text.split("x")[place]) for text in column.ravel()]).reshape(column.shape)


UNARY = {ast.USub: (np.negative, "(-{})")}
BINARY = {
    ast.Add: (np.add, "({} + {})"), ast.Sub: (np.subtract, "({} - {})"), ast.Mult: (np.multiply, "({} * {})"),
    ast.Div: (np.divide, "({} / {})"),
}
COMPARISONS = {
    ast.Lt: (operator.lt, "({} < {})"), ast.LtE: (operator.le, "({} <= {})"), ast.Gt: (operator.gt, "({} > {})"),
    ast.GtE: (operator.ge, "({} >= {})"), ast.Eq: (operator.eq, "({} == {})"), ast.NotEq: (operator.ne, "({} != {})"),
}
FUNCTIONS = {
    "min": (np.minimum, "fmin({}, {})"), "max": (np.maximum, "fmax({}, {})"), "ceil": (np.ceil, "ceil({})"),
    "floor": (np.floor, "floor({})"), "number": (_number, None), "first": (_part(0), None), "second": (_part(1), None),
}


@dataclass(frozen=True)
class Formula:
    """An expression over columns.

    Grammar, a part of Python's: numbers; names; texts in quotes; + - * / and comparisons, which give 0 or 1; min, max,
    floor, ceil; and of columns of texts first, second ("8x32" -> 8, 32) and number ("all" -> the second argument).

    Args:
        text: the expression.

    Raises:
        ValueError: the text is no such expression.
    """

    text: str

    def __post_init__(self) -> None:
        for node in ast.walk(self._tree):
            if not _known(node):
                raise ValueError(f"formula {self.text!r}: {ast.unparse(node)!r} is not of its language: numbers, "
                                 f"names, + - * /, comparisons, {', '.join(FUNCTIONS)}")

    @cached_property
    def _tree(self) -> ast.expr:
        try:
            return ast.parse(self.text, mode="eval").body
        except SyntaxError as error:
            raise ValueError(f"formula {self.text!r} cannot be read: {error.msg}") from None

    @cached_property
    def names(self) -> frozenset[str]:
        """Columns that are read."""
        found = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}
        return frozenset(found - set(FUNCTIONS))

    def evaluate(self, columns: Columns) -> np.ndarray:
        """Compute it over columns that broadcast against each other; comparisons give 0.0 and 1.0.

        Raises:
            KeyError: a column is missing.
        """
        return np.asarray(_evaluate(self._tree, columns), np.float64)

    def c(self) -> str:
        """Write it as a C expression of doubles; names stay as they are.

        Raises:
            ValueError: it reads texts.
        """
        return _c(self._tree, self.text)


def _known(node: ast.AST) -> bool:
    """Whether a node of the syntax tree belongs to the language."""
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
    raise ValueError(f"formula {text!r} reads texts: C has only numbers, put that part into a feature of the kernel")
