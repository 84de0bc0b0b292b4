"""Verification: types of expressions, and whether a kernel is well formed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sparloom.errors import IllegalSchedule
from sparloom.ir import nodes as ir

ARITHMETIC = ("+", "-", "*", "/", "//", "%", "min", "max")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
LOGIC = ("and", "or")
FLOAT_CALLS = ("sqrt", "exp", "exp2", "log", "tanh", "erf")  # named alike in C
CALLS = (*FLOAT_CALLS, "abs")

_FLOATS = ("f32", "f64")
_INTEGERS = ("i32", "i64")
_MAX_LANES = 64
MAX_ARRAY_BYTES = 1 << 20  # of all local arrays together, since threads have small stacks

_KINDS = ("serial", "parallel", "shared", "simd", "unrolled")
_BYTES = {"i32": 4, "i64": 8, "f32": 4, "f64": 8, "bool": 1, "bf16": 2, "u8": 1, "i8": 1}
_WORDS = """
    auto bool break case char const continue default do double else enum extern false float for goto if inline int linux
    long main register restrict return short signed sizeof static struct switch true typedef union unix unsigned void
    volatile while asm typeof NAN INFINITY fabs class namespace new delete template this operator private public
    protected blockIdx blockDim threadIdx gridDim warpSize
"""
_RESERVED = frozenset((*_WORDS.split(), *CALLS, *(f"{call}f" for call in (*CALLS, "fabs"))))
_HELPER_NAME = re.compile(
    rf"((broadcast|sum|select|min|max|{'|'.join(CALLS)})_)?(i32|i64|f32|f64|bool)(x\d+)?|(widened|rounded)_bf16|u?int\d+_t"
)


@dataclass(frozen=True)
class Binding:
    """Meaning of a name; a `writable` buffer or array may be stored to."""

    role: Literal["let", "mutable", "loop", "buffer"]
    type: ir.Type
    writable: bool = False


Scope = Mapping[str, Binding]


def bind_params(params: tuple[ir.Param, ...]) -> dict[str, Binding]:
    """Return the outermost scope of a kernel."""
    return {p.name: Binding("buffer" if p.buffer else "let", p.type, p.buffer and not p.const) for p in params}


def reduction_op(stmt: ir.Assign) -> str | None:
    """Return the reduction operator of `name = name op value`, which is +, min or max; None if it is no reduction."""
    match stmt.value:
        case ir.Binary("+" | "min" | "max" as op, ir.Ref(name), _) if name == stmt.name:
            return op
    return None


def type_of(expr: ir.Expr, scope: Scope) -> ir.Type:
    """Return the type of an expression, after checking all its parts."""
    match expr:
        case ir.Const(value, type):
            return _const(value, type)
        case ir.Ref(name):
            binding = _lookup(name, scope)
            if binding.role == "buffer":
                raise IllegalSchedule(f"{name} is a buffer, not a value: use Load({name!r}, index)")
            return binding.type
        case ir.Load(buffer, index, lanes):
            return _load(buffer, index, lanes, scope)
        case ir.Binary():
            return _binary(expr, scope)
        case ir.Unary(op, a):
            return _unary(op, type_of(a, scope))
        case ir.Broadcast(a, lanes):
            scalar = type_of(a, scope)
            if scalar.lanes != 1:
                raise IllegalSchedule(f"broadcast of {scalar}: only one value can be copied into all lanes")
            return check_type(ir.Type(scalar.scalar, lanes))
        case ir.Sum(a):
            vector = type_of(a, scope)
            if vector.lanes == 1 or vector.scalar == "bool":
                raise IllegalSchedule(f"sum of {vector}: only vectors of numbers have lanes to add")
            return ir.Type(vector.scalar)
        case ir.Cast(type, a):
            found = type_of(a, scope)
            if found.lanes != type.lanes or "bool" in (type.scalar, found.scalar):
                raise IllegalSchedule(f"cast of {found} to {type}: lanes stay, and bool is made by comparing")
            for one, other in ((type, found), (found, type)):
                if one != other and ir.STORED_AS.get(one.scalar, other.scalar) != other.scalar:
                    raise IllegalSchedule(f"cast of {found} to {type}: {one} is cast from and to "
                                          f"{ir.STORED_AS[one.scalar]} only")
            return check_type(type)
        case ir.Select(cond, a, b):
            return _select(type_of(cond, scope), type_of(a, scope), type_of(b, scope))
        case ir.Call(name, args):
            return _call(name, [type_of(arg, scope) for arg in args])
    raise TypeError(f"{expr!r} is not an expression of the IR")


def is_literal(value: int, scalar: str) -> bool:
    """Tell whether C has a literal for `value`, which excludes the minimum of the integer type."""
    return abs(value) < 2 ** (31 if scalar == "i32" else 63)


def check_type(type: ir.Type) -> ir.Type:
    """Return `type`; raise IllegalSchedule unless its lanes are a power of two up to 64."""
    if not 1 <= type.lanes <= _MAX_LANES or type.lanes & (type.lanes - 1):
        raise IllegalSchedule(f"type {type}: lanes must be a power of two from 1 to {_MAX_LANES}")
    return type


def _lookup(name: str, scope: Scope) -> Binding:
    if name not in scope:
        raise IllegalSchedule(f"name {name} is not in scope; there are: {', '.join(scope) or 'none'}")
    return scope[name]


def _const(value: float | int | bool, type: ir.Type) -> ir.Type:
    if type.lanes != 1:
        raise IllegalSchedule(f"constant {value} of type {type}: use Broadcast(Const(...), {type.lanes})")
    integral = isinstance(value, int) and not isinstance(value, bool)
    if type.scalar in ir.STORED_AS:
        fits = False
    elif type.scalar == "bool":
        fits = isinstance(value, bool)
    elif type.scalar in _INTEGERS:
        fits = integral and is_literal(value, type.scalar)
    else:
        fits = integral or isinstance(value, float)
    if not fits:
        raise IllegalSchedule(f"constant {value!r} is no {type}")
    return type


def _load(buffer: str, index: ir.Expr, lanes: int, scope: Scope) -> ir.Type:
    binding = _lookup(buffer, scope)
    if binding.role != "buffer":
        raise IllegalSchedule(f"{buffer} is a value, not a buffer: use Ref({buffer!r})")
    check_index(buffer, index, scope)
    if lanes != 1 and binding.type.scalar == "bool":
        raise IllegalSchedule(f"vector load from {buffer}: vectors of bool are made by comparing, not loaded")
    if lanes != 1 and binding.type.scalar in ir.STORED_AS:
        raise IllegalSchedule(f"vector load from {buffer}: elements of {binding.type} are loaded one at a time")
    return check_type(ir.Type(binding.type.scalar, lanes))


def check_index(buffer: str, index: ir.Expr, scope: Scope) -> None:
    """Raise IllegalSchedule unless `index` is an i64."""
    found = type_of(index, scope)
    if found != ir.I64:
        raise IllegalSchedule(f"index of {buffer} is {found}, not i64: use Cast(I64, index)")


def _binary(expr: ir.Binary, scope: Scope) -> ir.Type:
    a, b, op = type_of(expr.a, scope), type_of(expr.b, scope), expr.op
    if a != b:
        raise IllegalSchedule(f"operands of {op} are {a} and {b}: use Cast or Broadcast to make them equal")
    if op in LOGIC:
        taken = ("bool",)
    elif op == "/":
        taken = _FLOATS
    elif op in ("//", "%"):
        taken = _INTEGERS
    elif op in ARITHMETIC or op in COMPARISONS:
        taken = _INTEGERS + _FLOATS
    else:
        raise IllegalSchedule(f"no binary operator {op!r}; there are: {' '.join(ARITHMETIC + COMPARISONS + LOGIC)}")
    if a.scalar not in taken:
        raise IllegalSchedule(f"operator {op} does not take {a}; it takes {', '.join(taken)}")
    return ir.Type("bool", a.lanes) if op in COMPARISONS else a


def _unary(op: str, a: ir.Type) -> ir.Type:
    if op not in ("-", "not"):
        raise IllegalSchedule(f"no unary operator {op!r}; there are: - not")
    if (a.scalar == "bool") != (op == "not"):
        raise IllegalSchedule(f"operator {op} does not take {a}; it takes {'bool' if op == 'not' else 'numbers'}")
    return a


def _select(cond: ir.Type, a: ir.Type, b: ir.Type) -> ir.Type:
    if cond.scalar != "bool" or a != b or a.lanes != cond.lanes:
        rule = "the branches have one type and the condition is bool of as many lanes"
        raise IllegalSchedule(f"select of {a} and {b} by {cond}: {rule}")
    return a


def _call(name: str, args: list[ir.Type]) -> ir.Type:
    if name not in CALLS:
        raise IllegalSchedule(f"no function {name!r}; there are: {', '.join(CALLS)}")
    if len(args) != 1 or (args[0].scalar not in _FLOATS and name != "abs") or args[0].scalar == "bool":
        taken = "one number" if name == "abs" else "one float"
        raise IllegalSchedule(f"{name} of ({', '.join(map(str, args))}): it takes {taken}")
    return args[0]


@dataclass
class _Context:
    """The context of a statement: its path in the kernel, names in scope, enclosing loops."""

    scope: dict[str, Binding]
    path: tuple[str, ...]
    parallel: frozenset[str] | None = None  # names declared outside the enclosing parallel loop
    simd: frozenset[str] | None = None  # names declared outside the enclosing simd loop
    reduces: tuple[str, ...] = ()
    sharing: bool = False  # directly inside a parallel loop
    array_bytes: list[int] = field(default_factory=lambda: [0])


def verify(kernel: ir.Kernel) -> None:
    """Check names, scopes, types, lanes and the rules of the loop kinds.

    A name begins with a letter, contains no "__", is no keyword of C or CUDA, and does not shadow another. A parallel
    loop contains no parallel loop and assigns no variable declared outside it. A shared loop is directly inside a
    parallel one, next to only shared loops and Let. A simd loop is innermost and scalar, and assigns no variable
    declared outside it except the ones that it reduces. Races are not checked here; `interpret` detects them.

    Raises:
        IllegalSchedule: names the path of the statement in the kernel.
    """
    context = _Context(bind_params(kernel.params), (f"kernel {kernel.name}",))
    _check_name(kernel.name, {}, context)
    seen: dict[str, Binding] = {}
    for param in kernel.params:
        _check_name(param.name, seen, context)
        _check_param(param, context)
        seen[param.name] = context.scope[param.name]
    _block(kernel.body, context)


def is_name(name: str) -> bool:
    """Tell whether a kernel may use a name."""
    legal = re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) is not None and "__" not in name
    return legal and name not in _RESERVED and not _HELPER_NAME.fullmatch(name)


def _block(body: ir.Body, context: _Context) -> None:
    for stmt in body:
        _stmt(stmt, replace(context, path=(*context.path, _title(stmt))))


def _stmt(stmt: ir.Stmt, context: _Context) -> None:
    scope = context.scope
    match stmt:
        case ir.For():
            _for(stmt, context)
        case ir.If(cond, body, orelse):
            if _type(cond, context) != ir.BOOL:
                raise _illegal(f"condition is {_type(cond, context)}, not bool: use a comparison of scalars", context)
            _block(body, replace(context, scope=dict(scope), sharing=False))
            _block(orelse, replace(context, scope=dict(scope), sharing=False))
        case ir.Let(name, type, value) | ir.Declare(name, type, value):
            _check_name(name, scope, context)
            _check_value(type, value, context)
            scope[name] = Binding("let" if isinstance(stmt, ir.Let) else "mutable", _typed(context, check_type, type))
        case ir.Assign():
            _assign(stmt, context)
        case ir.Store(buffer, index, value) | ir.Accumulate(buffer, index, value):
            _store(buffer, index, value, context)
            if isinstance(stmt, ir.Accumulate) and scope[buffer].type.scalar in ("bool", *ir.STORED_AS):
                raise _illegal(f"{scope[buffer].type} cannot be added up: use Store", context)
        case ir.Alloc():
            _alloc(stmt, context)
        case ir.Multiply():
            _multiply(stmt, context)
        case ir.Prefetch(buffer, index):
            _buffer(buffer, context)
            _typed(context, check_index, buffer, index, scope)
        case _:
            raise TypeError(f"{stmt!r} is not a statement of the IR")


def _for(loop: ir.For, context: _Context) -> None:
    _check_name(loop.var, context.scope, context)
    for bound in (loop.lo, loop.hi):
        found = _type(bound, context)
        if found != ir.I64:
            raise _illegal(f"bound is {found}, not i64: use Cast(I64, bound)", context)
    if loop.kind not in _KINDS:
        raise _illegal(f"no kind of loop {loop.kind!r}; there are: {', '.join(_KINDS)}", context)
    if not isinstance(loop.step, int) or loop.step < 1:
        raise _illegal(f"step {loop.step} is not a positive int", context)
    if loop.chunk is not None and (loop.kind != "parallel" or loop.chunk < 1):
        offender = f"chunk {loop.chunk} on a {loop.kind} loop"
        raise _illegal(f"{offender}: only parallel loops have one, of at least 1", context)
    if context.simd is not None:
        raise _illegal("a simd loop contains a loop: make the inner one simd", context)
    if loop.reduces and loop.kind != "simd":
        raise _illegal(f"a {loop.kind} loop reduces {', '.join(loop.reduces)}: only simd loops reduce", context)
    if loop.kind == "shared" and not context.sharing:
        raise _illegal("a shared loop that is not directly in a parallel loop: make it serial", context)
    inner = replace(context, scope={**context.scope, loop.var: Binding("loop", ir.I64)}, sharing=False)
    if loop.kind == "parallel":
        if context.parallel is not None:
            raise _illegal("a parallel loop contains a parallel loop: make one serial", context)
        _check_sharing(loop, context)
        inner = replace(inner, parallel=frozenset(context.scope), sharing=True)
    if loop.kind == "simd":
        _check_reduces(loop, context)
        inner = replace(inner, simd=frozenset(context.scope), reduces=loop.reduces)
    _block(loop.body, inner)


def _check_sharing(loop: ir.For, context: _Context) -> None:
    """Check the statements next to shared loops, because every thread of a block runs them."""
    shared = [isinstance(stmt, ir.For) and stmt.kind == "shared" for stmt in loop.body]
    if any(shared) and not all(isinstance(stmt, ir.Let) or each for stmt, each in zip(loop.body, shared, strict=True)):
        raise _illegal("beside shared loops only Let may stand in a parallel loop: move the rest into one", context)


def _check_reduces(loop: ir.For, context: _Context) -> None:
    for name in loop.reduces:
        binding = context.scope.get(name)
        if binding is None or binding.role != "mutable" or binding.type.lanes != 1 or binding.type == ir.BOOL:
            raise _illegal(f"reduces {name}: declare it outside the loop as a mutable scalar number", context)
        if context.parallel is not None and name in context.parallel:
            raise _illegal(f"reduces {name}: declare it inside the parallel loop around", context)
        uses = sum(isinstance(node, ir.Ref) and node.name == name for node in ir.walk(loop.body))
        updates = (node for node in ir.walk(loop.body) if isinstance(node, ir.Assign) and node.name == name)
        ops = [op for op in map(reduction_op, updates) if op is not None]
        if uses != len(ops) or len(set(ops)) > 1:
            raise _illegal(f"reduces {name}, but reads it other than in {name} = {name} + value, or min, or max",
                           context)


def _assign(stmt: ir.Assign, context: _Context) -> None:
    binding = context.scope.get(stmt.name)
    if binding is None or binding.role != "mutable":
        why = "is not in scope" if binding is None else "is immutable"
        raise _illegal(f"{stmt.name} {why}: introduce it by Declare", context)
    if context.parallel is not None and stmt.name in context.parallel:
        raise _illegal(f"{stmt.name} is declared outside the parallel loop: declare it inside", context)
    if stmt.name in context.reduces and reduction_op(stmt) is None:
        raise _illegal(f"{stmt.name} is reduced: only {stmt.name} = {stmt.name} + value, or min, or max, may assign it",
                       context)
    if context.simd is not None and stmt.name in context.simd and stmt.name not in context.reduces:
        raise _illegal(f"{stmt.name} is declared outside the simd loop: declare it inside, or reduce it", context)
    _check_value(binding.type, stmt.value, context)


def _store(buffer: str, index: ir.Expr, value: ir.Expr, context: _Context) -> None:
    binding = _buffer(buffer, context, written=True)
    _typed(context, check_index, buffer, index, context.scope)
    found = _type(value, context)
    if found.scalar != binding.type.scalar or (found.scalar == "bool" and found.lanes > 1):
        raise _illegal(f"value is {found}, {buffer} holds {binding.type}: use Cast", context)


def _buffer(name: str, context: _Context, *, written: bool = False) -> Binding:
    binding = context.scope.get(name)
    if binding is None or binding.role != "buffer":
        raise _illegal(f"no buffer {name} in scope: make it a Param, or Alloc it", context)
    if written and not binding.writable:
        raise _illegal(f"{name} is const: make its Param const=False", context)
    return binding


def _multiply(stmt: ir.Multiply, context: _Context) -> None:
    if context.simd is not None:
        raise _illegal("a product of tiles in a simd loop: make the loop serial", context)
    types = []
    for view in (stmt.c, stmt.a, stmt.b):
        if not isinstance(view, ir.View) or view.buffer not in context.scope:
            raise _illegal(f"{view!r} is no view of a buffer in scope: make one by View", context)
        types.append(_buffer(view.buffer, context).type)
    made, *factors = (type.scalar for type in types)
    if ir.PRODUCTS.get(tuple(factors)) != made:
        known = ", ".join(f"{' by '.join(pair)} in {result}" for pair, result in ir.PRODUCTS.items())
        raise _illegal(f"a product of {' by '.join(factors)} in {made}: there are {known}", context)
    _buffer(stmt.c.buffer, context, written=True)
    if stmt.c.buffer in (stmt.a.buffer, stmt.b.buffer):
        raise _illegal(f"{stmt.c.buffer} is read and written by one product: write to another buffer", context)
    group = ir.interleaved_rows(factors[0])
    for view, stride in ((stmt.c, 1), (stmt.b, group)):
        if view.col != ir.Const(stride):
            raise _illegal(f"columns of {view.buffer} do not lie side by side: only A may have another stride", context)
    if group > 1 and stmt.a.col != ir.Const(1):
        raise _illegal(f"columns of {stmt.a.buffer} do not lie side by side, as those of {types[1]} must", context)
    numbers = [each for view in (stmt.c, stmt.a, stmt.b) for each in (view.at, view.row, view.col)]
    for number in (*numbers, stmt.rows, stmt.cols, stmt.depth):
        if _type(number, context) != ir.I64:
            raise _illegal(f"offset or extent of a product is {_type(number, context)}, not i64: use Cast", context)
    if _type(stmt.add, context) != ir.BOOL:
        raise _illegal(f"add is {_type(stmt.add, context)}, not bool: use a comparison", context)


def _alloc(stmt: ir.Alloc, context: _Context) -> None:
    _check_name(stmt.name, context.scope, context)
    if context.simd is not None:
        raise _illegal(f"array {stmt.name} in a simd loop: allocate it outside", context)
    if isinstance(stmt.size, ir.Expr):
        if stmt.scalar not in _BYTES or _type(stmt.size, context) != ir.I64:
            raise _illegal(f"array {stmt.name} of {_type(stmt.size, context)} {stmt.scalar}: the size is an i64",
                           context)
        context.scope[stmt.name] = Binding("buffer", ir.Type(stmt.scalar), writable=True)
        return
    if stmt.scalar not in _BYTES or not isinstance(stmt.size, int) or stmt.size < 1:
        raise _illegal(f"array {stmt.name} of {stmt.size} {stmt.scalar}: the size is a positive int", context)
    context.array_bytes[0] += stmt.size * _BYTES[stmt.scalar]
    if context.array_bytes[0] > MAX_ARRAY_BYTES:
        offender = f"local arrays take {context.array_bytes[0]} bytes, over {MAX_ARRAY_BYTES}"
        raise _illegal(f"{offender}: pass {stmt.name} as a buffer", context)
    context.scope[stmt.name] = Binding("buffer", ir.Type(stmt.scalar), writable=True)


def _check_value(type: ir.Type, value: ir.Expr, context: _Context) -> None:
    found = _type(value, context)
    if found != type:
        raise _illegal(f"value is {found}, not {type}: use Cast or Broadcast", context)


def _type(expr: ir.Expr, context: _Context) -> ir.Type:
    type = _typed(context, type_of, expr, context.scope)
    if context.simd is not None:
        for node in ir.walk(expr):
            if isinstance(node, ir.Expr) and type_of(node, context.scope).lanes > 1:
                raise _illegal("a vector in a simd loop: use lanes=1 there, or a serial loop", context)
    return type


def _typed(context: _Context, check: Callable[..., Any], *arguments: Any) -> Any:
    """Call `check`, and prefix its errors with the path of the statement."""
    try:
        return check(*arguments)
    except IllegalSchedule as error:
        raise _illegal(str(error), context) from None


def _check_name(name: str, scope: dict[str, Binding], context: _Context) -> None:
    if not is_name(name):
        rule = "letters, digits and single _ after a first letter, and no word or type of C or CUDA"
        raise _illegal(f"{name!r} is no usable name: take {rule}", context)
    if name in scope:
        raise _illegal(f"name {name} is already in scope: names do not shadow, choose another", context)


def _check_param(param: ir.Param, context: _Context) -> None:
    if param.type.lanes != 1 or param.type.scalar not in _BYTES:
        offender = f"parameter {param.name} is {param.type}"
        raise _illegal(f"{offender}: parameters are scalars and buffers of scalars", context)
    if not param.buffer and param.type.scalar in ir.STORED_AS:
        raise _illegal(f"scalar parameter {param.name} is {param.type}: only buffers are", context)
    if not param.buffer and not param.const:
        raise _illegal(f"scalar parameter {param.name} is not const: copy it by Declare, or make it a buffer", context)


def _title(stmt: ir.Stmt) -> str:
    match stmt:
        case ir.For(var=var):
            return f"for {var}"
        case ir.Let(name=name) | ir.Declare(name=name) | ir.Alloc(name=name):
            return f"{type(stmt).__name__.lower()} {name}"
        case ir.Assign(name=name):
            return f"assign {name}"
        case ir.Store(buffer=buffer) | ir.Accumulate(buffer=buffer) | ir.Prefetch(buffer=buffer):
            return f"{type(stmt).__name__.lower()} {buffer}"
    return type(stmt).__name__.lower()


def _illegal(message: str, context: _Context) -> IllegalSchedule:
    return IllegalSchedule(f"{' / '.join(context.path)}: {message}")
