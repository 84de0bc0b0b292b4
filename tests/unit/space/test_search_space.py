"""Search spaces: their points are those of a plain enumeration, drawn with equal chances, also if there are 10**12."""

import itertools
import json
import math
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.space import Config, CpuSpace, SearchParameter, SearchSpace, SpadeSpace, points, value_list

GPU_SPACES = Path(__file__).parents[4] / "shared/data/gpu_spaces"
POWERS = tuple(2**power for power in range(10))


def integer(name: str, values=(1, 2, 3, 4), default=None, **options) -> SearchParameter:
    return SearchParameter(name, "integer", values[0] if default is None else default, values, **options)


def category(name: str, values=("a", "b", "c"), **options) -> SearchParameter:
    return SearchParameter(name, "categorical", values[0], values, **options)


SPACES = {
    "constrained": SearchSpace("s", (integer("x"), integer("y"), integer("z"), category("c")),
                               ("x * y <= 6", "z % y == 0 or c == 'b'", "c != 'c' or x > 1")),
    "conditional": SearchSpace("s", (
        integer("depth", when="mode == 'a' and size > 1"), category("mode"), integer("size"),
        integer("width", (1, 2, 4), when="depth > 2"),
        SearchParameter("flag", "boolean", 1, (0, 1), when="mode != 'a'")),
        ("depth + width <= size + 3",)),
    "independent": SearchSpace("s", (integer("x"), integer("y", range(0, 9, 3)), integer("z", when="x > 2"),
                                     SearchParameter("p", "permutation", "a.b.c", ("a.b.c", "b.a.c", "c.b.a")))),
}
LARGE = SearchSpace(
    "large", tuple(integer(f"t{number}", POWERS) for number in range(12)),
    ("t0 * t1 * t2 * t3 <= 4096", "t3 * t4 >= 8", "t5 <= t6", "t7 % t8 == 0", "t9 * t10 * t11 <= 2**15",
     "t1 + t5 <= 600", "t2 <= rows"), features=("rows",))


def plain_points(space: SearchSpace) -> set[str]:
    """List the valid points of a small space one by one."""
    points = set()
    for values in itertools.product(*(each.values for each in space.parameters)):
        row = dict(zip(space.names, values, strict=True))
        for _ in space.parameters:  # conditions that depend on each other settle
            for each in space.parameters:
                row[each.name] = row[each.name] if not each.when or eval(each.when, {}, row) else each.default
        if all(eval(each, {}, row) for each in space.constraints):
            points.add(",".join(f"{name}={value}" for name, value in row.items()))
    return points


def keys(space: SearchSpace, columns) -> list[str]:
    return [config.key for config in space.configs(columns)]


@pytest.fixture(params=[2**20, 20, 1], ids=["all listed", "some listed", "none listed"])
def listed(request, monkeypatch):
    monkeypatch.setattr(points, "MAX_LISTED_ROWS", request.param)


@pytest.mark.parametrize("name", SPACES)
def test_all_valid_points_are_listed(name):
    space, points = SPACES[name], plain_points(SPACES[name])
    found = keys(space, space.enumerate(1000))
    assert len(found) == len(points)
    assert set(found) == points
    assert space.enumerate(len(points) - 1) is None


@pytest.mark.parametrize("name", SPACES)
def test_all_valid_points_are_equally_likely(name, listed):
    space = SearchSpace(SPACES[name].name, SPACES[name].parameters, SPACES[name].constraints)
    points, rng = plain_points(space), np.random.default_rng(0)
    counts = Counter(key for _ in range(400) for key in keys(space, space.sample(10, rng)))
    assert set(counts) <= points
    assert chisquare([counts[each] for each in points]).pvalue > 1e-3
    assert all(len(set(keys(space, space.sample(10, rng)))) == 10 for _ in range(20))


def test_a_sample_has_no_more_points_than_the_space():
    space, rng = SPACES["constrained"], np.random.default_rng(0)
    assert set(keys(space, space.sample(10_000, rng))) == plain_points(space)


