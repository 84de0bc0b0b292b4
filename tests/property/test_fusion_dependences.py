"""Dependences equal those found by enumerating all accesses (Listing 5 of the paper), and schedules respect them."""

import copy
import itertools
import linecache

import numpy as np
import pytest
from fused_cases import CASES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted import InterpretedLibrary
from strategies import patterns

from sparloom.errors import Unfusable
from sparloom.fusion import Csr, check_schedule, fprange, fuse
from sparloom.ir import Binary, Cast, Const, Load, Ref

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SERIAL = itertools.count()
FUSED = {name: fuse(function) for name, (function, _) in CASES.items()}


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setattr("sparloom.fusion.compiled.compile_c", InterpretedLibrary)


@pytest.mark.parametrize("name", CASES)
@settings(SETTINGS, max_examples=12)
@given(data=st.data())
def test_the_graph_of_a_case_equals_enumeration(name, data):
    function, names = CASES[name]
    made = {"A": _csr(data.draw(patterns(6, square=True)))}
    n = made["A"].shape[0]
    rng = np.random.default_rng(n)
    made |= {"S": _csr(data.draw(patterns(n, square=True, min_rows=n))),
             "B": rng.random((n, 2)), "C": rng.random((2, 2)), "CT": rng.random((2, 2)), "X": rng.random((n, 2)),
             "n": n, "bCol": 2, "cCol": 2}
    full = all((np.diff(each.p) > 0).all() for each in made.values() if isinstance(each, Csr))
    _check(FUSED[name], function, [made[each] for each in names], exact=full)


@settings(SETTINGS, max_examples=20)
@given(data=st.data())
def test_the_graph_of_random_subscripts_equals_enumeration(data):
    pattern = data.draw(patterns(6, square=True))
    n, numbers = pattern.rows, st.integers(0, 3)
    values = {name: data.draw(numbers) for name in "bdkl"} | {name: data.draw(st.integers(1, 3)) for name in "acs"}
    affine = "X[{a} * i + {b}]".format(**values)
    other = data.draw(st.sampled_from([
        "X[{c} * j + {d}]", "X[P[j // {s}] + {d}]", "X[{c} * j + w]", "X[A.i[w] + {d}]", "X[w * {s} + P[0] * j]"]))
    other = other.format(**values)
    sparse = "A.i[" in other
    row = "A.p[(j - {o}) // {s}], A.p[(j - {o}) // {s} + 1]"
    inner = f"range({row})" if sparse else "range({d})" if "w" in other else "range(1)"
    kind = data.draw(st.sampled_from(["flow", "anti", "output"]))
    begin = values["k" if kind == "anti" else "l"]
    text = _program(affine, other, inner.format(**values, o=begin), kind=kind, values=values)
    function = _compile(text)
    perm = np.array(data.draw(st.lists(st.integers(0, 5), min_size=3 * n + 4, max_size=3 * n + 4)))
    size = 4 * (3 * (n + 1) * 3 + 3) + 100
    arguments = [_csr(pattern), perm, np.random.default_rng(0).random(size), n]
    try:
        fuse(function).graph(*copy.deepcopy(arguments))
    except Unfusable:
        assert kind == "output" or "//" in text or "* P[0]" in text or "w" in other, text
        return
    exact = bool((pattern.row_lengths() > 0).all()) and values["d"] > 0
    _check(fuse(function), function, arguments, exact=exact)


def _program(affine, other, inner, *, kind, values):
    """A pair of loops with steps whose accesses of X have the dependence `kind`."""
    first, second = {
        "flow": (f"{affine} = 2.0 * Z[i]", f"Y[j] += {other}"),
        "anti": (f"Y[i] += {other.replace('j', 'i')}", f"{affine.replace('i', 'j')} = Z[j]"),
        "output": (f"{affine} = 2.0 * Z[i]", f"{affine.replace('i', 'j')} += Z[j]"),
    }[kind]
    loops = (f"for i in fprange({values['k']}, {values['k']} + n * {values['s']}, {values['s']}):",
             f"for j in fprange({values['l']}, {values['l']} + n * {values['s']}, {values['s']}):")
    ranges = inner.replace("j", "i") if kind == "anti" else "range(1)", inner if kind == "flow" else "range(1)"
    body = [f"    {loop}\n        for w in {each}:\n            {line}"
            for loop, each, line in zip(loops, ranges, (first, second), strict=True)]
    return "\n".join(["def random_program(A, P, Z, n):", f"    X, Y = np.zeros({4 * 30 + 200}), np.zeros(200)", *body,
                      "    return X, Y", ""])


