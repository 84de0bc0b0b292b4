"""Programs that run often: launches, memory of intermediate results, and checks."""

import threading

import numpy as np
import pytest
from ragged_cases import batch, batches, inner, lengths, row

from sparloom.ragged import Executable, Structure, Tensor, compute, program, real, run_bound, sum_over
from sparloom.ragged import runtime as module
from sparloom.ragged.runtime import assign_offsets, lifetimes, needed_launches

pytestmark = pytest.mark.usefixtures("own_cache")
token = {batch: batches(), row: lengths(batch), inner: 3}
x = Tensor("x", token)


def step(name, inputs, more):
    return compute(name, token, inputs[batch, row, inner] + real(more))


a = step("a", x, 1.0)
b = step("b", a, 10.0)
c = step("c", b, 100.0)
d = compute("d", token, c[batch, row, inner] + x[batch, row, inner])
e = compute("e", {inner: 3}, sum_over({batch: batches(), row: lengths(batch)}, a[batch, row, inner]))
CHAIN = program("chain", [a, b, c, d, e], [d, e])


def test_launches_that_nothing_needs_do_not_run():
    assert needed_launches(CHAIN, ["d", "e"]) == (0, 1, 2, 3, 4)
    assert needed_launches(CHAIN, ["e"]) == (0, 4)
    assert needed_launches(CHAIN, ["b"]) == (0, 1)
    assert lifetimes(CHAIN, needed_launches(CHAIN, ["d", "e"])) == {
        "x": (0, 3), "a": (0, 4), "b": (1, 2), "c": (2, 3), "d": (3, 3), "e": (4, 4)}


@pytest.mark.parametrize("seed", range(20))
def test_tensors_alive_at_once_do_not_overlap(seed):
    rng = np.random.default_rng(seed)
    spans = {f"t{number}": tuple(sorted(map(int, rng.integers(0, 6, 2)))) for number in range(8)}
    sizes = {name: int(rng.integers(0, 500)) for name in spans}
    places, total = assign_offsets(spans, sizes)
    for one in spans:
        assert 0 <= places[one] <= places[one] + sizes[one] <= total
        for other in spans:
            alive = spans[one][0] <= spans[other][1] and spans[other][0] <= spans[one][1]
            if one != other and alive and sizes[one] and sizes[other]:
                assert places[one] + sizes[one] <= places[other] or places[other] + sizes[other] <= places[one]


@pytest.fixture(scope="module")
def executable():
    return Executable(CHAIN, threads=1)


@pytest.mark.cc
@pytest.mark.parametrize("entries", [[], [0], [4, 0, 7], [100]])
def test_results_on_storage_of_the_caller(executable, entries):
    of = Structure({lengths: entries})
    values = np.arange(3.0 * sum(entries), dtype=np.float32)
    for _ in range(2):
        found = {"d": np.empty_like(values), "e": np.empty(3, np.float32)}
        executable.run(of, {"x": values, **found})
        np.testing.assert_array_equal(found["d"], 2 * values + 111)
        np.testing.assert_allclose(found["e"], values.reshape(-1, 3).sum(axis=0) + sum(entries))
    assert executable.elements(of) == {**dict.fromkeys("xabcd", 3 * sum(entries)), "e": 3}


@pytest.mark.cc
def test_a_run_computes_wanted_results_only(executable):
    of, values = Structure({lengths: [2, 1]}), np.ones(9, np.float32)
    found = {name: np.zeros(9, np.float32) for name in "bd"}
    executable.run(of, {"x": values, **found}, ["b"])
    np.testing.assert_array_equal(found["b"], 12)
    np.testing.assert_array_equal(found["d"], 0)


