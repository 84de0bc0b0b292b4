"""Building kernels."""

from sparloom.ir import F32, I64, Binary, Const, For, Kernel, Load, Ref, Store


def test_integers_stand_for_i64_constants():
    assert Ref("i") + 1 == Binary("+", Ref("i"), Const(1, I64))
    assert 2 - Ref("i") * 3 == Binary("-", Const(2), Binary("*", Ref("i"), Const(3)))
    assert 1 + Ref("i") // 4 % 2 == Binary("+", Const(1), Binary("%", Binary("//", Ref("i"), Const(4)), Const(2)))
    assert Load("x", 3) == Load("x", Const(3))
    assert For("i", 0, 4, []).hi == Const(4)
    assert Store("x", 0, 1) == Store("x", Const(0), Const(1))


def test_bodies_are_frozen():
    kernel = Kernel("k", [], [For("i", 0, 4, [Store("x", 0, Const(1.0, F32))])])
    assert isinstance(kernel.body, tuple)
    assert isinstance(kernel.body[0].body, tuple)
    assert hash(kernel) == hash(Kernel("k", (), kernel.body))