@pytest.mark.parametrize("name", SPACES)
def test_neighbours_are_distinct_valid_and_differ_in_one_or_two_parameters(name):
    space, rng = SPACES[name], np.random.default_rng(0)
    points, singles = plain_points(space), 0
    for config in space.configs(space.enumerate(1000))[::7]:
        found = space.configs(space.neighbours(config, rng, 12))
        assert len({each.key for each in found}) == len(found) <= 12
        assert config not in found
        assert {each.key for each in found} <= points
        changed = [sum(pair[0] != pair[1] for pair in zip(each.values, config.values, strict=True)) for each in found]
        singles += sum(each == 1 for each in changed)
        if not any(each.when for each in space.parameters):
            assert set(changed) <= {1, 2}
    assert singles > 10


@pytest.mark.parametrize(("parameter", "value", "reached"), [
    (integer("x", (8, 1, 2, 4)), 2, {1, 4}), (category("x"), "b", {"a", "c"}), (integer("x", range(1, 9)), 1, {2}),
    (SearchParameter("x", "permutation", "a.b.c", tuple(map(".".join, itertools.permutations("abc")))), "a.b.c",
     {"b.a.c", "c.b.a", "a.c.b"}),
])
def test_moves_of_one_parameter(parameter, value, reached):
    space = SearchSpace("s", (parameter,))
    found = space.neighbours(Config("s", (("x", value),)), np.random.default_rng(0), 50)
    assert {config["x"] for config in space.configs(found)} == reached


def test_numbers_of_an_interval_are_drawn_on_their_scale_and_move_a_little():
    space = SearchSpace("s", (SearchParameter("rate", "float", 0.1, interval=(1e-4, 1.0)), integer("x", (1, 2, 4))),
                        ("rate * x <= 1",))
    rng = np.random.default_rng(0)
    columns = space.sample(2000, rng)
    assert (columns["rate"] * columns["x"] <= 1).all()
    assert np.mean(columns["rate"] < 1e-2) == pytest.approx(6 / (12 - math.log10(8)), abs=0.04)
    near = space.neighbours(space.default(), rng, 40)
    assert np.abs(np.log10(near["rate"] / 0.1)).max() < 2
    assert space.configs(columns)[0]["rate"] == columns["rate"][0]
    assert space.size == math.inf
    assert space.enumerate(10**6) is None


def from_t1(kernel: str) -> SearchSpace:
    tree = json.loads((GPU_SPACES / f"{kernel}_T1.json").read_text())["ConfigurationSpace"]
    parameters = [integer(each["Name"], value_list(each["Values"])) for each in tree["TuningParameters"]]
    return SearchSpace(kernel, tuple(parameters), tuple(each["Expression"] for each in tree["Conditions"]))


@pytest.mark.skipif(not GPU_SPACES.exists(), reason="the tuning spaces of GPUs are not beside the checkout")
@pytest.mark.parametrize(("kernel", "size", "valid"), [
    ("convolution", 10_240, 4_362), ("dedispersion", 22_272, 11_130), ("gemm", 663_552, 116_928),
    ("hotspot", 4_440_000, 82_984)])
def test_spaces_of_real_kernels_have_their_known_sizes(kernel, size, valid):
    space = from_t1(kernel)
    columns = space.enumerate(2**18)
    assert space.size == size
    assert len(columns[space.names[0]]) == valid
    assert space.valid(columns).all()
    assert space.valid(space.sample(1000, np.random.default_rng(0))).all()


def test_the_points_of_a_large_group_are_those_that_a_formula_admits():
    names = {"bx": (1, 2, 4, 8, 16, *range(32, 1025, 32)), "by": POWERS[:6], "tx": range(1, 11), "ty": range(1, 11),
             "t": range(1, 11), "u": range(1, 11), "s": (0, 1)}  # those of hotspot
    space = SearchSpace("s", tuple(integer(*each) for each in names.items()), (
        "bx*by >= 32", "t % u == 0", "bx*by <= 1024", "(bx*tx + t*2) * (by*ty + t*2) * (2+s) * 4 <= 49152"))
    bx, by, tx, ty, t, u, s = np.meshgrid(*map(np.array, names.values()), indexing="ij", sparse=True)
    valid = (bx * by >= 32) & (t % u == 0) & (bx * by <= 1024) & ((bx*tx + t*2) * (by*ty + t*2) * (2 + s) * 4 <= 49152)
    assert space.size == valid.size == 4_440_000
    assert len(space.enumerate(2**18)["bx"]) == valid.sum()