def _compile(text):
    """Make a function whose source can be looked up."""
    file = f"<random {next(SERIAL)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope = {"np": np, "fprange": fprange}
    exec(compile(text, file, "exec"), scope)
    return scope["random_program"]


def _check(fused, function, arguments, *, exact):
    """Check the graph; loops that do not depend on the iteration are assumed to run: `exact` if they do."""
    graph = fused.graph(*copy.deepcopy(arguments))
    built = set(zip(graph.row_ids().tolist(), graph.indices.tolist(), strict=True))
    found = _enumerate(fused, arguments)
    assert found <= built
    if exact:
        assert built <= found, fused.dependences(*arguments)
    check_schedule(fused.schedule(*copy.deepcopy(arguments)), graph)
    expected, given_arrays = copy.deepcopy(arguments), copy.deepcopy(arguments)
    for actual, wanted in zip(_tuple(fused(*given_arrays)), _tuple(function(*expected)), strict=True):
        if wanted is not None:
            np.testing.assert_allclose(actual, wanted, rtol=1e-12, atol=1e-12)


def _enumerate(fused, arguments):
    """Listing 5: compare every access of one loop with every access of the other."""
    compiled, named = fused._compile(tuple(arguments), {})
    program = compiled.program
    scope = {each.name: _look_up(named, each.source) for each in program.scalars}
    arrays = {each.name: _look_up(named, each.source).reshape(-1) for each in program.arrays if each.source}
    for let in program.prelude:
        scope[let.name] = _value(let.value, scope, arrays)
    touched = [_touched(nest, scope, arrays) for nest in (program.first, program.second)]
    return {(j, i) for (i, a, writes_a), (j, b, writes_b) in itertools.product(*touched)
            if a == b and (writes_a or writes_b)}


def _touched(nest, scope, arrays):
    """List (iteration, element, written) of a marked loop."""
    outer, found = nest.iterator, set()
    for access in nest.accesses:
        for at in _points(access.loops, scope, arrays):
            element = (access.array, *(_value(each, scope | at, arrays) for each in access.subscripts))
            lo = _value(outer.lo, scope, arrays)
            found.add(((at[outer.name] - lo) // outer.step, element, access.writes))
    return found


def _points(loops, scope, arrays):
    if not loops:
        yield {}
        return
    *outer, last = loops
    for at in _points(outer, scope, arrays):
        inside = scope | at
        for value in range(_value(last.lo, inside, arrays), _value(last.hi, inside, arrays), last.step):
            yield at | {last.name: value}


def _value(expr, scope, arrays):
    match expr:
        case Const(value):
            return value
        case Ref(name):
            return scope[name]
        case Cast(_, a):
            return _value(a, scope, arrays)
        case Load(buffer, index):
            return int(arrays[buffer][_value(index, scope, arrays)])
        case Binary(op, a, b):
            x, y = _value(a, scope, arrays), _value(b, scope, arrays)
            return {"+": x + y, "-": x - y, "*": x * y, "//": int(x / y) if y else 0, "%": x % y if y else 0}[op]
    raise AssertionError(expr)


def _look_up(named, source):
    value = named[source[0]]
    for step in source[1:]:
        value = value[step] if isinstance(step, int) else getattr(value, step)
    return value


def _csr(pattern):
    values = np.random.default_rng(pattern.nnz).random(pattern.nnz)
    return Csr(pattern.indptr, pattern.indices, values, pattern.shape)


def _tuple(value):
    return value if isinstance(value, tuple) else (value,)
