"""Transformations: rewriting of nodes, simplification, and lowering of tile products to loops."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from sparloom.ir import nodes as ir
from sparloom.ir.verify import is_literal, verify

Node = TypeVar("Node", ir.Expr, ir.Stmt)
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def _same(part: Any) -> Any:
    return part


def rebuild(
    node: Node, *, expr: Callable[[ir.Expr], ir.Expr] = _same, body: Callable[[ir.Body], ir.Body] = _same,
) -> Node:
    """Apply `expr` to the direct expressions of a node and `body` to its direct bodies; a copy if any changes."""
    if isinstance(node, (ir.Const, ir.Ref)):
        return node
    parts, changed = [], False
    for name in ir.field_names(type(node)):
        value = new = getattr(node, name)
        if isinstance(value, ir.Expr):
            new = expr(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], ir.Expr):
            new = tuple([expr(each) for each in value])
            new = value if all(map(operator.is_, new, value)) else new
        elif isinstance(value, tuple) and value and isinstance(value[0], ir.Stmt):
            new = body(value)
        parts.append(new)
        changed = changed or new is not value
    return type(node)(*parts) if changed else node


def declarations(kernel: ir.Kernel) -> Counter[str]:
    """Count how often each name is declared, as a parameter, loop variable, value or array."""
    return Counter([*(param.name for param in kernel.params), *declared_names(kernel)])


def declared_names(root: ir.Kernel | ir.Body) -> Iterator[str]:
    """Yield the loop variables, values and arrays that statements under `root` declare."""
    for node in ir.walk(root):
        if isinstance(node, ir.For):
            yield node.var
        elif isinstance(node, (ir.Let, ir.Declare, ir.Alloc)):
            yield node.name


def declared(body: ir.Body) -> tuple[str, ...]:
    """List the names that the statements of `body` declare at its own level."""
    return tuple(stmt.name for stmt in body if isinstance(stmt, (ir.Let, ir.Declare, ir.Alloc)))


def fresh(name: str, taken: set[str]) -> str:
    """Return `name`, with the first suffix _1, _2, ... that makes it unique if needed, and add it to `taken`."""
    chosen, number = name, 0
    while chosen in taken:
        number += 1
        chosen = f"{name}_{number}"
    taken.add(chosen)
    return chosen


def replace_refs(body: ir.Body, values: dict[str, ir.Expr]) -> ir.Body:
    """Replace names by expressions; the caller ensures that `body` declares none of the names in them."""

    def in_expr(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Ref):
            return values.get(expr.name, expr)
        return rebuild(expr, expr=in_expr, body=in_body)

    def in_body(inner: ir.Body) -> ir.Body:
        return tuple(rebuild(stmt, expr=in_expr, body=in_body) for stmt in inner)

    return in_body(body)


def rename(body: ir.Body, new: dict[str, str]) -> ir.Body:
    """Rename values, buffers and arrays where they are declared and used."""

    def in_fields(node: Node) -> Node:
        node = rebuild(node, expr=in_fields, body=in_body)
        changed = {
            field: new[getattr(node, field)]
            for field in ("name", "buffer", "var")
            if getattr(node, field, None) in new and type(node).__name__ != "Call"
        }
        if isinstance(node, ir.For) and set(node.reduces) & set(new):
            changed["reduces"] = tuple(new.get(name, name) for name in node.reduces)
        return replace(node, **changed)

    def in_body(inner: ir.Body) -> ir.Body:
        return tuple(in_fields(stmt) for stmt in inner)

    return in_body(body)


def simplify(kernel: ir.Kernel) -> ir.Kernel:
    """Fold and propagate constants, remove dead branches and empty loops, and inline loops of one iteration.

    `2 * 3  ->  6`, `x + 0  ->  x`, `x * 1  ->  x`, `x * 0  ->  0` (integers), `(x + 2) + 3  ->  x + 5`;
    `let a = 4; S  ->  S[a := 4]`; `if true: S  ->  S`; `for i in 4 .. 4: S  ->  ` nothing;
    `for i in 4 .. 5: S  ->  S[i := 4]` unless the loop is shared; names that S declares are renamed if they would
    clash.

    Always legal: of float operations, only `x * 1`, `x / 1` and `x - 0` are folded, which is exact.
    """
    counts = declarations(kernel)
    taken = set(counts)

    def in_body(body: ir.Body) -> ir.Body:
        lines: list[ir.Stmt] = []
        waiting = list(body)
        while waiting:
            stmt = rebuild(waiting.pop(0), expr=simplify_expr)
            if isinstance(stmt, ir.Let) and isinstance(stmt.value, ir.Const):
                waiting = list(replace_refs(tuple(waiting), {stmt.name: stmt.value}))
                continue
            inlined = _inlined(stmt)
            if inlined is None:
                stmt = rebuild(stmt, expr=simplify_expr, body=in_body)
                lines += [] if _is_empty(stmt) else [stmt]
            else:
                own = {name: fresh(name, taken) for name in declared(inlined) if counts[name] > 1}
                waiting = [*rename(inlined, own), *waiting]
        return tuple(lines)

    result = replace(kernel, body=in_body(kernel.body))
    verify(result)
    return result


def simplify_expr(expr: ir.Expr) -> ir.Expr:
    """Fold an expression bottom-up."""
    return expr if isinstance(expr, (ir.Const, ir.Ref)) else _fold(rebuild(expr, expr=simplify_expr))


def _inlined(stmt: ir.Stmt) -> ir.Body | None:
    """Return the statements that replace a branch or loop whose control is known; None otherwise."""
    match stmt:
        case ir.If(ir.Const(value, type), body, orelse) if type == ir.BOOL:
            return body if value else orelse
        case ir.For(var, ir.Const(lo), ir.Const(hi), body, step=step):
            if lo >= hi:
                return ()
            if lo + step >= hi and stmt.kind != "shared":
                return replace_refs(body, {var: ir.Const(lo, ir.I64)})
    return None


def _is_empty(stmt: ir.Stmt) -> bool:
    """Tell whether a statement does nothing: a loop or branch without body, or `x = x`, which `x = x + 0` becomes."""
    if isinstance(stmt, ir.Assign):
        return stmt.value == ir.Ref(stmt.name)
    return isinstance(stmt, (ir.For, ir.If)) and not stmt.body and not getattr(stmt, "orelse", ())


def _fold(expr: ir.Expr) -> ir.Expr:
    """Fold one expression whose operands have been folded; return `expr` itself if there is nothing to do."""
    match expr:
        case ir.Binary(op, ir.Const(a, type), ir.Const(b)) if type.scalar in ("i32", "i64") and op in _INTEGER:
            if op in ("//", "%") and b == 0:
                return expr
            return _fit(_INTEGER[op](a, b), type, expr)
        case ir.Binary(op, ir.Const(a, type), ir.Const(b)) if type.scalar in ("i32", "i64") and op in COMPARISONS:
            return ir.Const(COMPARISONS[op](a, b), ir.BOOL)
        case ir.Binary("+" | "*" as op, ir.Const(_, type) as a, b) if type.scalar in ("i32", "i64"):
            return _fold(ir.Binary(op, b, a))  # constants to the right
        case ir.Binary("and" | "or" as op, ir.Const(value), b):
            return b if value == (op == "and") else ir.Const(value, ir.BOOL)
        case ir.Binary(op, a, ir.Const(b, type) as right):
            return _right(expr, op, a, right) if type.scalar in ("i32", "i64") else _float(expr, op, a, b)
        case ir.Unary("-", ir.Const(a, type)) if type.scalar in ("i32", "i64"):
            return _fit(-a, type, expr)
        case ir.Unary("not", ir.Const(a)):
            return ir.Const(not a, ir.BOOL)
        case ir.Cast(type, ir.Const(a, of)) if type == ir.I64 and of.scalar in ("i32", "i64"):
            return ir.Const(a, ir.I64)
        case ir.Select(ir.Const(value), a, b):
            return a if value else b
    return expr


def _right(whole: ir.Expr, op: str, a: ir.Expr, right: ir.Const) -> ir.Expr:
    """Fold an integer operation with a constant on the right."""
    b = right.value
    if (op in ("+", "-") and b == 0) or (op in ("*", "//") and b == 1):
        return a
    if (op == "*" and b == 0) or (op == "%" and b == 1):
        return ir.Const(0, right.type)
    match a:
        case ir.Binary("+" | "-" as inner, x, ir.Const(c)) if op in ("+", "-"):
            total = (c if inner == "+" else -c) + (b if op == "+" else -b)
            if total == 0:
                return x
            merged = ir.Binary("+" if total > 0 else "-", x, ir.Const(abs(total), right.type))
            return merged if is_literal(total, right.type.scalar) else whole
        case ir.Binary("*", x, ir.Const(c)) if op == "*" and is_literal(c * b, right.type.scalar):
            return ir.Binary("*", x, ir.Const(c * b, right.type))
    return whole


def _float(expr: ir.Expr, op: str, a: ir.Expr, b: float | bool) -> ir.Expr:
    """Fold a float operation with a constant on the right: x - 0.0 is x even for x = -0.0, but x + 0.0 is not."""
    plain_zero = b == 0 and not str(b).startswith("-")
    if (op in ("*", "/") and b == 1 and not isinstance(b, bool)) or (op == "-" and plain_zero):
        return a
    return expr


def _fit(value: int, type: ir.Type, otherwise: ir.Expr) -> ir.Expr:
    return ir.Const(value, type) if is_literal(value, type.scalar) else otherwise


def _quotient(a: int, b: int) -> int:
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size


_INTEGER: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": _quotient,
    "%": lambda a, b: a - _quotient(a, b) * b,
    "min": min,
    "max": max,
}


def lower_products(kernel: ir.Kernel) -> ir.Kernel:
    """Replace the tile products of a kernel by loops."""
    taken = set(declarations(kernel))
    types = {param.name: param.type for param in kernel.params if param.buffer}

    def in_body(body: ir.Body) -> ir.Body:
        lines: list[ir.Stmt] = []
        for stmt in body:
            if isinstance(stmt, ir.Multiply):
                lines.append(lower_product(stmt, types[stmt.c.buffer], types[stmt.a.buffer], taken))
            else:
                if isinstance(stmt, ir.Alloc):
                    types[stmt.name] = ir.Type(stmt.scalar)
                lines.append(rebuild(stmt, body=in_body))
        return tuple(lines)

    return replace(kernel, body=in_body(kernel.body))


def lower_product(stmt: ir.Multiply, type: ir.Type, left: ir.Type, taken: set[str]) -> ir.For:
    """Lower C = A B to `for r: for q: total = 0; for k: total += a[r, k] * b[k, q];  c[r, q] = total`, or += total.

    Args:
        type: type of C.
        left: type of the elements of A.
        taken: names in use; new ones are added.
    """
    row, col, inner, total = (fresh(name, taken) for name in ("row", "col", "inner", "total"))
    group, c = ir.interleaved_rows(left.scalar), _offset(stmt.c, row, col)
    a, b = _element(stmt.a, row, inner), _element(stmt.b, inner, col)
    if group > 1:
        within = ir.Ref(inner) % group
        at = stmt.b.at + ir.Ref(inner) // group * stmt.b.row + ir.Ref(col) * group + within
        a, b = ir.Cast(type, a), ir.Cast(type, ir.Load(stmt.b.buffer, at))
    added = ir.Assign(total, ir.Ref(total) + a * b)
    store, accumulate = ir.Store(stmt.c.buffer, c, ir.Ref(total)), ir.Accumulate(stmt.c.buffer, c, ir.Ref(total))
    match stmt.add:
        case ir.Const(value, of) if of == ir.BOOL:
            last: ir.Stmt = accumulate if value else store
        case _:
            last = ir.If(stmt.add, (accumulate,), (store,))
    zero = ir.Const(0 if type == ir.I32 else 0.0, type)
    body = (ir.Declare(total, type, zero), ir.For(inner, 0, stmt.depth, (added,)), last)
    return ir.For(row, 0, stmt.rows, (ir.For(col, 0, stmt.cols, body),))


def _element(view: ir.View, row: str, col: str) -> ir.Expr:
    return ir.Load(view.buffer, _offset(view, row, col))


def _offset(view: ir.View, row: str, col: str) -> ir.Expr:
    return view.at + ir.Ref(row) * view.row + ir.Ref(col) * view.col
