"""Operations on a prepared matrix as users call them, bound to arrays, and the kernel that they run."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sparloom.experiments.known_rows import KnownRows
from sparloom.jit import aligned
from sparloom.ops import Op, Operands
from sparloom.platforms import CpuKernels
from sparloom.tuning.sparse import CsrPlan, Prepared

__all__ = ["OwnCall", "check_own", "own_calls", "user_call"]

AFTER_PAGE = 4  # float32 from the start of a page: where large arrays begin that glibc has mapped


class OwnCall(NamedTuple):
    """A call, and the array that it writes to; None: it gives a new one."""

    run: Callable[[], Any]
    out: np.ndarray | None = None


def user_call(ready: Prepared, op: str, dense: Mapping[str, Any]) -> Callable[..., Any]:
    """Bind an operation to its dense operands; `out` is left open."""
    method = {"spmm": ready.spmm, "sddmm": ready.sddmm, "attention": ready.attention}[op]
    return partial(method, *dense.values())


def own_calls(ready: Prepared, plan: CsrPlan, op: Op, operands: Operands) -> dict[str, OwnCall]:
    """Bind every way to call an operation that was decided.

    Returns:
        "sparloom", with a place for the result, at the start of a page; "sparloom_plain", with one that begins where
        those of `numpy.empty` do; "sparloom_new", without; "kernel", where one was chosen, alone.
    """
    family = CpuKernels(ready.threads, operands.width).family(op)
    result, call = family.result(operands), user_call(ready, op.name, operands.dense)
    plain = _plain(result.shape)
    calls = {"sparloom": OwnCall(partial(call, out=result), result), "sparloom_new": OwnCall(call),
             "sparloom_plain": OwnCall(partial(call, out=plain), plain)}
    if plan.choice.config:
        calls["kernel"] = OwnCall(family.bind(operands, plan.config, result), result)
    return calls


def check_own(calls: Mapping[str, OwnCall], known: KnownRows) -> None:
    """Run each once, into NaN where it writes to an array, and compare.

    Raises:
        AssertionError: names the call and the worst element.
    """
    for name, (run, out) in calls.items():
        if out is not None:
            out.fill(np.nan)
        given = run()
        try:
            known.check(given if out is None else out)
        except AssertionError as error:
            raise AssertionError(f"{name} is wrong: {error}") from error


def _plain(shape: tuple[int, ...]) -> np.ndarray:
    return aligned((math.prod(shape) + AFTER_PAGE,), np.float32)[AFTER_PAGE:].reshape(shape)
