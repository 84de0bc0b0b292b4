"""Arguments are checked before the call."""

import threading

import numpy as np
import pytest

from sparloom.ir import BOOL, F32, F64, I32, I64, Accumulate, Cast, For, Kernel, Load, Param, Ref, Store
from sparloom.jit import Source, compile_c

pytestmark = pytest.mark.cc

PARAMS = (Param("x", F32, True), Param("y", F32, True, False), Param("n", I64))


@pytest.fixture
def add(compile_once):
    body = [For("i", 0, Ref("n"), [Accumulate("y", Ref("i"), Load("x", Ref("i")))])]
    return compile_once([Kernel("add", PARAMS, body)]).function("add")


X = np.ones(4, np.float32)


def ones(*shape) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_arrays_of_any_dimensions_are_taken_as_they_lie(add):
    y = ones(2, 3)
    add(ones(3, 2), y, 6)
    np.testing.assert_array_equal(y, 2)


def test_bound_calls_check_once_and_may_be_repeated(add):
    y = ones(4)
    call = add.bind(ones(4), y, 4)  # the first array lives on in the call
    call()
    call()
    np.testing.assert_array_equal(y, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X, X), TypeError, r"kernel add takes 3 arguments \(x, y, n\), got 2"),
        ((list(X), ones(4), 4), TypeError, "argument x of kernel add is a list: pass a NumPy array of float32"),
        ((X.astype(np.float64), ones(4), 4), TypeError,
         r"argument x of kernel add has dtype float64, not float32: convert it with \.astype\(np\.float32\)"),
        ((ones(4, 4).T[:2], ones(4), 4), ValueError, "argument x of kernel add is not C-contiguous and aligned"),
        ((np.ones(8, np.float32)[::2], ones(4), 4), ValueError, "argument x of kernel add is not C-contiguous"),
        ((X, ones(4), 4.0), TypeError, "argument n of kernel add is a float: pass an int"),
        ((X, ones(4), True), TypeError, "argument n of kernel add is a bool: pass an int"),
        ((X, ones(4), 2**63), ValueError, "argument n of kernel add is 9223372036854775808, outside the range of i64"),
    ],
)
def test_wrong_arguments_are_refused(add, arguments, error, message):
    with pytest.raises(error, match=message):
        add(*arguments)


def test_misaligned_arrays_are_refused(add):
    raw = np.zeros(17, np.uint8)[1:].view(np.float32)
    with pytest.raises(ValueError, match="not C-contiguous and aligned"):
        add(raw, ones(4), 4)


def test_written_buffers_are_writable_and_apart(add):
    y = ones(8)
    with pytest.raises(ValueError, match="arguments y and x of kernel add overlap: pass a copy of one"):
        add(y[2:6], y[:4], 4)
    add(y[4:], y[:4], 4)
    np.testing.assert_array_equal(y[:4], 2)
    y.flags.writeable = False
    with pytest.raises(ValueError, match="argument y of kernel add is written but read-only"):
        add(X, y, 4)


def test_read_buffers_may_overlap_and_be_read_only():
    params = (Param("a", F32, True), Param("b", F32, True), Param("y", F32, True, False))
    kernel = Kernel("sum_two", params, [Store("y", 0, Load("a", 0) + Load("b", 0))])
    x, y = ones(1), ones(1)
    x.flags.writeable = False
    compile_c([kernel]).function("sum_two")(x, x, y)
    assert y[0] == 2


def test_every_scalar_type_arrives():
    scalars = {"a": (I32, -(2**31)), "b": (I64, 2**62 + 1), "c": (F32, 0.1), "d": (F64, 0.1)}
    params = [Param(name, type) for name, (type, _) in scalars.items()]
    params += [Param(f"out_{name}", type, True, False) for name, (type, _) in scalars.items()]
    kernel = Kernel("k", (*params, Param("e", BOOL), Param("out_e", BOOL, True, False)),
                    [Store(f"out_{name}", 0, Ref(name)) for name in "abcde"])
    outs = [np.zeros(1, dtype) for dtype in (np.int32, np.int64, np.float32, np.float64)]
    flag = np.zeros(1, bool)
    compile_c([kernel]).function("k")(*(np.array([v])[0] for _, v in scalars.values()), *outs, np.True_, flag)
    assert [out[0] for out in outs] == [-(2**31), 2**62 + 1, np.float32(0.1), 0.1]
    assert flag[0]


@pytest.mark.parametrize(("type", "value", "message"), [
    (BOOL, 1, "pass a bool"), (F32, "1", "pass a float"), (I32, 2**31, "outside the range of i32"),
    (F64, None, "pass a float"), (I64, np.float64(3), "pass an int"),
])
def test_wrong_scalars_are_refused(compile_once, type, value, message):
    function = compile_once([Kernel("k", (Param("s", type),), [])]).function("k")
    with pytest.raises((TypeError, ValueError), match=f"argument s of kernel k .*{message}"):
        function(value)


def test_empty_arrays_are_fine(add):
    add(ones(0), ones(0), 0)


def test_other_threads_run_during_a_call():
    text = """#include <stdint.h>
    void wait(volatile int64_t *flag) { for (int64_t n = 0; n < INT64_C(20000000000) && !*flag; ++n); }"""
    wait = compile_c([Source("wait", (Param("flag", I64, True, False),), text)]).function("wait")
    flag = np.zeros(1, np.int64)
    thread = threading.Thread(target=wait, args=(flag,))
    thread.start()
    flag[0] = 1  # would come too late if the call held the GIL
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_cast_indices_reach_beyond_32_bits():
    kernel = Kernel("k", (Param("cols", I32, True), Param("y", I64, True, False)),
                    [Store("y", 0, Cast(I64, Load("cols", 0)) * 100000)])
    y = np.zeros(1, np.int64)
    compile_c([kernel]).function("k")(np.array([10**6], np.int32), y)
    assert y[0] == 10**11
