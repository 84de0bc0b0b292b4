"""Code generation for the C family: expressions and statements; a Dialect holds what differs between C and CUDA."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparloom.errors import Unsupported
from sparloom.ir import nodes as ir
from sparloom.ir.verify import COMPARISONS, Binding, Scope, bind_params, type_of

C_TYPES = {"i32": "int32_t", "i64": "int64_t", "f32": "float", "f64": "double", "bool": "bool", "bf16": "uint16_t",
           "u8": "uint8_t", "i8": "int8_t"}

OWN_FLOAT_CALLS = ("exp", "exp2", "tanh", "erf")
"""Functions of f32 for which the prelude has code of its own."""

BF16_HELPERS = {
    "widened": """\
float widened_bf16(uint16_t bits)
{
    union { uint32_t bits; float value; } found = {(uint32_t)bits << 16};
    return found.value;
}""",
    "rounded": """\
uint16_t rounded_bf16(float value)
{
    union { float value; uint32_t bits; } found = {value};
    const uint32_t nearest = (found.bits + 0x7fffu + (found.bits >> 16 & 1u)) >> 16;
    return (uint16_t)(value != value ? found.bits >> 16 | 0x40u : nearest);
}"""}
"""Functions, without what stands before their type, that casts from and to bf16 call."""

_OPERATORS = {"//": "/", "and": "&&", "or": "||"}
_VECTOR_OPERATORS = {"//": "/", "and": "&", "or": "|"}
_LEVELS = {
    "*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<": 7, "<=": 7, ">": 7, ">=": 7, "==": 6, "!=": 6,
    "&": 5, "|": 4, "&&": 3, "||": 2,
}
_PRIMARY, _PREFIX, _SELECT = 12, 11, 1


def element_type(type: ir.Type) -> str:
    """Return the C type of the elements of a vector; those of bool are int32_t that hold 0 or -1."""
    return "int32_t" if type.scalar == "bool" else C_TYPES[type.scalar]


def c_type(type: ir.Type) -> str:
    """Return the C name of a type; the prelude defines vector types."""
    return C_TYPES[type.scalar] if type.lanes == 1 else str(type)


@dataclass(frozen=True)
class Dialect:
    """The constructs that differ between languages of the C family.

    Args:
        head: text before the name of a function.
        restrict: qualifier of pointers that do not alias.
        array: text after the declaration of a local array.
        convert: template of vector conversions, for value and type.
        prefetch: template of a prefetch statement, for the address; empty if there is none.
        heap: template of an allocation, for the size in bytes, and of the statement that frees it; None if there is no
            heap.
        pragma: returns the line before a loop, or None.
        first, step: return start and step of a parallel or shared loop, given the loop and the text of a serial one.
        after: returns the line after a loop, or None.
    """

    head: str
    restrict: str
    array: str
    convert: str
    prefetch: str
    heap: tuple[str, str] | None
    pragma: Callable[[ir.For], str | None]
    first: Callable[[ir.For, str], str]
    step: Callable[[ir.For, str], str]
    after: Callable[[ir.For], str | None]


class Printer:
    """Prints one kernel; afterwards `expressions.needs` lists what the prelude must define."""

    def __init__(self, kernel: ir.Kernel, dialect: Dialect) -> None:
        self.kernel = kernel
        self.dialect = dialect
        self.expressions = _Expressions(dialect.convert)
        self.lines: list[str] = []

    def function(self) -> str:
        """Print the whole function."""
        params = ", ".join(self._param(param) for param in self.kernel.params) or "void"
        self.lines = [f"{self.dialect.head} {self.kernel.name}({params})", "{"]
        self._block(self.kernel.body, bind_params(self.kernel.params), 1)
        self.lines.append("}\n")
        return "\n".join(self.lines)

    def _emit(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def _block(self, body: tuple[ir.Stmt, ...], outer: dict[str, Binding], depth: int) -> None:
        scope = dict(outer)
        for stmt in body:
            self._stmt(stmt, scope, depth)
        for stmt in reversed(body):
            if isinstance(stmt, ir.Alloc) and not isinstance(stmt.size, int) and self.dialect.heap is not None:
                self._emit(depth, self.dialect.heap[1].format(stmt.name))

    def _stmt(self, stmt: ir.Stmt, scope: dict[str, Binding], depth: int) -> None:
        match stmt:
            case ir.For():
                self._for(stmt, scope, depth)
            case ir.If(cond, body, orelse):
                self._emit(depth, f"if ({self._expr(cond, scope)}) {{")
                self._block(body, scope, depth + 1)
                if orelse:
                    self._emit(depth, "} else {")
                    self._block(orelse, scope, depth + 1)
                self._emit(depth, "}")
            case ir.Let(name, type, value) | ir.Declare(name, type, value):
                const, role = ("const ", "let") if isinstance(stmt, ir.Let) else ("", "mutable")
                self._emit(depth, f"{const}{self._type(type)} {name} = {self._expr(value, scope)};")
                scope[name] = Binding(role, type)
            case ir.Assign(name, value):
                self._emit(depth, f"{name} = {self._expr(value, scope)};")
            case ir.Store(buffer, index, value) | ir.Accumulate(buffer, index, value):
                sign = "=" if isinstance(stmt, ir.Store) else "+="
                self._emit(depth, f"{self._element(buffer, index, value, scope)} {sign} {self._expr(value, scope)};")
            case ir.Alloc(name, scalar, size):
                if isinstance(size, int):
                    self._emit(depth, f"{C_TYPES[scalar]} {name}[{size}]{self.dialect.array};")
                else:
                    self._allocate(name, scalar, size, scope, depth)
                scope[name] = Binding("buffer", ir.Type(scalar), writable=True)
            case ir.Multiply():
                self._multiply(stmt, scope, depth)
            case ir.Prefetch(buffer, index) if self.dialect.prefetch:
                address = f"{buffer} + {self.expressions.operand(index, scope)}"
                self._emit(depth, self.dialect.prefetch.format(address))

    def _allocate(self, name: str, scalar: ir.Scalar, size: ir.Expr, scope: dict[str, Binding], depth: int) -> None:
        if self.dialect.heap is None:
            raise Unsupported(f"kernel {self.kernel.name}: local array {name} has a size that is not a constant: give "
                              "lengths a limit, or store it whole")
        self.expressions.needs.add(("allocated", ir.Type(scalar)))
        type, bytes_ = C_TYPES[scalar], f"({self._expr(size, scope)}) * (int64_t)sizeof({C_TYPES[scalar]})"
        self._emit(depth, f"{type} *{self.dialect.restrict} {name} = {self.dialect.heap[0].format(bytes_)};")

    def _multiply(self, stmt: ir.Multiply, scope: dict[str, Binding], depth: int) -> None:
        type = scope[stmt.a.buffer].type
        self.expressions.needs.add(("multiply", type))
        c, a, b = (f"{view.buffer} + {self.expressions.operand(view.at, scope)}" for view in (stmt.c, stmt.a, stmt.b))
        shape = ", ".join(self._expr(extent, scope) for extent in (stmt.rows, stmt.cols, stmt.depth))
        left = f"{a}, {self._expr(stmt.a.row, scope)}, {self._expr(stmt.a.col, scope)}"
        right, result = f"{b}, {self._expr(stmt.b.row, scope)}", f"{c}, {self._expr(stmt.c.row, scope)}"
        self._emit(depth, f"multiply_{type}({shape}, {left}, {right}, {result}, {self._expr(stmt.add, scope)});")

    def _for(self, loop: ir.For, scope: dict[str, Binding], depth: int) -> None:
        lo, hi, var = self._expr(loop.lo, scope), self._expr(loop.hi, scope), loop.var
        end, inner = self._end(loop, scope), {**scope, var: Binding("loop", ir.I64)}
        step = f"++{var}" if loop.step == 1 else f"{var} += {loop.step}"
        if loop.kind in ("parallel", "shared"):
            lo, step = self.dialect.first(loop, lo), self.dialect.step(loop, step)
        one_variable = end is not None and loop.kind in ("parallel", "simd")  # all that OpenMP takes in the head
        if one_variable:
            self._emit(depth, "{")
            depth += 1
            self._emit(depth, f"const int64_t {end} = {hi};")
        pragma = self.dialect.pragma(loop)
        if pragma is not None:
            self._emit(depth, pragma)
        first = f"{var} = {lo}" if end is None or one_variable else f"{var} = {lo}, {end} = {hi}"
        self._emit(depth, f"for (int64_t {first}; {var} < {end or hi}; {step}) {{")
        self._block(loop.body, inner, depth + 1)
        self._emit(depth, "}")
        after = self.dialect.after(loop)
        if after is not None:
            self._emit(depth, after)
        if one_variable:
            self._emit(depth - 1, "}")

    def _end(self, loop: ir.For, scope: dict[str, Binding]) -> str | None:
        """Return a name for the bound; None if evaluating it again gives the same value."""
        if isinstance(loop.hi, ir.Const) or (isinstance(loop.hi, ir.Ref) and scope[loop.hi.name].role != "mutable"):
            return None
        return f"{loop.var}__end"

    def _element(self, buffer: str, index: ir.Expr, value: ir.Expr, scope: dict[str, Binding]) -> str:
        type = type_of(value, scope)
        if type.lanes == 1:
            return f"{buffer}[{self._expr(index, scope)}]"
        return f"*({self._type(type)} *)({buffer} + {self.expressions.operand(index, scope)})"

    def _expr(self, expr: ir.Expr, scope: dict[str, Binding]) -> str:
        return self.expressions.text(expr, scope)

    def _type(self, type: ir.Type) -> str:
        return self.expressions.type(type)

    def _param(self, param: ir.Param) -> str:
        const = "const " if param.const else ""
        return f"{const}{c_type(param.type)}{f' *{self.dialect.restrict}' if param.buffer else ''} {param.name}"


class _Expressions:
    """Prints expressions with few parentheses; `needs` collects the (helper, type) pairs of the prelude."""

    def __init__(self, convert: str) -> None:
        self.convert = convert  # template of vector conversions, for value and type
        self.needs: set[tuple[str, ir.Type]] = set()

    def text(self, expr: ir.Expr, scope: Scope) -> str:
        """Print an expression."""
        return self._print(expr, scope)[0]

    def operand(self, expr: ir.Expr, scope: Scope, level: int = 10) -> str:
        """Print an expression, in parentheses if its precedence is below `level`."""
        text, own = self._print(expr, scope)
        return text if own >= level else f"({text})"

    def type(self, type: ir.Type) -> str:
        """Return the name of a type; a vector type is added to `needs`."""
        if type.lanes > 1:
            self.needs.add(("type", type))
        return c_type(type)

    def _helper(self, name: str, type: ir.Type) -> str:
        self.type(type)
        self.needs.add((name, type))
        return f"{name}_{type}"

    def _print(self, expr: ir.Expr, scope: Scope) -> tuple[str, int]:
        """Return the text and the precedence of its outermost operator."""
        match expr:
            case ir.Const(value, type):
                return _constant(value, type)
            case ir.Ref(name):
                return name, _PRIMARY
            case ir.Load(buffer, index, 1):
                return f"{buffer}[{self.text(index, scope)}]", _PRIMARY
            case ir.Load(buffer, index, _):
                return f"*(const {self.type(type_of(expr, scope))} *)({buffer} + {self.operand(index, scope)})", _PREFIX
            case ir.Binary():
                return self._binary(expr, scope)
            case ir.Unary(op, a):
                sign = "-" if op == "-" else "!" if type_of(a, scope).lanes == 1 else "~"
                return f"{sign}{self.operand(a, scope, _PRIMARY)}", _PREFIX
            case ir.Broadcast(a, _):
                return f"{self._helper('broadcast', type_of(expr, scope))}({self.text(a, scope)})", _PRIMARY
            case ir.Sum(a):
                return f"{self._helper('sum', type_of(a, scope))}({self.text(a, scope)})", _PRIMARY
            case ir.Cast(ir.BF16, a) | ir.Cast(ir.F32, a) if (expr.type == ir.BF16) != (type_of(a, scope) == ir.BF16):
                name = "rounded" if expr.type == ir.BF16 else "widened"
                return f"{self._helper(name, ir.BF16)}({self.text(a, scope)})", _PRIMARY
            case ir.Cast(type, a):
                if type.lanes == 1:
                    return f"({C_TYPES[type.scalar]}){self.operand(a, scope, _PREFIX)}", _PREFIX
                return self.convert.format(self.text(a, scope), self.type(type)), _PRIMARY
            case ir.Select():
                return self._select(expr, scope)
            case ir.Call(name, (a,)):
                return f"{self._call(name, type_of(expr, scope))}({self.text(a, scope)})", _PRIMARY
        raise TypeError(f"{expr!r} is not an expression of the IR")

    def _binary(self, expr: ir.Binary, scope: Scope) -> tuple[str, int]:
        type = type_of(expr.a, scope)
        if expr.op in ("min", "max"):
            return f"{self._helper(expr.op, type)}({self.text(expr.a, scope)}, {self.text(expr.b, scope)})", _PRIMARY
        op = (_OPERATORS if type.lanes == 1 else _VECTOR_OPERATORS).get(expr.op, expr.op)
        level = _LEVELS[op]
        # comparisons do not chain, and compilers warn about & and | next to other operators
        tighter = level + 1 if expr.op in COMPARISONS or op in ("&", "|") else level
        a, b = self.operand(expr.a, scope, tighter), self.operand(expr.b, scope, level + 1)
        if _is_constant(expr.a) and _is_constant(expr.b) and type == ir.Type("i64"):
            a = f"(int64_t){a}"  # otherwise C computes in int
        text = f"{a} {op} {b}"
        if type.lanes > 1 and expr.op in COMPARISONS:
            mask = self.type(ir.Type("bool", type.lanes))
            wide = type.scalar in ("i64", "f64")
            return (self.convert.format(text, mask) if wide else f"({mask})({text})"), _PREFIX
        return text, level

    def _select(self, expr: ir.Select, scope: Scope) -> tuple[str, int]:
        type = type_of(expr.a, scope)
        cond, a, b = expr.cond, expr.a, expr.b
        if type.lanes > 1:
            name = self._helper("select", type)
            return f"{name}({self.text(cond, scope)}, {self.text(a, scope)}, {self.text(b, scope)})", _PRIMARY
        first = self.operand(a, scope, _SELECT + 1)
        if type == ir.Type("i64") and _is_constant(a) and _is_constant(b):
            first = f"(int64_t){self.operand(a, scope, _PRIMARY)}"
        return f"{self.operand(cond, scope, _SELECT + 1)} ? {first} : {self.operand(b, scope, _SELECT + 1)}", _SELECT

    def _call(self, name: str, type: ir.Type) -> str:
        own = (name == "abs" and type.scalar in ("i32", "i64")) or (name in OWN_FLOAT_CALLS and type.scalar == "f32")
        if own or type.lanes > 1:
            return self._helper(name, type)
        return ("fabs" if name == "abs" else name) + ("f" if type.scalar == "f32" else "")


def _is_constant(expr: ir.Expr) -> bool:
    """Tell whether all operands are literals, which C computes as int."""
    match expr:
        case ir.Const():
            return True
        case ir.Binary(_, a, b) | ir.Select(_, a, b):
            return _is_constant(a) and _is_constant(b)
        case ir.Unary(_, a):
            return _is_constant(a)
    return False


def _constant(value: float | int | bool, type: ir.Type) -> tuple[str, int]:
    if type.scalar == "bool":
        return ("true" if value else "false"), _PRIMARY
    if type.scalar in ("i32", "i64"):
        return str(value), _PRIMARY if value >= 0 else _PREFIX
    suffix = "f" if type.scalar == "f32" else ""
    number = np.float32(value) if suffix else np.float64(value)
    if math.isnan(number):
        return "NAN", _PRIMARY
    sign = "-" if np.signbit(number) else ""
    text = "INFINITY" if math.isinf(number) else f"{abs(number)!s}{suffix}"
    return sign + text, _PREFIX if sign else _PRIMARY