def test_spaces_of_any_size_are_sampled_in_bounded_memory():
    rng = np.random.default_rng(0)
    wide = SearchSpace("wide", (integer("n", range(1, 10**6)), integer("m", range(1, 1000)), integer("k", range(1000))),
                       ("n % m == k % 3",))
    tracemalloc.start()
    for space in (LARGE, wide):
        features = {"rows": 100, "cols": 5}
        columns = space.sample(1000, rng, features)
        assert space.size >= 10**11
        assert len(set(keys(space, columns))) == 1000
        assert space.valid(columns, features).all()
        assert space.enumerate(2**18, features) is None
    near = LARGE.neighbours(LARGE.configs(LARGE.sample(1, rng, {"rows": 100}))[0], rng, 50, {"rows": 100})
    assert len(near["t0"]) == 50
    assert tracemalloc.get_traced_memory()[1] <= 200e6
    tracemalloc.stop()


def test_constraints_read_features_of_the_problem():
    space = SearchSpace("s", (integer("block", POWERS), integer("x")), ("block <= rows", "x < 3"), features=("rows",))
    assert len(space.enumerate(100, {"rows": 5, "cols": 1})["x"]) == 6
    assert len(space.enumerate(100, {"rows": 100})["x"]) == 14
    assert len(space.enumerate(100)["x"]) == 20  # of an unknown problem
    with pytest.raises(IllegalSchedule, match=r"block=512,x=1 violates block <= rows \(rows=5\)"):
        space.parse({"block": 512, "x": 1}, {"rows": 5})
    with pytest.raises(SchemaError, match="constraints read rows, which the problem does not have; it has cols"):
        space.sample(3, np.random.default_rng(0), {"cols": 5})
    with pytest.raises(SchemaError, match="no valid configuration was met for rows=0: relax block <= rows; x < 3"):
        space.sample(3, np.random.default_rng(0), {"rows": 0})


def test_an_unsatisfiable_group_that_cannot_be_listed_ends_with_an_error():
    space = SearchSpace("s", (integer("n", range(10**6)), integer("m", range(10**6))), ("n + m == 0.5",))
    with pytest.raises(SchemaError, match=r"no valid configuration was met: relax n \+ m == 0.5"):
        space.sample(3, np.random.default_rng(0))


def test_configurations_are_encoded_by_kind():
    space = SearchSpace("s", (
        integer("tile", (8, 32, 128, "all")), integer("step", (-1, 0, 3)), integer("constant", (7,)), category("codec"),
        SearchParameter("flag", "boolean", 0, (0, 1)), SearchParameter("order", "permutation", "i.j", ("i.j", "j.i")),
        SearchParameter("rate", "float", 0.5, interval=(0.5, 1.0)), integer("big", range(1, 1025), scale="linear")))
    configs = [space.parse({"tile": tile, "step": 3, "constant": 7, "codec": "b", "flag": "yes", "order": "j.i",
                            "rate": 0.75, "big": 1024}) for tile in (8, 32, "all")]
    assert space.encoded_names == (
        "tile", "step", "codec=a", "codec=b", "codec=c", "flag", "order_i", "order_j", "rate", "big")
    assert space.encoded_parameter.tolist() == [0, 1, 3, 3, 3, 4, 5, 5, 6, 7]
    columns = space.columns(configs)
    assert space.encode(columns) == pytest.approx(np.array(
        [[tile, 1, 0, 1, 0, 1, 1, 0, 0.5, 1] for tile in (0, 0.4, 1)]))
    assert space.log_number_names == ("tile", "rate", "big")
    assert space.log_numbers(columns) == pytest.approx(np.array(
        [[tile, math.log2(0.75), 10] for tile in (3, 5, 8)]))
    assert space.configs(columns) == configs
    assert columns["tile"].tolist() == [8, 32, math.inf]


def test_parameters_that_are_not_active_do_not_distinguish_configurations():
    space = SPACES["conditional"]
    one, other = (space.parse({"depth": depth, "mode": "b", "size": 2, "width": 1, "flag": 0}) for depth in (1, 4))
    assert one == other
    assert one["depth"] == 1
    assert space.canonical(one.replace(depth=3)) == one
    assert space.columns([one.replace(depth=3)])["depth"].tolist() == [1]


