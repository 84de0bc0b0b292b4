"""Expressions and lists of values: their meaning is Python's, whatever text is given, and nothing is executed."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sparloom.errors import SchemaError
from sparloom.space import Expression, value_list

GPU_SPACES = Path(__file__).parents[4] / "shared/data/gpu_spaces"
CONDITIONS = [  # of convolution, dedispersion, GEMM and hotspot
    "use_padding==0 or block_size_x % 32 != 0",
    "block_size_x*block_size_y<=1024",
    "use_padding==0 or use_shmem != 0",
    "use_shmem == 0 or (((block_size_x*tile_size_x+(filter_width-1)))*((block_size_y*tile_size_y+(filter_height-1))))"
    " < 12*1024",
    "32 <= block_size_x * block_size_y <= 1024",
    "tile_size_x > 1 or tile_stride_x == 0",
    "KWG % ((MDIMC * NDIMC)/MDIMA) == 0",
    "not (MWG == 128 and NWG == 128 and MDIMC == 8 and NDIMC == 8)",
    "temporal_tiling_factor % loop_unroll_factor_t == 0",
    "(block_size_x*tile_size_x+ temporal_tiling_factor * 2) * (block_size_y*tile_size_y+ temporal_tiling_factor * 2) "
    "* (2+sh_power) * 4 <= 49152",
]
FUNCTIONS = {"abs": abs, "ceil": math.ceil, "floor": math.floor, "log2": math.log2, "max": max, "min": min,
             "round": round, "sqrt": math.sqrt}


def names_in(text: str) -> list[str]:
    words = "".join(each if each.isalnum() or each == "_" else " " for each in text).split()
    return sorted({word for word in words if word[0].isalpha()} - {"or", "and", "not", "in", "if", "else"})


def in_python(text: str, row: dict) -> float:
    try:
        return eval(text, {"__builtins__": {}, **FUNCTIONS}, row)  # the texts are those of this file
    except (ArithmeticError, TypeError, ValueError):  # such as of complex numbers
        return math.nan


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_of_real_kernels_mean_what_they_mean_in_python(condition):
    names, rng = names_in(condition), np.random.default_rng(0)
    columns = {name: rng.choice([0, 1, 2, 8, 17, 32, 128], 2000) for name in names}
    rows = [dict(zip(names, map(int, values), strict=True)) for values in zip(*columns.values(), strict=True)]
    expected = [in_python(condition, row) is True for row in rows]
    expression = Expression(condition, names)
    assert expression.names == tuple(names)
    assert expression.holds(columns).tolist() == expected
    assert 0 < sum(expected) < 2000


@pytest.mark.skipif(not GPU_SPACES.exists(), reason="the tuning spaces of GPUs are not beside the checkout")
@pytest.mark.parametrize("kernel", ["convolution", "dedispersion", "gemm", "hotspot"])
def test_descriptions_of_kernels_are_read(kernel):
    space = json.loads((GPU_SPACES / f"{kernel}_T1.json").read_text())["ConfigurationSpace"]
    listed = {each["Name"]: each["Values"] for each in space["TuningParameters"]}
    for text in listed.values():
        assert list(value_list(text)) == eval(text, {"range": range, "list": list})
    rng = np.random.default_rng(0)
    columns = {name: rng.choice(value_list(text), 300) for name, text in listed.items()}
    for condition in space["Conditions"]:
        expected = [bool(in_python(condition["Expression"], dict(zip(columns, map(int, row), strict=True))))
                    for row in zip(*columns.values(), strict=True)]
        assert Expression(condition["Expression"], listed).holds(columns).tolist() == expected


def random_expression(rng: np.random.Generator, depth: int) -> str:
    """Write a valid expression over a, b and c."""
    if depth == 0:
        return str(rng.choice(["a", "b", "c", "0", "1", "2.5", "7", "True"]))
    one, two, three = (random_expression(rng, depth - 1) for _ in range(3))
    operator = rng.choice(["+", "-", "*", "/", "//", "%"])
    comparison, other = rng.choice(["==", "!=", "<", "<=", ">", ">="], 2)
    return str(rng.choice([
        f"({one} {operator} {two})", f"(abs({one}) ** {two})", f"(-{one})", f"(not {one})",
        f"({one} {comparison} {two} {other} {three})", f"({one} and {two})", f"({one} or {two} or {three})",
        f"({one} if {two} else {three})", f"({one} in ({two}, {three}, 2))",
        f"({one} not in [{two}, 1])", f"min({one}, {two}, {three})", f"max({one}, {two})",
        f"abs({one})", f"floor({one})", f"sqrt({one})", f"log2({one})", f"round({one})"]))


def test_random_expressions_mean_what_they_mean_in_python():
    rng, compared = np.random.default_rng(0), 0
    columns = {name: rng.integers(-4, 5, 8).astype(float) for name in "abc"}
    for _ in range(3000):
        text = random_expression(rng, int(rng.integers(1, 4)))
        values = Expression(text, "abc")(columns)
        for value, *row in zip(values, *columns.values(), strict=True):
            expected = in_python(text, dict(zip("abc", map(float, row), strict=True)))
            if isinstance(expected, complex) or not abs(expected) < 1e300:  # only Python stops at a nan
                continue
            assert value == pytest.approx(float(expected), rel=1e-12), (text, row)
            compared += 1
    assert compared > 10_000


@pytest.mark.parametrize(("text", "expected"), [
    ("1 / zero", "nan"), ("1 % zero", "nan"), ("1 // zero", "nan"), ("zero ** -1", "nan"), ("log2(zero)", "nan"),
    ("sqrt(0 - 1)", "nan"), ("1 / zero != 3", 0), ("1 / zero not in (3, 4)", 0), ("not 1 / zero > 3", 1),
    ("9.0 ** 9 ** 9 > 1e300", 1), ("word == 'b'", 1), ("word in ('a', 'b')", 1), ("word != \"b\"", 0),
    ("(word if zero else 'x') == 'x'", 1), ("4096 < extent", 1), ("word < 'c'", 1), ("extent == all", 1),
    ("3 < all", 1),
])
def test_what_has_no_number_is_nan_and_text_is_compared(text, expected):
    columns = {"zero": np.zeros(2), "word": np.array(["b", "b"], object), "extent": np.full(2, np.inf)}
    assert Expression(text, columns)(columns) == pytest.approx(np.full(2, float(expected)), nan_ok=True)


@pytest.mark.parametrize(("text", "reason"), [
    ("a.real", "'a.real' is not allowed: use numbers, text, names"),
    ("a[0]", "is not allowed"), ("a @ b", "MatMult is not allowed"), ("a is b", "Is is not allowed"),
    ("[1, 2]", "is not allowed"), ("f'{a}'", "is not allowed"), ("(a := 1)", "is not allowed"),
    ("lambda: 1", "is not allowed"), ("[i for i in (1, 2)]", "is not allowed"),
    ("c > 1", "'c' is no known name: use a, b"),
    ("__import__('os')", "'__import__' is no function: use abs"), ("min(a)", "takes two or more"),
    ("abs(x=a)", "takes one argument"), ("max(*a, b)", "is not allowed"), ("a in b", "'b' is no list in brackets"),
    ("1j", "is neither a number nor text"), ("None", "is neither a number nor text"), ("9" * 400, "is too large"),
    ("a >", "cannot be read"), ("", "cannot be read"), ("a = 1", "cannot be read"), ("\0", "cannot be read"),
    ("(" * 2000, "cannot be read"), ("-" * 4000 + "a", "cannot be read|nested"),
    ("+".join("a" * 200), "more than 100 deep"),
    ("a + " * 2000 + "a", "characters: use at most 4,096"), ("'x' + 'y'", "text as a number"),
    ("a + 'x'", "text as a number"), ("a == 'x'", "compare text with text, and write all"),
    ("-'x' or a", "text as a number"), ("not 'x'", "text as a number"), ("min('x', a)", "text as a number"),
])
def test_everything_else_is_refused_by_naming_the_part(text, reason):
    with pytest.raises(SchemaError, match=reason) as refused:
        Expression(text, ["a", "b"])({"a": np.ones(2), "b": np.ones(2)})
    assert repr(text[:20])[:-1] in str(refused.value)


@pytest.mark.parametrize(("text", "values"), [
    ("[1, 2, 4] + list(range(32, 97, 32))", (1, 2, 4, 32, 64, 96)), ("[2**i for i in range(0, 4)]", (1, 2, 4, 8)),
    ("('a', \"b\")", ("a", "b")), ("[True, False]", (True, False)), ("[0.5 * i for i in [1, 2, 3]]", (0.5, 1, 1.5)),
    ("[i for i in range(1, 9) if 8 % i == 0]", (1, 2, 4, 8)), ("range(3, 0, -1)", (3, 2, 1)), ("[]", ()),
    ("[-1, 'auto']", (-1, "auto")),
])
def test_lists_of_values(text, values):
    found = value_list(text)
    assert list(zip(found, map(type, found), strict=True)) == list(zip(values, map(type, values), strict=True))


@pytest.mark.parametrize(("text", "reason"), [
    ("range(10**9)", "more than 1,048,576 values"),
    ("[i for i in list(range(10**6)) + list(range(10**6))]", "at most"),
    ("[1 / 0]", "infinite or not a number"), ("3", "is no list"), ("[open('x')]", "no function"),
    ("[[1]]", "is not allowed"), ("range(0.5)", "whole numbers"), ("range(0, 9, 0)", "a step that is not 0"),
    ("[i for i in (1, 2) for j in (1, 2)]", "is no list"),
    ("[j for i in (1, 2)]", "'j' is no known name: use i"),
    ("[i for i in [1, 'a']]", "use text as a number"), ("[" * 150 + "]" * 150, "deep|nested"),
    ("list(__import__('os').listdir())", "is no list"), ("[" + "1," * 40_000 + "]", "use at most 65,536"),
])
def test_other_lists_are_refused(text, reason):
    with pytest.raises(SchemaError, match=reason):
        value_list(text)


TOKENS = [
    *"()[]{},.:+-*/%<>=!&|^~@'\"\\ \n\t0123456789ab#;", "**", "//", "==", "<=", " and ", " or ", "not ", " in ",
    " if ", " else ", "lambda x: ", ":=", "range(", "list(", "for i in ", "[i ", "min(", "abs(", "9**9**9", "1e308",
    "0x", "1_0", "__class__", "__import__('sys').", "__builtins__", "exec(", "eval(", "open(", "hostile(", "a.b",
    "f'{a}'", "b'x'", "None", "((((((((", "[[[[[[[[", "--------", "import os", "yield ", "await ", "\0", "é", "ª",
    "'all'", "True",
]


def refusal(read: Callable[[str], object], text: str) -> str | None:
    try:
        read(text)
    except SchemaError as error:
        return str(error)
    return None


def test_hostile_text_is_refused_or_computed_and_never_executed(monkeypatch):
    touched = []
    monkeypatch.setattr("builtins.hostile", lambda *_: touched.append(1), raising=False)
    rng, columns = np.random.default_rng(0), {"a": np.arange(3.0), "b": np.array(["x", "y", "z"])}
    start, refusals = time.monotonic(), []
    for number in range(10_000):
        words = rng.choice(TOKENS, int(rng.integers(1, 12)))
        text = "".join(words) * int(rng.choice([1, 1, 1, 400]))
        if number % 2:
            text = random_expression(rng, 2) + "".join(words[:2])
        refusals += [refusal(lambda each: Expression(each, columns)(columns), text), refusal(value_list, text)]
    messages = [each for each in refusals if each is not None]
    assert not touched
    assert 10_000 < len(messages) < 20_000
    assert max(map(len, messages)) < 700
    assert time.monotonic() - start < 120
