"""Spaces that a YAML file describes: what models see of them, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from sparloom.errors import IllegalSchedule, SchemaError, Unsupported
from sparloom.space import Config, Description, read_description, read_space

CHIP = """
name: chip
operations: [spmm, sddmm]
width: 64
times: simulated
parameters:
  rows: {kind: integer, values: [8, 64], default: 64, tiles: i}
  cols: {kind: integer, values: [32, all], default: all, tiles: j}
  slice: {kind: integer, values: [16, 128], default: 128, tiles: k}
  barrier: {kind: boolean, default: off, own: true, orders: {0: k.i.j, 1: k.j.i}}
  prefetch: {kind: integer, values: [0, 2, all], default: 0, own: true}
  codec: {kind: categorical, values: [none, delta, bitmap], default: none, own: true}
  banks: {kind: permutation, of: [x, y, z], default: zyx, own: true}
illegal:
  - {rows: 64, codec: [delta, bitmap]}
  - {cols: 32, barrier: yes, prefetch: all}
"""
OWN = "name: chip\nparameters:\n  {entry}\n"


@pytest.fixture
def read(tmp_path):
    def described(text: str) -> Description:
        path = tmp_path / "chip.yaml"
        path.write_text(text)
        return read_description(path)

    return described


@pytest.fixture
def space(read):
    return read(CHIP).space("spmm")


def test_configurations_are_all_legal_combinations(space):
    grid = 2 * 2 * 2 * 2 * 3 * 3 * 6
    illegal = 2 * 2 * 2 * 3 * 2 * 6 + (1 * 2 * 1 * 3 * 6 + 2 * 1 * 6)  # the second rule: rows=8, or rows=64 with none
    assert len(space) == grid - illegal == len(list(space)) == len({config.key for config in space})
    assert space.default().key == "rows=64,cols=all,slice=128,barrier=0,prefetch=0,codec=none,banks=z.y.x"


def test_a_rule_of_the_file_refuses_with_its_words(space):
    with pytest.raises(IllegalSchedule, match="illegal: rows=64, codec=delta, bitmap"):
        space.validate(space.default().replace(codec="delta"))


def test_tiles_and_orders_become_shared_loops(space):
    bound = space.bind((50, 1000))
    shared = bound.shared(space.default().replace(slice=16))
    assert (shared.I, shared.J, shared.K, shared.K_inner, shared.order) == (50, 1000, 16, 1, (6, 7, 2, 4, 1, 3, 5))
    assert bound.shared(space.default()).K == 64  # the width of the file
    assert bound.shared(space.default().replace(barrier=1)).order == (6, 7, 4, 2, 1, 3, 5)
    with pytest.raises(ValueError, match=r"before it is bound to a matrix: call bind\(shape\)"):
        space.shared(space.default())


def test_own_parameters_become_distinct_codes(space):
    codes = space.heterogeneous_codes()
    assert len(codes) == 2 * 3 * 3 * 6
    assert space.heterogeneous_names == (
        "barrier", "prefetch", "prefetch_all", "codec_none", "codec_delta", "codec_bitmap", "banks_x", "banks_y",
        "banks_z")
    assert np.isfinite(codes).all()


@pytest.mark.parametrize(("given", "order"), [
    ("kind: permutation, orders: true, default: i.j.k", (2, 4, 6, 7, 1, 3, 5)),
    ("kind: permutation, of: [i, j], orders: true, default: ji", (6, 7, 4, 2, 1, 3, 5)),
    ("kind: permutation, orders: true, of: [io, ii, jo, ji, ko, ki], default: jo.ji.io.ii.ko.ki",
     (4, 3, 2, 1, 6, 7, 5)),
    ("kind: categorical, values: [wide, deep], default: deep, orders: {wide: i, deep: j.i}", (6, 7, 4, 2, 1, 3, 5)),
])
def test_loops_may_be_ordered_in_several_ways(read, given, order):
    space = read(OWN.format(entry=f"way: {{{given}}}")).space("spmm")
    assert space.bind((10, 10)).shared(space.default()).order == order


def test_inner_loops_stay_inside_theirs(read):
    orders = "kind: permutation, orders: true, of: [io, ii, jo, ji, ko, ki], default: io.ii.jo.ji.ko.ki"
    assert len(read(OWN.format(entry=f"way: {{{orders}}}")).space("spmm")) == 720 // 8


def test_the_digest_changes_with_what_the_file_means(read):
    digests = {read(text).space("spmm").digest() for text in (
        CHIP, CHIP.replace("tiles: i", "tiles: j").replace("tiles: j}\n  slice", "tiles: i}\n  slice"),
        CHIP.replace("width: 64", "width: 128"), CHIP.replace("0: k.i.j", "0: i.k.j"),
        CHIP.replace("codec: [delta, bitmap]", "codec: delta"), CHIP.replace("bitmap", "mask"))}
    assert len(digests) == 6
    assert read(CHIP + "# a comment\n").space("spmm").digest() in digests


def test_nothing_in_the_file_is_executed(read, tmp_path):
    mark = tmp_path / "made"
    text = CHIP.replace("name: chip", f"name: !!python/object/apply:os.system ['touch {mark}']")
    with pytest.raises(SchemaError, match="name must be one value"):
        read(text)
    assert not mark.exists()


def test_words_of_yaml_stay_text(read):
    entry = "mode: {kind: categorical, values: [no, 1e3, 0x10, null], default: no, own: true}"
    assert read(OWN.format(entry=entry)).parameters[0].values == ("no", "1e3", "0x10", "null")


TILE = "kind: integer, values: [8, 64], default: 8, tiles: i"


@pytest.mark.parametrize(("text", "reason"), [
    ("- a", "must map name, operations, parameters to values"),
    ("name: [", "is not YAML"),
    ("name: chip\nparameters: " + 20_000 * "[", "nests lists or mappings too deeply"),
    ("name: chip\nparameters: " + 20_000 * "{a: " + 20_000 * "}", "nests lists or mappings too deeply"),
    (20_000 * "- ", "nests lists or mappings too deeply"),
    ("name: chip", "lacks 'parameters': add it"),
    (CHIP.replace("width", "widht"), "'widht' is unknown; known are name, operations"),
    (CHIP.replace("  cols", "  rows"), "line 8: 'rows' is given twice: keep one"),
    (CHIP.replace("name: chip", "name: cpu"), "name 'cpu' is that of a platform of sparloom"),
    (CHIP.replace("name: chip", "name: My Chip"), "use lower case letters, digits and _"),
    (CHIP.replace("sddmm", "gemm"), "operation 'gemm' is not one of spmm, sddmm"),
    (CHIP.replace("width: 64", "width: 0"), "width '0' must be a whole number of dense columns"),
    (CHIP.replace("width: 64", "width: ６４"), "width '６４' must be a whole number of dense columns"),
    (CHIP.replace("times: simulated", "times: guessed"), "times 'guessed' is neither measured nor simulated"),
    (CHIP.replace("rows: 64, codec", "raws: 64, codec"), "illegal: 'raws' is unknown; known are rows, cols"),
    (CHIP.replace("{rows: 64, codec", "{rows: 65, codec"), "illegal: rows=.65. is not in the space"),
    (CHIP.replace("- {rows: 64, codec: [delta, bitmap]}", "- {rows: 64, codec: none}"),
     r"the default configuration, rows=64.* violates not \(rows in \(64, \) and codec in \('none', \)\)"),
    (CHIP.replace("tiles: j", "tiles: i"), "rows and cols: only one parameter can tile i: give the others own"),
    (CHIP.replace("name: chip", "name:"), "name must be one value, not nothing"),
    (OWN.format(entry="{}"), "parameters must map names to their entries"),
    (OWN.format(entry="rows: 8"), "parameter rows must have entries"),
    (OWN.format(entry="ms: {" + TILE + "}"), "has the name of another column of the CSV"),
    (OWN.format(entry="a-b: {" + TILE + "}"), "parameter name 'a-b' of space chip: use letters, digits"),
    (OWN.format(entry="rows: {" + TILE.replace("integer", "number") + "}"), "kind 'number' is not one of integer"),
    (OWN.format(entry="rows: {" + TILE.replace("tiles: i", "tiles: x") + "}"), "tiles 'x' is not i "),
    (OWN.format(entry="rows: {" + TILE.replace("default: 8", "default: 9") + "}"), "rows=.9. is not in the space"),
    (OWN.format(entry="rows: {" + TILE.replace("[8, 64]", "[8, 8]") + "}"), "2 values: give one to 1,048,576, each"),
    (OWN.format(entry="rows: {" + TILE.replace("[8, 64]", "[8, big]") + "}"), "these are no values of kind"),
    (OWN.format(entry="rows: {" + TILE.replace("[8, 64]", "[8, 0]") + "}"), "a tile of 0 is empty"),
    (OWN.format(entry="rows: {" + TILE.replace("values: [8, 64], ", "") + "}"), "give its values, such as"),
    (OWN.format(entry="rows: {" + TILE.replace("integer", "categorical") + "}"), "the size of a tile needs kind: int"),
    (OWN.format(entry="codec: {kind: categorical, values: ['a b'], default: 'a b', own: true}"), "does not fit a key"),
    (OWN.format(entry="codec: {kind: categorical, values: [a], default: a, own: maybe}"), "own 'maybe' is neither"),
    (OWN.format(entry="on: {kind: boolean, values: [0, 1], default: 0, own: true}"), "a boolean has the values 0 and"),
    (OWN.format(entry="p: {kind: permutation, default: x.y, own: true}"), "a permutation needs its items"),
    (OWN.format(entry="p: {kind: permutation, of: [x, y], orders: true, default: x.y}"), "loops are i, j and k, or"),
    (OWN.format(entry="p: {kind: permutation, of: [x, y], values: [x.x], default: x.x, own: true}"), "must have each"),
    (OWN.format(entry="p: {kind: boolean, default: 0, orders: true}"), "orders: true needs kind: permutation"),
    (OWN.format(entry="p: {kind: boolean, default: 0, orders: {0: i.j}}"), "orders must map each of 0, 1 to an order"),
    (OWN.format(entry="p: {kind: boolean, default: 0, orders: {0: i.j, 1: rows}}"), "'rows' of value 1 is no order"),
    (OWN.format(entry="p: {kind: boolean, default: 0, orders: {0: i, 1: ii.io.jo.ji.ko.ki}}"), "io must come before"),
    (OWN.format(entry="n: {kind: integer, low: 4, high: 1, default: 2}"), "0 values: give one to"),
    (OWN.format(entry="n: {kind: integer, low: 4, default: 2}"), "high must be one value, not nothing"),
    (OWN.format(entry="n: {kind: integer, values: [1], low: 1, high: 2, default: 1}"), "low and high .*, or values"),
    (OWN.format(entry="n: {kind: float, low: 4, high: 1, default: 2}"), "two finite numbers, the lower one"),
    (OWN.format(entry="n: {kind: float, low: 1, high: 4, scale: powers_of_two, default: 2}"), "powers of two are"),
    (OWN.format(entry="n: {kind: float, low: 0, high: 4, scale: log, default: 2}"), "only those above 0 a log"),
    (OWN.format(entry="n: {kind: float, low: 1, high: 4, scale: cubic, default: 2}"), "scale 'cubic' is not one"),
    (OWN.format(entry="n: {kind: boolean, default: 0, when: m > 1}"), "space chip: expression 'm > 1': 'm' is no"),
    (CHIP + "constraints: [rows * width < 8]", "'width' is no known name: use banks, barrier"),
    (CHIP + "constraints: rows < 8", "constraints must be a list"),
    (CHIP + "constraints: [rows < 8]", "the default configuration, .* violates rows < 8"),
])
def test_a_wrong_file_is_refused_with_the_remedy(read, text, reason):
    with pytest.raises(SchemaError, match=reason) as refused:
        read(text)
    assert "chip.yaml" in str(refused.value)


@pytest.mark.parametrize("text", [
    OWN.format(entry="n: {kind: integer, low: 1, high: 5000, default: 1}"),
    OWN.format(entry="n: {kind: integer, low: 1, high: 300000, default: 1}"),
    OWN.format(entry="n: {kind: float, low: 1, high: 5, default: 1}"),
    CHIP + "constraints: [rows <= n]\nfeatures: [n]",
])
def test_a_space_that_cannot_be_listed_is_for_an_optimizer_only(read, text):
    description = read(text)
    with pytest.raises(Unsupported, match=r"chip.yaml: a cost model scores every configuration, so it needs"):
        description.space("spmm")
    assert len(description.search_space().sample(5, np.random.default_rng(0))[description.parameters[0].name]) == 5


def test_rules_constraints_and_conditions_are_those_of_both_kinds_of_space(read):
    text = CHIP.replace("tiles: k}", "tiles: k, when: barrier == 1}") + (
        "constraints: [rows * slice <= 8192, cols == all or prefetch != 2, codec != 'mask']")
    description = read(text.replace("bitmap]", "bitmap, mask]", 1))
    space, search = description.space("spmm"), description.search_space()
    listed = {config.key for config in search.configs(search.enumerate(10_000))}
    assert {config.key for config in space} == listed
    assert len(space) == len(listed) > 100
    for key in ("slice=16,barrier=0", "prefetch=2", "codec=mask", "rows=64,codec=delta"):
        with pytest.raises(IllegalSchedule):
            space.validate(space.default().replace(cols=32, **dict(Config.parse("chip", key).values)))
    assert space.digest() != read(CHIP).space("spmm").digest()


def test_ranges_and_scales(read):
    space = read(OWN.format(entry="""
  size: {kind: integer, low: 3, high: 100, scale: powers_of_two, default: 8}
  count: {kind: integer, low: 1, high: 1000, scale: linear, default: 1}
  rate: {kind: float, low: 0.001, high: 1, default: 0.01, when: mode != 'off'}
  share: {kind: float, values: [0.25, .5, 1], default: 1.0}
  mode: {kind: categorical, values: [off, on], default: on}""")).search_space()
    size, count, rate, share, _ = space.parameters
    assert size.values == (4, 8, 16, 32, 64)
    assert (count.values, count.is_logarithmic) == (range(1, 1001), False)
    assert (rate.interval, rate.is_logarithmic, share.values) == ((0.001, 1.0), True, (0.25, 0.5, 1.0))
    assert space.default().key == "size=8,count=1,rate=0.01,share=1.0,mode=on"
    assert space.parse(space.default().key) == space.default()


T1 = {"General": {"BenchmarkName": "stencil"}, "ConfigurationSpace": {
    "TuningParameters": [
        {"Name": "BX", "Type": "int", "Values": "[2**i for i in range(4)]", "Default": [4]},
        {"Name": "unroll", "Type": "int", "Values": "[0, 1, 3]", "Default": 7},
        {"Name": "shared", "Type": "bool", "Values": "[True, False]"},
        {"Name": "layout", "Type": "string", "Values": "['row', 'col']", "Default": "col"},
        {"Name": "share", "Type": "float", "Values": "[0.5, 1.0]", "Default": 1.0}],
    "Conditions": [{"Expression": "not shared or BX * share >= 2", "Parameters": ["shared", "BX"]}]}}


def test_a_t1_file_of_another_tuner_is_a_search_space(tmp_path):
    (tmp_path / "stencil.json").write_text(json.dumps(T1))
    space = read_space(tmp_path / "stencil.json")
    assert (space.name, space.size) == ("stencil", 4 * 3 * 2 * 2 * 2)
    assert space.default().key == "BX=4,unroll=0,shared=1,layout=col,share=1"
    assert len(space.enumerate(100)["BX"]) == 96 // 2 + (3 + 2) * 3 * 2
    (tmp_path / "chip.yaml").write_text(CHIP)
    assert read_space(tmp_path / "chip.yaml").names == read_description(tmp_path / "chip.yaml").search_space().names


@pytest.mark.parametrize(("text", "reason"), [
    ("[]", "is no T1 file"), ("{", "is no T1 file"), ("{}", "'ConfigurationSpace'"), (20_000 * "[", "is no T1 file"),
    (json.dumps(T1).replace("Values", "values"), "is no T1 file .*'Values'"),
    (json.dumps(T1).replace("2**i", "__import__('os')"), "'__import__' is no function"),
    (json.dumps(T1).replace("BX * share", "BX.real"), "expression .*'BX.real' is not allowed"),
    (json.dumps(T1).replace("BX * share", "BY"), "'BY' is no known name"),
    (json.dumps(T1).replace("[0, 1, 3]", "[0, 0]"), "parameter unroll: it has 2 values"),
    (json.dumps(T1).replace('"TuningParameters": [', '"TuningParameters": [3, '), "is no T1 file"),
])
def test_a_damaged_t1_file_is_refused(tmp_path, text, reason):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(SchemaError, match=reason) as refused:
        read_space(tmp_path / "bad.json")
    assert "bad.json" in str(refused.value)


def test_a_missing_file_and_one_of_bytes_are_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        read_description(tmp_path / "none.yaml")
    (tmp_path / "chip.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SchemaError, match="is not text in UTF-8"):
        read_description(tmp_path / "chip.yaml")