@pytest.mark.parametrize(("changes", "reason"), [
    ({"w": 1}, "'w' is no parameter: give x, y, z, c"), ({"x": None}, "'x' is missing: give x, y, z, c"),
    ({"x": 5}, "x=5 is not in the space: its values are 1, 2, 3, 4"), ({"x": "two"}, "x='two' is not in the space"),
    ({"x": 1.5}, "x=1.5 is not"), ({"c": "d"}, "c='d' is not in the space: its values are a, b, c"),
    ({"x": 4, "y": 4}, r"x=4,y=4,z=4,c=a violates x \* y <= 6"), ({"c": "c"}, "violates c != 'c' or x > 1"),
])
def test_a_configuration_outside_the_space_is_refused(changes, reason):
    values = {"x": "1", "y": np.int64(1), "z": 4.0, "c": "a"}
    assert SPACES["constrained"].parse(values) == SPACES["constrained"].parse("x=1,y=1,z=4,c=a")
    values = {name: value for name, value in (values | changes).items() if value is not None}
    with pytest.raises(IllegalSchedule, match=reason):
        SPACES["constrained"].parse(values)


@pytest.mark.parametrize(("make", "reason"), [
    (lambda: SearchSpace("s", (integer("x"), integer("x"))), "space s: x is given twice"),
    (lambda: SearchSpace("s", (integer("x"),), features=("x",)), "x is given twice"),
    (lambda: SearchSpace("s", ()), "it has no parameters"),
    (lambda: SearchSpace("s", (integer("x"),), ("y < 3",)), "expression 'y < 3': 'y' is no known name: use x"),
    (lambda: SearchSpace("s", (integer("x"),), ("n < 3",), ("n",)), "constraint 'n < 3' reads no parameter"),
    (lambda: SearchSpace("s", (category("c"),), ("c < 3",)), "uses text as a number"),
    (lambda: SearchSpace("s", (integer("x", when="y > 1"), integer("y", when="x > 1"))),
     "conditions are circular: x needs y needs x|y needs x needs y"),
    (lambda: SearchSpace("s", (integer("x"), integer("y", when="z > 1"))), "'z' is no known name"),
    (lambda: SearchSpace("s", (integer("a b"),)), "use letters, digits and _"),
    (lambda: SearchParameter("x", "whole", 1, (1, 2)), "parameter x: kind 'whole' is not one of integer, float"),
    (lambda: integer("x", (1, 1)), "2 values: give one to 1,048,576, each once"),
    (lambda: integer("x", (1, "a")), "numbers"),
    (lambda: integer("x", (1, 1.5)), "no values of kind integer"),
    (lambda: integer("x", default=9), "x=9 is not in the space"),
    (lambda: integer("x", (0, 1), scale="log"), "only those above 0 a log scale"),
    (lambda: category("x", scale="log"), "only numbers have a scale"),
    (lambda: SearchParameter("x", "float", 1, interval=(2.0, 1.0)), "finite numbers, the lower one first"),
])
def test_a_faulty_space_is_refused(make, reason):
    with pytest.raises(SchemaError, match=reason):
        make()


@pytest.mark.parametrize("grid", [SpadeSpace("spmm"), CpuSpace("spmm")])
def test_an_existing_space_becomes_a_search_space(grid):
    space, rng = SearchSpace.from_grid(grid), np.random.default_rng(0)
    assert space.default() == grid.default()
    configs = space.configs(space.sample(50, rng))
    for config in configs + space.configs(space.neighbours(grid.default(), rng, 50)):
        grid.validate(config)
    columns = space.enumerate(2**18)
    assert len(grid) == (len(columns[space.names[0]]) if columns else len(grid))
    assert np.isfinite(space.encode(space.columns(configs))).all()


def test_the_digest_is_that_of_the_meaning():
    space = SPACES["constrained"]
    again = SearchSpace("s", space.parameters, space.constraints)
    others = [SearchSpace("s", space.parameters, space.constraints[:2]), SearchSpace("t", space.parameters),
              SearchSpace("s", space.parameters[:3], space.constraints[:1]),
              SearchSpace("s", SPACES["conditional"].parameters)]
    assert again.digest() == space.digest()
    assert len({space.digest(), *(each.digest() for each in others)}) == 5
