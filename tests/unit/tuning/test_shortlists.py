"""Sources of shortlists: options, measured candidates and cache keys."""

import numpy as np
import pytest
import scipy.sparse
from kept_files import kept_files

import sparloom
from sparloom.errors import MissingArtifact
from sparloom.ops import Operands
from sparloom.space import SpmmSpace
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import MeasurementBudget, PlanCache, list_plans
from sparloom.tuning.search import shortlist
from sparloom.tuning.sparse import CandidateSource, CsrPolicy

PATIENT = CsrPolicy(least_seconds=0, runs=1e9, effort=MeasurementBudget(candidates=4, executions=8, seconds=30.0))


class Favourite:
    """Model that prefers one configuration."""

    def __init__(self, digest=""):
        self.digest = digest

    def score(self, op, operands, configs):
        return np.array([0.0 if (config["balance"], config["prefetch"]) == ("rows", 8) else 1.0 for config in configs])


class Known:
    """Model with given scores."""

    def __init__(self, scores):
        self.scores = scores

    def score(self, op, operands, configs):
        return np.array([self.scores[config] for config in configs])


def plan(cache, **source):
    rng = np.random.default_rng(0)
    pattern = Pattern.from_coo(rng.integers(0, 200, 2000), rng.integers(0, 200, 2000), (200, 200))
    ready = sparloom.prepare(SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)), threads=1, cache=cache,
                             policy=PATIENT, **source)
    return ready.plan("spmm", B=np.ones((200, 16), np.float32))


@pytest.mark.cc
def test_shortlist_all_measures_all_that_treat_results_alike(tmp_path):
    trials = plan(PlanCache(tmp_path), shortlist="all").decision.trials
    everything = {config.key for config in SpmmSpace(16) if not config["stream"]}
    assert {trial.candidate for trial in trials if trial.seconds} == everything | {"scipy"}
    few = plan(PlanCache(tmp_path), shortlist="estimate").decision.trials
    assert len({trial.candidate for trial in few}) <= 2 + PATIENT.effort.candidates
    listed = [kept.op for kept in list_plans(tmp_path, now=0.0) if kept.kind == "csr"]
    assert sorted(listed) == ["spmm", "spmm, shortlist=all"]


@pytest.mark.cc
def test_an_object_may_be_the_model_and_is_part_of_the_key(tmp_path):
    for number, model in enumerate((None, Favourite(), Favourite("anew"), Favourite("anew"))):
        found = plan(PlanCache(tmp_path), model=model)
        assert found.decision.from_cache is (number == 3)
        proposed = [trial.candidate for trial in found.decision.trials][1:3]
        assert all("balance=rows,prefetch=8" in key for key in proposed) is (model is not None)
    assert len(kept_files(tmp_path, "csr")) == 3


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_the_best_are_listed_with_as_many_kinds_as_there_is_room_for(count):
    configs, rng = list(SpmmSpace(16)), np.random.default_rng(count)
    pattern = Pattern.identity(3)
    operands = Operands(SparseMatrix(pattern, np.ones(3, np.float32)), {"B": np.ones((3, 16), np.float32)})
    for _ in range(20):
        scores = dict(zip(configs, rng.permutation(len(configs)), strict=True))
        listed = shortlist(Known(scores), "spmm", operands, configs, count=count,
                           kind=lambda config: config["balance"])
        assert len(listed) == count
        assert listed == sorted(listed, key=scores.__getitem__)
        assert listed[0] == min(configs, key=scores.__getitem__)
        kinds = [config["balance"] for config in sorted(configs, key=scores.__getitem__)]
        assert {config["balance"] for config in listed} >= set([*dict.fromkeys(kinds)][:count])


def test_model_files_are_identified_by_their_content(tmp_path):
    path = tmp_path / "net.pt"
    path.write_bytes(b"first")
    first = CandidateSource.of("model", path).key["shortlist"]
    assert first == CandidateSource.of("model", [str(path)]).key["shortlist"]
    path.write_bytes(b"later one")
    assert first != CandidateSource.of("model", path).key["shortlist"]
    assert first.startswith("model ")


def test_the_limits_of_time_stay_where_everything_is_measured():
    default, found = CsrPolicy(), CsrPolicy().measuring_all()
    assert found.effort.candidates > len(SpmmSpace(128))
    assert found.seconds(1.0) == default.seconds(1.0)
    a = scipy.sparse.eye_array(3, format="csr", dtype=np.float32)
    assert sparloom.prepare(a, policy=default, shortlist="estimate")._policy == default
    assert sparloom.prepare(a, policy=default, shortlist="all")._policy == found


@pytest.mark.parametrize(("given", "error", "message"), [
    ({"shortlist": "best"}, ValueError, "shortlist='best': give one of estimate, all, trees, model"),
    ({"shortlist": "trees"}, ValueError, "shortlist='trees' needs model=.* run.py experiment=fit_trees makes them"),
    ({"shortlist": "all", "model": "net.pt"}, ValueError, "model=net.pt is not read with shortlist='all'"),
    ({"model": ["net.pt"]}, ValueError, "model=net.pt is not read with shortlist='estimate'"),
    ({"shortlist": "all", "model": Favourite()}, ValueError, "beside a model object"),
    ({"shortlist": "trees", "model": "nowhere"}, MissingArtifact,
     "nowhere does not exist.* experiment=fit_trees` makes"),
    ({"shortlist": "model", "model": "nowhere"}, MissingArtifact, "-m experiment=finetune_cpu_kernels op=spmm,sddmm"),
])
def test_invalid_arguments_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        sparloom.prepare(Pattern.identity(3), **given)
