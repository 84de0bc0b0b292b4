"""Kernels as C11 with GNU vector extensions and OpenMP, for gcc and clang."""

from __future__ import annotations

from sparloom.ir.c_expressions import C_TYPES, CExpressions, c_type
from sparloom.ir.c_prelude import prelude
from sparloom.ir.nodes import (
    I64,
    Accumulate,
    Alloc,
    Assign,
    Const,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Param,
    Prefetch,
    Ref,
    Stmt,
    Store,
    Type,
)
from sparloom.ir.types import Binding, bind_params, type_of
from sparloom.ir.verify import verify

__all__ = ["render_c"]

_MAX_UNROLL = 64


def render_c(kernel: Kernel, *more: Kernel) -> str:
    """Print kernels as one C file; each is `void name(params)` in order, `restrict` pointers for buffers.

    Loop bounds are evaluated once, before the loop. Vectors are loaded and stored unaligned.

    Raises:
        IllegalSchedule: a kernel does not verify.
    """
    printers = []
    for each in (kernel, *more):
        verify(each)
        printers.append(_Printer(each))
    functions = [printer.function() for printer in printers]
    needs = set().union(*(printer.expressions.needs for printer in printers))
    return "\n".join([prelude(needs), *functions])


class _Printer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.expressions = CExpressions()
        self.lines: list[str] = []

    def function(self) -> str:
        params = ", ".join(_param(param) for param in self.kernel.params) or "void"
        self.lines = [f"void {self.kernel.name}({params})", "{"]
        self._block(self.kernel.body, bind_params(self.kernel.params), 1)
        self.lines.append("}\n")
        return "\n".join(self.lines)

    def _emit(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def _block(self, body: tuple[Stmt, ...], outer: dict[str, Binding], depth: int) -> None:
        scope = dict(outer)
        for stmt in body:
            self._stmt(stmt, scope, depth)

    def _stmt(self, stmt: Stmt, scope: dict[str, Binding], depth: int) -> None:
        match stmt:
            case For():
                self._for(stmt, scope, depth)
            case If(cond, body, orelse):
                self._emit(depth, f"if ({self._expr(cond, scope)}) {{")
                self._block(body, scope, depth + 1)
                if orelse:
                    self._emit(depth, "} else {")
                    self._block(orelse, scope, depth + 1)
                self._emit(depth, "}")
            case Let(name, type, value):
                self._emit(depth, f"const {self._type(type)} {name} = {self._expr(value, scope)};")
                scope[name] = Binding("let", type)
            case Declare(name, type, value):
                self._emit(depth, f"{self._type(type)} {name} = {self._expr(value, scope)};")
                scope[name] = Binding("mutable", type)
            case Assign(name, value):
                self._emit(depth, f"{name} = {self._expr(value, scope)};")
            case Store(buffer, index, value):
                self._emit(depth, f"{self._place(buffer, index, value, scope)} = {self._expr(value, scope)};")
            case Accumulate(buffer, index, value):
                self._emit(depth, f"{self._place(buffer, index, value, scope)} += {self._expr(value, scope)};")
            case Alloc(name, scalar, size):
                self._emit(depth, f"{C_TYPES[scalar]} {name}[{size}] __attribute__((aligned(64)));")
                scope[name] = Binding("buffer", Type(scalar), writable=True)
            case Prefetch(buffer, index):
                self._emit(depth, f"__builtin_prefetch({buffer} + {self.expressions.operand(index, scope)});")

    def _for(self, loop: For, scope: dict[str, Binding], depth: int) -> None:
        lo, var = self._expr(loop.lo, scope), loop.var
        end, inner = self._end(loop, scope), {**scope, loop.var: Binding("loop", I64)}
        step = f"++{var}" if loop.step == 1 else f"{var} += {loop.step}"
        pragma = _pragma(loop)
        if end is None:
            head = f"for (int64_t {var} = {lo}; {var} < {self._expr(loop.hi, scope)}; {step}) {{"
        elif loop.kind in ("parallel", "simd"):  # OpenMP wants one variable in the head of the loop
            self._emit(depth, "{")
            depth += 1
            self._emit(depth, f"const int64_t {end} = {self._expr(loop.hi, scope)};")
            head = f"for (int64_t {var} = {lo}; {var} < {end}; {step}) {{"
        else:
            hi = self._expr(loop.hi, scope)
            head = f"for (int64_t {var} = {lo}, {end} = {hi}; {var} < {end}; {step}) {{"
        if pragma:
            self._emit(depth, pragma)
        self._emit(depth, head)
        self._block(loop.body, inner, depth + 1)
        self._emit(depth, "}")
        if end is not None and loop.kind in ("parallel", "simd"):
            self._emit(depth - 1, "}")

    def _end(self, loop: For, scope: dict[str, Binding]) -> str | None:
        """Name for the bound, or None where evaluating it again gives the same."""
        if isinstance(loop.hi, Const) or (isinstance(loop.hi, Ref) and scope[loop.hi.name].role != "mutable"):
            return None
        return f"{loop.var}__end"

    def _place(self, buffer: str, index: Expr, value: Expr, scope: dict[str, Binding]) -> str:
        type = type_of(value, scope)
        if type.lanes == 1:
            return f"{buffer}[{self._expr(index, scope)}]"
        return f"*({self._type(type)} *)({buffer} + {self.expressions.operand(index, scope)})"

    def _expr(self, expr: Expr, scope: dict[str, Binding]) -> str:
        return self.expressions.text(expr, scope)

    def _type(self, type: Type) -> str:
        return self.expressions.type(type)


def _param(param: Param) -> str:
    const = "const " if param.const else ""
    return f"{const}{c_type(param.type)}{' *restrict' if param.buffer else ''} {param.name}"


def _pragma(loop: For) -> str | None:
    if loop.kind == "parallel":
        return f"#pragma omp parallel for schedule(dynamic, {loop.chunk or 1})"
    if loop.kind == "simd":
        return "#pragma omp simd" + (f" reduction(+:{', '.join(loop.reduces)})" if loop.reduces else "")
    if loop.kind == "unrolled":
        known = isinstance(loop.lo, Const) and isinstance(loop.hi, Const)
        trips = -(-(loop.hi.value - loop.lo.value) // loop.step) if known else 4
        return f"#pragma GCC unroll {min(max(trips, 1), _MAX_UNROLL)}"
    return None
