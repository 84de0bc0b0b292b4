"""What runs how: every choice that is left to the library is made here, checked by measurement and remembered.

Names are imported when they are asked for: `sparloom.dispatch.csr` needs no torch.
"""

from sparloom.ondemand import on_demand

__all__ = [
    "ORDERS", "Decision", "Effort", "Estimate", "Fuse", "Guardrail", "KeptPlan", "LearnedPairCosts", "PairChoice",
    "PairCostModel", "PairPlan", "PlanCache", "PlanKey", "Policy", "Problem", "Pruning", "Race", "RaggedChoice",
    "RaggedEffort", "RaggedOperator", "Rates", "Trial", "Verdict", "Workshop", "choose_schedule", "duel",
    "encoder_operators", "list_plans", "measure_rates", "pair_numbers", "plan_pair", "product_operators", "prune_plans",
    "race", "token_operators",
]

_PLACES = {
    "ORDERS": "sparloom.dispatch.orders",
    "Decision": "sparloom.dispatch.decision",
    "Effort": "sparloom.dispatch.racing",
    "Estimate": "sparloom.dispatch.estimate",
    "Fuse": "sparloom.dispatch.plan",
    "Guardrail": "sparloom.dispatch.guardrail",
    "KeptPlan": "sparloom.dispatch.kept_plans",
    "LearnedPairCosts": "sparloom.dispatch.cost_model",
    "PairChoice": "sparloom.dispatch.choice",
    "PairCostModel": "sparloom.dispatch.cost_model",
    "PairPlan": "sparloom.dispatch.plan",
    "PlanCache": "sparloom.dispatch.plan_cache",
    "PlanKey": "sparloom.dispatch.plan_key",
    "Policy": "sparloom.dispatch.policy",
    "Problem": "sparloom.dispatch.problem",
    "Pruning": "sparloom.dispatch.pruning",
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
    "list_plans": "sparloom.dispatch.kept_plans",
    "measure_rates": "sparloom.dispatch.rates",
    "pair_numbers": "sparloom.dispatch.cost_model",
    "plan_pair": "sparloom.dispatch.plan",
    "product_operators": "sparloom.dispatch.ragged_operator",
    "prune_plans": "sparloom.dispatch.pruning",
    "race": "sparloom.dispatch.racing",
    "token_operators": "sparloom.dispatch.ragged_operator",
}

__getattr__, __dir__ = on_demand(__name__, _PLACES)