@pytest.mark.cc
def test_every_thread_has_its_own_workspace(executable):
    of = Structure({lengths: [50] * 40})
    wrong = []

    def run(value):
        values = np.full(6000, value, np.float32)
        for _ in range(20):
            found = {"d": np.empty_like(values), "e": np.empty(3, np.float32)}
            executable.run(of, {"x": values, **found})
            if not (found["d"] == 2 * value + 111).all():
                wrong.append(value)

    threads = [threading.Thread(target=run, args=(value,)) for value in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.cc
def test_a_run_checks_arrays(executable):
    of, nine = Structure({lengths: [3]}), np.zeros(9, np.float32)
    with pytest.raises(TypeError, match="program chain: missing tensors d, x"):
        executable.run(of, {"e": np.zeros(3, np.float32)})
    with pytest.raises(TypeError, match="program chain has no tensor z to pass; there are: x, a, b"):
        executable.run(of, {"x": nine, "z": nine})
    for wrong in (nine[:8], nine.astype(np.float64), np.zeros(18, np.float32)[::2]):
        with pytest.raises(ValueError, match=r"its storage is contiguous, 9 elements of float32"):
            executable.run(of, {"x": wrong, "d": nine}, ["d"])
    for run in (executable.run, lambda of, arrays: executable(of, **arrays)):
        with pytest.raises(TypeError, match="tensor x is a list: give a NumPy array of 9 float32"):
            run(of, {"x": nine.tolist(), "d": nine.copy(), "e": np.zeros(3, np.float32)})


@pytest.mark.cc
def test_written_arrays_are_writable_and_do_not_overlap(executable):
    of, room = Structure({lengths: [3]}), np.zeros(30, np.float32)
    apart = {"x": room[:9], "d": room[9:18], "e": room[18:21]}
    executable.run(of, apart)
    for name, first in (("d", 8), ("d", 1), ("e", 9), ("e", 15), ("x", 17)):
        wrong = room[first : first + apart[name].size]
        with pytest.raises(ValueError, match="overlap: give the one that is written a separate array"):
            executable.run(of, {**apart, name: wrong})
    frozen = np.zeros(9, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        executable.run(of, {**apart, "d": frozen})
    executable.run(of, {**apart, "x": frozen})


@pytest.mark.cc
def test_a_run_that_interrupts_another_has_its_own_workspace(executable, monkeypatch):
    """Other whole runs, larger ones and smaller ones, come before and after the call that runs all launches."""
    of, values = Structure({lengths: [3]}), np.arange(9, dtype=np.float32)
    inside, launches = [], module._launches()

    def others():
        if not inside:
            inside.append(1)
            for size in (500, 1, 3):
                larger = np.full(3 * size, 7, np.float32)
                found = {"d": np.empty_like(larger), "e": np.empty(3, np.float32)}
                executable.run(Structure({lengths: [size]}), {"x": larger, **found})
                np.testing.assert_array_equal(found["d"], 125)
            inside.clear()

    def interrupted(*arguments):
        others()
        launches(*arguments)
        others()

    monkeypatch.setattr(module, "_launches", lambda: interrupted)
    found = {"d": np.empty_like(values), "e": np.empty(3, np.float32)}
    executable.run(of, {"x": values, **found})
    np.testing.assert_array_equal(found["d"], 2 * values + 111)


@pytest.mark.cc
def test_bound_runs_run_in_order_and_share_memory(executable):
    few, many = Structure({lengths: [3]}), Structure({lengths: [50, 0, 70]})
    first, second, other = (np.zeros(size, np.float32) for size in (9, 9, 360))
    sums = [np.zeros(3, np.float32) for _ in range(3)]
    runs = [executable.prepare(few, {"x": np.ones(9, np.float32), "d": first, "e": sums[0]}),
            executable.prepare(many, {"x": np.ones(360, np.float32), "d": other, "e": sums[1]}),
            executable.prepare(few, {"x": first, "d": second, "e": sums[2]})]
    np.testing.assert_array_equal(first, 0)
    run_bound(runs)
    np.testing.assert_array_equal(first, 113)
    np.testing.assert_array_equal(second, 2 * 113 + 111)
    np.testing.assert_array_equal(other, 113)
    np.testing.assert_array_equal(sums, [[6.0] * 3, [240.0] * 3, [342.0] * 3])


@pytest.mark.cc
def test_a_bound_program_runs_once_at_a_time(executable):
    of, values = Structure({lengths: [3000]}), np.ones(9000, np.float32)
    run, bound = executable.bind(of, x=values)
    threads = [threading.Thread(target=lambda: [run() for _ in range(20)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(bound["d"], 113)
