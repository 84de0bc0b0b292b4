"""Which operations a bench of input-aware operations has, and what it tells of a decision."""

from collections.abc import Callable, Mapping
from typing import Any

from sparloom.ops import SDDMM, CsrAttention, Op, SpMM
from sparloom.tuning.sparse import CsrPlan

__all__ = ["OPS", "told"]

OPS: Mapping[str, Callable[[int], Op]] = {
    "spmm": lambda heads: SpMM(), "sddmm": lambda heads: SDDMM(), "attention": lambda heads: CsrAttention(heads)}
"""Operation -> how it is made, for so many heads."""


def told(plan: CsrPlan) -> dict[str, Any]:
    """Columns of a decision."""
    decision = plan.decision
    return {"choice": plan.choice.config or plan.choice.library, "origin": decision.origin, "reason": decision.reason,
            "decision_seconds": decision.seconds, "decision_executions": decision.executions}
