"""Choose how a product runs: a few candidates are raced, the winner is checked, and the decision is stored.

Files in the order in which a decision passes through them:

    cache            decisions on disk: key in, JSON out, in one bounded file
    records          the list of a cache, and its pruning
    machine          rates of this machine, and digests by which decisions of others are told apart
    racing           races of candidates, the guardrail, and the decision that results
    search           candidates: search of a space
    sparse/          SpMM, SDDMM and attention of one sparse matrix
    fusion_problem   products of three matrices: their patterns and cost models
    fusion           fused or not: `plan_pair`
    ragged           schedules of ragged operators: `choose_schedule`
    encoding         what the model of a campaign reads of configurations and problems
    transfer         sources of a campaign: what other devices have shown, and how much they are trusted
    engine           which configurations of which problems to time next
    optimizer        ask and tell in memory
    campaign         the same on disk, shared by processes
    optuna_sampler   the same in a study of Optuna
    triton_pruning   a model of trials that prunes the configurations of triton.autotune
    tuners           searches on one matrix at a time, beside which models are ranked

Names are imported on first use: `sparloom.tuning.sparse` needs no torch. `with sparloom.tuning():` calls this package.
"""

import sys
from contextlib import AbstractContextManager
from types import ModuleType

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "cache": (
        "PlanCache", "Summary",
    ),
    "records": (
        "CacheEntry", "Pruning", "list_plans", "prune_plans",
    ),
    "machine": (
        "FUSED_SOURCES", "RAGGED_SOURCES", "Rates", "get_rates", "machine_digests", "machine_rates", "measure_rates",
        "put_rates",
    ),
    "racing": (
        "Decision", "Guardrail", "MeasurementBudget", "Race", "Trial", "Verdict", "duel", "race",
    ),
    "search": (
        "Evolution", "Ranked", "best", "portfolio",
    ),
    "fusion_problem": (
        "Estimate", "PairCostModel", "Problem", "Sketch",
    ),
    "fusion": (
        "ExecutorFactory", "Fuse", "FusionConfig", "PairPlan", "PlanKey", "get_pair", "plan_pair",
        "put_pair",
    ),
    "ragged": (
        "RaggedBudget", "RaggedChoice", "RaggedOperator", "choose_schedule", "product_operators",
        "put_schedule", "token_operators",
    ),
    "transfer": (
        "Source",
    ),
    "engine": (
        "Proposal",
    ),
    "optimizer": (
        "Optimizer",
    ),
    "optuna_sampler": (
        "OptunaSampler",
    ),
    "triton_pruning": (
        "prune_configs_by",
    ),
    "campaign": (
        "Campaign", "ProblemSummary",
    ),
    "tuners": (
        "botorch_search", "kernel_tuner_search", "optimizer_search", "optuna_gp_search", "random_search", "smac_search",
        "tpe_search",
    ),
    "sparloom.jit": ("kernels_digest",),
    "sparloom.measure": (
        "Caches", "machine_digest",
    ),
})


class _Package(ModuleType):
    """This package, which can be called."""

    def __call__(self) -> AbstractContextManager[None]:
        """Measure whatever calls in the block compute for the first time, see `sparloom.tuning.sparse.tuning`."""
        from sparloom.tuning.sparse import tuning

        return tuning()


sys.modules[__name__].__class__ = _Package
