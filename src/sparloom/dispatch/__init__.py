"""What runs how: every choice that is left to the library is made here, checked by measurement and remembered."""

from sparloom.dispatch.choice import PairChoice
from sparloom.dispatch.cost_model import LearnedPairCosts, PairCostModel, pair_numbers
from sparloom.dispatch.decision import Decision, Trial
from sparloom.dispatch.estimate import Estimate
from sparloom.dispatch.guardrail import Guardrail, Verdict
from sparloom.dispatch.orders import ORDERS
from sparloom.dispatch.plan import Fuse, PairPlan, plan_pair
from sparloom.dispatch.plan_cache import PlanCache
from sparloom.dispatch.plan_key import PlanKey
from sparloom.dispatch.policy import Policy
from sparloom.dispatch.problem import Problem
from sparloom.dispatch.race import Effort, Race, duel, race
from sparloom.dispatch.ragged_operator import RaggedOperator, encoder_operators, product_operators
from sparloom.dispatch.ragged_schedule import RaggedChoice, RaggedEffort, choose_schedule
from sparloom.dispatch.rates import Rates, measure_rates
from sparloom.dispatch.workshop import Workshop

__all__ = [
    "ORDERS", "Decision", "Effort", "Estimate", "Fuse", "Guardrail", "LearnedPairCosts", "PairChoice", "PairCostModel",
    "PairPlan", "PlanCache", "PlanKey", "Policy", "Problem", "Race", "RaggedChoice", "RaggedEffort", "RaggedOperator",
    "Rates", "Trial", "Verdict", "Workshop", "choose_schedule", "duel", "encoder_operators", "measure_rates",
    "pair_numbers", "plan_pair", "product_operators", "race",
]
