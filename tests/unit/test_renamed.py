"""Old public names of packages, classes and functions."""

import importlib

import pytest

from sparloom.lazy import PACKAGES, RENAMED, first_name, stored_class_name

OLD_NAMES = {  # what each package of old offered before it was moved
    "sparloom.dispatch": [
        "ORDERS", "Decision", "Effort", "Estimate", "Fuse", "Guardrail", "KeptPlan", "LearnedPairCosts", "PairChoice",
        "PairCostModel", "PairPlan", "PlanCache", "PlanKey", "Policy", "Problem", "Pruning", "Race", "RaggedChoice",
        "RaggedEffort", "RaggedOperator", "Rates", "Trial", "Verdict", "Workshop", "choose_schedule", "duel",
        "encoder_operators", "list_plans", "measure_rates", "pair_numbers", "plan_pair", "product_operators",
        "prune_plans", "race", "token_operators"],
    "sparloom.dispatch.csr": [
        "CUDA_LIBRARIES", "LIBRARIES", "SHORTLISTS", "Contest", "CpuPlace", "CsrChoice", "CsrCostModel", "CsrDecider",
        "CsrEstimate", "CsrPlan", "CsrPolicy", "CudaPlace", "CudaSwitches", "Library", "Place", "Prepared", "ProbeLog",
        "Product", "Proposals", "Sample", "Switches", "csr_attention", "gathered_pieces", "prepare", "sample_rows",
        "sddmm", "spmm"],
    "sparloom.search": ["Evolution", "Ranked", "best", "portfolio", "top_k"],
    "sparloom.tasks": [
        "Arm", "AuditLabels", "Autoencode", "BenchDecisionsBusy", "BenchDispatch", "BenchDispatchCuda",
        "BenchFeaturizer", "BenchFusion", "BenchGcn", "BenchJacobi", "BenchKernels", "BenchRagged", "BenchRaggedCuda",
        "BenchRaggedSchedules", "BenchRecommend", "BenchSimulator", "Block", "BusyCase", "CheckGcn", "CheckLearnings",
        "CheckProbe", "CheckSpadeSigns", "Checkpoints", "ChooseKernels", "Collect", "CollectGemm", "Compare",
        "DecisionWay", "Distillation", "EvalRagged", "ExploreDesigns", "ExportCsv", "FineTuned", "Finetune", "Fit",
        "FitTrees", "Fitted", "Gather", "GraphChoice", "Learning", "Plans", "PrepareInputs", "Pretrain", "Recipe",
        "Recommend", "RecommendShape", "SpadeSensitivity", "SummariseSamples", "Tabulate", "TensorBoard",
        "TreeModels", "ValidateSimulator", "Wandb"],
}


@pytest.mark.parametrize("package", sorted(OLD_NAMES))
def test_old_packages_keep_their_names(package):
    module = importlib.import_module(package)
    assert [name for name in OLD_NAMES[package] if getattr(module, name, None) is None] == []
    assert set(OLD_NAMES) == set(PACKAGES)


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_a_renamed_name_is_the_new_one(old):
    package, _, name = old.rpartition(".")
    home, _, renamed = RENAMED[old].rpartition(".")
    assert getattr(importlib.import_module(package), name) is getattr(importlib.import_module(home), renamed)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        importlib.import_module("sparloom.dispatch").Nothing  # noqa: B018


@pytest.mark.parametrize(("today", "first"), [
    ("sparloom.experiments.Finetune", "sparloom.tasks.Finetune"),
    ("sparloom.experiments.LearnerConfig", "sparloom.tasks.Learning"),
    ("sparloom.tuning.sparse.CsrPolicy.online", "sparloom.dispatch.csr.CsrPolicy.online"),
    ("sparloom.tuning.Guardrail", "sparloom.dispatch.Guardrail"),
    ("sparloom.tuning.Evolution", "sparloom.search.Evolution"),
    ("sparloom.ops.SpMM", "sparloom.ops.SpMM"),
    ("torch.optim.Adam", "torch.optim.Adam"),
])
def test_digests_hash_the_first_name(today, first):
    assert first_name(today) == first


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_renamed_classes_are_stored_under_their_first_name(old):
    package, _, name = old.rpartition(".")
    found = getattr(importlib.import_module(package), name)
    if isinstance(found, type) and found.__module__.startswith(package):
        assert stored_class_name(object.__new__(found)) == first_name(RENAMED[old]).rpartition(".")[2]
