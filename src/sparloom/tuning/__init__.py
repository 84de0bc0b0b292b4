"""What runs how: every choice that is left to the library is made here, checked by measurement and remembered.

Names are imported when they are asked for: `sparloom.tuning.sparse` needs no torch.
"""

from sparloom.ondemand import on_demand

__all__ = [
    "ORDERS", "Decision", "Effort", "Estimate", "Evolution", "Fuse", "Guardrail", "KeptPlan", "LearnedPairCosts", "PairChoice",
    "PairCostModel", "PairPlan", "PlanCache", "PlanKey", "Policy", "Problem", "Pruning", "Race", "RaggedChoice", "Ranked",
    "RaggedEffort", "RaggedOperator", "Rates", "Trial", "Verdict", "Workshop", "best", "choose_schedule", "duel",
    "encoder_operators", "list_plans", "measure_rates", "pair_numbers", "plan_pair", "portfolio", "product_operators", "prune_plans",
    "race", "token_operators", "top_k",
]

_PLACES = {
    "Decision": "sparloom.tuning.decision",
    "Effort": "sparloom.tuning.racing",
    "Estimate": "sparloom.tuning.estimate",
    "Evolution": "sparloom.tuning.search",
    "Fuse": "sparloom.tuning.plan",
    "Guardrail": "sparloom.tuning.guardrail",
    "KeptPlan": "sparloom.tuning.kept_plans",
    "LearnedPairCosts": "sparloom.tuning.cost_model",
    "ORDERS": "sparloom.tuning.orders",
    "PairChoice": "sparloom.tuning.choice",
    "PairCostModel": "sparloom.tuning.cost_model",
    "PairPlan": "sparloom.tuning.plan",
    "PlanCache": "sparloom.tuning.plan_cache",
    "PlanKey": "sparloom.tuning.plan_key",
    "Policy": "sparloom.tuning.policy",
    "Problem": "sparloom.tuning.problem",
    "Pruning": "sparloom.tuning.pruning",
    "Race": "sparloom.tuning.racing",
    "RaggedChoice": "sparloom.tuning.ragged_schedule",
    "RaggedEffort": "sparloom.tuning.ragged_schedule",
    "RaggedOperator": "sparloom.tuning.ragged_operator",
    "Ranked": "sparloom.tuning.search",
    "Rates": "sparloom.tuning.rates",
    "Trial": "sparloom.tuning.decision",
    "Verdict": "sparloom.tuning.guardrail",
    "Workshop": "sparloom.tuning.workshop",
    "best": "sparloom.tuning.search",
    "choose_schedule": "sparloom.tuning.ragged_schedule",
    "duel": "sparloom.tuning.racing",
    "encoder_operators": "sparloom.tuning.ragged_operator",
    "list_plans": "sparloom.tuning.kept_plans",
    "measure_rates": "sparloom.tuning.rates",
    "pair_numbers": "sparloom.tuning.cost_model",
    "plan_pair": "sparloom.tuning.plan",
    "portfolio": "sparloom.tuning.search",
    "product_operators": "sparloom.tuning.ragged_operator",
    "prune_plans": "sparloom.tuning.pruning",
    "race": "sparloom.tuning.racing",
    "token_operators": "sparloom.tuning.ragged_operator",
    "top_k": "sparloom.tuning.search",
}

__getattr__, __dir__ = on_demand(__name__, _PLACES)
