"""Choose how a product runs: a few candidates are raced, the winner is checked, and the decision is stored.

Files in the order in which a decision passes through them:

    disk_cache       byte strings by key in one file, bounded
    cache            decisions on disk: key in, JSON or bytes out
    records          the list of a cache, its pruning, and the log of decisions
    machine          rates of this machine, and digests by which decisions of others are told apart
    racing           races of candidates, the guardrail, and the decision that results
    online_race      a race that is made of the calls of a program
    search           candidates: search of a space, shortlists, cost models
    sparse/          SpMM, SDDMM and attention of one sparse matrix
    fusion_problem   products of three matrices: their patterns and cost models
    fusion           fused or not: `plan_pair`
    ragged           schedules of ragged operators: `choose_schedule`
    campaign         which configurations of which matrices to time next on an accelerator: ask and tell
    tuners           searches on one matrix at a time, beside which models are ranked

Names are imported on first use: `sparloom.tuning.sparse` needs no torch.
"""

from sparloom.lazy import on_demand

_MODULES = {
    "disk_cache": (
        "DiskCache",
    ),
    "cache": (
        "PlanCache", "Summary",
    ),
    "records": (
        "CacheEntry", "ProbeLog", "Pruning", "list_plans", "prune_plans",
    ),
    "machine": (
        "FUSED_SOURCES", "RAGGED_SOURCES", "Rates", "get_rates", "machine_digests", "machine_rates", "measure_rates",
        "measure_sparse_rates", "put_rates",
    ),
    "racing": (
        "Decision", "Guardrail", "MeasurementBudget", "Race", "Trial", "Verdict", "duel", "race",
    ),
    "online_race": (
        "OnlineRace",
    ),
    "search": (
        "CandidateSource", "CsrCostModel", "Evolution", "Ranked", "best", "portfolio", "shortlist",
        "top_k",
    ),
    "fusion_problem": (
        "ORDERS", "Estimate", "LearnedPairCosts", "PairCostModel", "Problem", "Sketch", "pair_numbers",
    ),
    "fusion": (
        "ExecutorFactory", "Fuse", "FusionConfig", "PairPlan", "PlanKey", "Policy", "get_order", "get_pair",
        "plan_pair", "put_order", "put_pair",
    ),
    "ragged": (
        "RaggedBudget", "RaggedChoice", "RaggedOperator", "choose_schedule", "encoder_operators",
        "product_operators", "put_schedule", "token_operators",
    ),
    "campaign": (
        "Campaign", "MatrixSummary", "Proposal",
    ),
    "tuners": (
        "gaussian_process_search", "random_search", "smac_search", "tpe_search",
    ),
}

_BELOW = {  # of the packages below, offered here too
    "jit": ("kernels_digest",),
    "measure": ("Caches", "LoadWatch", "NoLoad", "ProcessLoad", "SystemLoad", "machine_digest", "watch_load"),
}

__all__ = [
    "FUSED_SOURCES", "ORDERS", "RAGGED_SOURCES", "CacheEntry", "Caches", "CandidateSource", "CsrCostModel",
    "Decision", "DiskCache", "Estimate", "Evolution", "ExecutorFactory", "Fuse", "FusionConfig", "Guardrail",
    "LearnedPairCosts", "LoadWatch", "MeasurementBudget", "NoLoad", "OnlineRace", "PairCostModel",
    "PairPlan", "PlanCache", "PlanKey", "Policy", "ProbeLog", "Problem", "ProcessLoad", "Pruning", "Race",
    "RaggedBudget", "RaggedChoice", "RaggedOperator", "Ranked", "Rates", "Sketch", "Summary", "SystemLoad", "Trial",
    "Verdict", "best", "choose_schedule", "duel", "encoder_operators", "get_order", "get_pair", "get_rates",
    "kernels_digest", "list_plans", "machine_digest", "machine_digests", "machine_rates", "measure_rates",
    "measure_sparse_rates", "pair_numbers", "plan_pair", "portfolio", "product_operators", "prune_plans", "put_order",
    "put_pair", "put_rates",
    "put_schedule", "race", "shortlist", "token_operators", "top_k", "watch_load",
]

__getattr__, __dir__ = on_demand(__name__, {
    **{name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names},
    **{name: f"sparloom.{package}" for package, names in _BELOW.items() for name in names}})
