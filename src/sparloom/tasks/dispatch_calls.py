"""What a bench of input-aware operations calls of ours, and what it tells of a decision."""

from collections.abc import Callable, Mapping
from typing import Any

from sparloom.dispatch.csr import CsrPlan, Prepared
from sparloom.ops import SDDMM, CsrAttention, Op, Operands, SpMM
from sparloom.platforms import Family

__all__ = ["OPS", "own_calls", "told"]

OPS: Mapping[str, Callable[[int], Op]] = {
    "spmm": lambda heads: SpMM(), "sddmm": lambda heads: SDDMM(), "attention": lambda heads: CsrAttention(heads)}
"""Operation -> how it is made, for so many heads."""


def own_calls(
    op: str, ready: Prepared, plan: CsrPlan, operands: Operands, family: Family,
) -> dict[str, Callable[[], Any]]:
    """Bind the operation as users call it, with a place for the result and without, and the kernel that it runs."""
    dense, result = operands.dense, family.result(operands)
    calls = {
        "spmm": lambda out=None: ready.spmm(dense["B"], out=out),
        "sddmm": lambda out=None: ready.sddmm(dense["B"], dense["C"], out=out),
        "attention": lambda out=None: ready.attention(dense["Q"], dense["K"], dense["V"], out=out)}
    own: dict[str, Callable[[], Any]] = {"sparloom": lambda: calls[op](result), "sparloom_new": calls[op]}
    if plan.choice.config:
        own["kernel"] = family.bind(operands, plan.config, result)
    return own


def told(plan: CsrPlan) -> dict[str, Any]:
    """Columns of a decision."""
    decision = plan.decision
    return {"choice": plan.choice.config or plan.choice.library, "origin": decision.origin, "reason": decision.reason,
            "decision_seconds": decision.seconds, "decision_executions": decision.executions}
