"""Results of other tuners: T4 files and caches of Kernel Tuner are read exactly, and damaged ones are refused."""

import gzip
import json
import math
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sparloom.data import read_trials, tuning_files, write_t4
from sparloom.errors import SchemaError
from sparloom.space import SearchParameter, SearchSpace, read_space

GPU_SPACES = Path(__file__).parents[4] / "shared/data/gpu_spaces"
SPACE = SearchSpace("s", (SearchParameter("bx", "integer", 16, (16, 32)), SearchParameter("pad", "boolean", 0, (0, 1)),
                          SearchParameter("codec", "categorical", "a", ("a", "b"))), ("bx < 32 or pad == 0",))


def entry(value, bx=16, **changes) -> dict:
    return {"configuration": {"bx": bx, "pad": True, "codec": "a"}, "invalidity": "correct", "objectives": ["time"],
            "measurements": [{"name": "time", "value": value, "unit": ""}], **changes}


def t4(*entries, unit: str | None = "miliseconds") -> dict:
    return {"metadata": {"timeunit": unit} if unit else {}, "results": list(entries)}


CACHE = {"device_name": "d", "kernel_name": "k", "tune_params_keys": ["bx", "pad"], "objective": "time", "cache": {
    "16,0": {"bx": 16, "pad": 0, "time": 1.5, "times": [1.5, 1.5], "GFLOP/s": 3.0},
    "16,1": {"bx": 16, "pad": 1, "time": "CompilationFailedConfig"},
    "32,0": {"bx": 32, "pad": 0, "time": 1e20, "__error__": "RuntimeFailedConfig"},
    "32,1": {"bx": 32, "pad": 1, "time": "InvalidConfig"}}}


@pytest.fixture
def file(tmp_path):
    def write(content, name: str = "trials.json") -> Path:
        text = content if isinstance(content, (str, bytes)) else json.dumps(content)
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_times_and_failures_of_t4_are_read(file):
    trials = read_trials(file(t4(
        entry(2.5), entry("x", 32, invalidity="compile"), entry(0, invalidity="constraints"),
        entry(7, 32, measurements=[{"name": "power", "value": 3}, {"name": "time", "value": 7, "unit": "us"}]),
        entry(1, invalidity="timeout"))))
    assert list(trials) == ["bx", "pad", "codec", "seconds", "failure"]
    assert trials["seconds"].tolist()[::3] == [2.5e-3, 7e-6]
    assert trials["seconds"].isna().tolist() == [False, True, True, False, True]
    assert trials["failure"].tolist() == [None, "compile", "constraint", None, "timeout"]


def test_values_of_a_space_are_those_of_the_space(file):
    trials = read_trials(file(t4(entry(1, 32.0))), SPACE)
    assert list(trials[list(SPACE.names)].itertuples(index=False, name=None)) == [(32, 1, "a")]  # though not valid
    with pytest.raises(SchemaError, match=r"results\[1\]: bx=17 is not in the space: its values are 16, 32"):
        read_trials(file(t4(entry(1), entry(1, 17))), SPACE)
    with pytest.raises(SchemaError, match=r"it has the parameters bx, not bx, pad, codec"):
        read_trials(file(t4(entry(1, configuration={"bx": 16}))), SPACE)


@pytest.mark.parametrize("name", ["trials.json", "trials.json.gz"])
def test_what_is_written_is_read_unchanged(tmp_path, name):
    trials = pd.DataFrame({"bx": [16, 32, 16], "rate": [0.1, 1e-7, 3.0], "codec": ["a", "b", "all"],
                           "seconds": [1 / 3, math.nan, 2e-9],
                           "failure": pd.Series([None, "constraint", None], dtype=object)})
    write_t4(tmp_path / name, trials)
    pd.testing.assert_frame_equal(read_trials(tmp_path / name), trials, check_exact=True)
    for seconds, failure in ((0.0, None), (math.nan, None), (1.0, "compile"), (math.inf, None)):
        with pytest.raises(SchemaError, match=r"trial 0 has seconds=.*: give positive seconds, or nan"):
            write_t4(tmp_path / "other.json", trials[:1].assign(seconds=seconds, failure=failure))
    assert not (tmp_path / "other.json").exists()


def cut(text: str, *, last_line: int) -> str:
    """Cut a cache as a process leaves it that is killed while it writes the last line."""
    lines = text.removesuffix("}}").replace('}, "', '},\n"').replace('"cache": {', '"cache": {\n').split("\n")
    return "\n".join([*lines[:-1], lines[-1][:last_line]])


@pytest.mark.parametrize(("text", "count"), [
    (json.dumps(CACHE), 4), (json.dumps(CACHE)[:-2], 4), (json.dumps(CACHE)[:-2] + ",\n", 4),
    (cut(json.dumps(CACHE), last_line=20), 3), (cut(json.dumps(CACHE), last_line=6), 3)])
def test_a_cache_of_kernel_tuner_is_read_also_while_it_is_written(file, text, count):
    trials = read_trials(file(text))
    assert list(trials) == ["bx", "pad", "seconds", "failure"]
    assert trials["bx"].tolist() == [16, 16, 32, 32][:count]
    assert trials["seconds"][0] == 1.5e-3
    assert trials["failure"].tolist() == [None, "compile", "runtime", "constraint"][:count]


