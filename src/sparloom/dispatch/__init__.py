"""What runs how: every choice that is left to the library is made here, checked by measurement and remembered."""

from sparloom.dispatch.choice import PairChoice
from sparloom.dispatch.decision import Decision, Trial
from sparloom.dispatch.plan import Fuse, PairPlan, plan_pair
from sparloom.dispatch.plan_cache import PlanCache

__all__ = ["Decision", "Fuse", "PairChoice", "PairPlan", "PlanCache", "Trial", "plan_pair"]
