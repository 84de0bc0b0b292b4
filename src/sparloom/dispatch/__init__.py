"""What runs how: every choice that is left to the library is made here, checked by measurement and remembered.

Names are imported when they are asked for: `sparloom.dispatch.csr` needs no torch.
"""

from importlib import import_module
from typing import Any

__all__ = [
    "ORDERS", "Decision", "Effort", "Estimate", "Fuse", "Guardrail", "LearnedPairCosts", "PairChoice", "PairCostModel",
    "PairPlan", "PlanCache", "PlanKey", "Policy", "Problem", "Race", "RaggedChoice", "RaggedEffort", "RaggedOperator",
    "Rates", "Trial", "Verdict", "Workshop", "choose_schedule", "duel", "encoder_operators", "measure_rates",
    "pair_numbers", "plan_pair", "product_operators", "race",
]

_PLACES = {
    "ORDERS": "sparloom.dispatch.orders",
    "Decision": "sparloom.dispatch.decision",
    "Effort": "sparloom.dispatch.racing",
    "Estimate": "sparloom.dispatch.estimate",
    "Fuse": "sparloom.dispatch.plan",
    "Guardrail": "sparloom.dispatch.guardrail",
    "LearnedPairCosts": "sparloom.dispatch.cost_model",
    "PairChoice": "sparloom.dispatch.choice",
    "PairCostModel": "sparloom.dispatch.cost_model",
    "PairPlan": "sparloom.dispatch.plan",
    "PlanCache": "sparloom.dispatch.plan_cache",
    "PlanKey": "sparloom.dispatch.plan_key",
    "Policy": "sparloom.dispatch.policy",
    "Problem": "sparloom.dispatch.problem",
    "Race": "sparloom.dispatch.racing",
    "RaggedChoice": "sparloom.dispatch.ragged_schedule",
    "RaggedEffort": "sparloom.dispatch.ragged_schedule",
    "RaggedOperator": "sparloom.dispatch.ragged_operator",
    "Rates": "sparloom.dispatch.rates",
    "Trial": "sparloom.dispatch.decision",
    "Verdict": "sparloom.dispatch.guardrail",
    "Workshop": "sparloom.dispatch.workshop",
    "choose_schedule": "sparloom.dispatch.ragged_schedule",
    "duel": "sparloom.dispatch.racing",
    "encoder_operators": "sparloom.dispatch.ragged_operator",
    "measure_rates": "sparloom.dispatch.rates",
    "pair_numbers": "sparloom.dispatch.cost_model",
    "plan_pair": "sparloom.dispatch.plan",
    "product_operators": "sparloom.dispatch.ragged_operator",
    "race": "sparloom.dispatch.racing",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