@pytest.mark.parametrize(("content", "reason"), [
    ("{", "is not JSON"), (b"\xff\xfe", "is not JSON in UTF-8"), ("[" * 20_000, "is not JSON"),
    ("[]", "is neither a T4"),
    ('{"a": 1}', "is neither a T4 file, with a list of results, nor a cache of Kernel Tuner"), ("{}", "is neither"),
    (t4(), "has no trials"), (t4(3), r"results\[0\]: 'int' object"), (t4({}), r"results\[0\]: 'invalidity' is missing"),
    (t4(entry(1), entry(-1.0)), r"results\[1\]: time -1.0 is no positive number"), (t4(entry(0)), "time 0 is no pos"),
    (t4(entry(True)), "time True is no"), (t4(entry("x")), "time 'x' is no"), (t4(entry([1])), r"time \[1\] is no"),
    (json.dumps(t4(entry(1.5))).replace("1.5", "NaN"), "NaN is no number"), (t4(entry(10**400)), "int too large"),
    (json.dumps(t4(entry(1.5))).replace("1.5", "1e999"), "time inf is no positive number"),
    (t4(entry(1), unit="fortnights"), "unit 'fortnights' of its time is not one of s, sec"),
    (t4(entry(1), unit=None), "unit 'none' of its time"), (t4(entry(1, measurements=[])), "'time' is missing"),
    (t4(entry(1, configuration={"bx": [1]})), r"bx is \[1\], neither a number nor text"),
    (t4(entry(1), entry(1, configuration={"by": 1})), r"results\[1\]: it has the parameters by, not bx, pad, codec"),
    (t4(entry(1, configuration={"seconds": 1})), "it has the parameters seconds"),
    (t4(entry(1, invalidity=3)), "invalidity 3 is no word"),
    ({**CACHE, "tune_params_keys": ["by"]}, r"cache\['16,0'\]: 'by' is missing"),
    ({**CACHE, "cache": {"16,0": {"bx": 16, "pad": 0}}}, "'time' is missing"),
    (json.dumps(CACHE)[:60], "is neither|is not JSON"),
])
def test_a_damaged_or_foreign_file_is_refused_by_path_and_place(file, content, reason):
    with pytest.raises(SchemaError, match=reason) as refused:
        read_trials(file(content))
    assert "trials.json" in str(refused.value)


def test_compressed_files_are_checked(file, monkeypatch):
    packed = gzip.compress(json.dumps(t4(entry(1))).encode())
    assert len(read_trials(file(packed, "a.json.gz"))) == 1
    for damaged in (packed[:-9], b"no gzip", packed[:12] + b"\xff" * 20 + packed[32:]):
        with pytest.raises(SchemaError, match=r"a.json.gz is damaged .*: restore it"):
            read_trials(file(damaged, "a.json.gz"))
    monkeypatch.setattr(tuning_files, "MAX_BYTES", 10**6)
    with pytest.raises(SchemaError, match="has more than 1,000,000 bytes of text"):
        read_trials(file(gzip.compress(b" " * 10**8), "a.json.gz"))


@pytest.mark.skipif(not GPU_SPACES.exists(), reason="the tuning spaces of GPUs are not beside the checkout")
@pytest.mark.parametrize(("kernel", "device", "failed"), [("convolution", "A100", 161), ("dedispersion", "MI250X", 0)])
def test_the_trials_of_real_gpus_are_the_valid_points_of_their_spaces(kernel, device, failed):
    space = read_space(GPU_SPACES / f"{kernel}_T1.json")
    trials = read_trials(GPU_SPACES / f"{kernel}_{device}_T4.json.gz", space)
    listed = pd.DataFrame(space.enumerate(2**18)).astype(int).sort_values(list(space.names), ignore_index=True)
    pd.testing.assert_frame_equal(trials[list(space.names)].sort_values(list(space.names), ignore_index=True), listed)
    assert trials["failure"].notna().sum() == trials["seconds"].isna().sum() == failed
    assert 1e-4 < trials["seconds"].min() < 0.1


KERNEL = """
extern "C" float work(float *c, int n) {
    for (int i = 0; i < n; i++) c[i] += BLOCK;
    return (float)BLOCK * UNROLL;
}
"""


@pytest.mark.slow
@pytest.mark.cc
def test_what_kernel_tuner_writes_is_read(tmp_path, monkeypatch) -> None:
    """Kernel Tuner compiles and runs C kernels, in the working directory; one combination is restricted."""
    monkeypatch.chdir(tmp_path)
    kernel_tuner = pytest.importorskip("kernel_tuner")
    from kernel_tuner.file_utils import store_output_file

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parameters = {"BLOCK": [8, 16, 32], "UNROLL": [1, 2]}
        results, _ = kernel_tuner.tune_kernel(
            "work", KERNEL, 64, [np.zeros(64, np.float32), np.int32(64)], parameters, lang="C", quiet=True,
            restrictions=["BLOCK * UNROLL <= 32"], cache=str(tmp_path / "cache.json"))
        store_output_file(str(tmp_path / "T4.json"), results, parameters)
    for name in ("cache.json", "T4.json"):
        trials = read_trials(tmp_path / name)
        assert {(row.BLOCK, row.UNROLL): row.seconds for row in trials.itertuples()} == pytest.approx(
            {(8, 1): 8e-3, (8, 2): 16e-3, (16, 1): 16e-3, (16, 2): 32e-3, (32, 1): 32e-3})
