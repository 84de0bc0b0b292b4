"""AutoSAGE's decisions from made-up times: guardrail, cap, wrong acceptances, small samples, and their tables."""

import math

import pandas as pd
import pytest
from autosage_run import BAD, DEFAULT, GOOD, frames

from sparloom.report import autosage_decisions

ONE = "op == 'spmm' and matrix == 'reddit_like' and width == 128"


def decided(tables: dict[str, pd.DataFrame], cap_seconds: float = 1.0) -> pd.DataFrame:
    """Decide one case."""
    kept = {name: frame.query(ONE) for name, frame in tables.items()}
    return autosage_decisions(**kept, cap_seconds=cap_seconds)


def arm(decisions: pd.DataFrame, name: str, baseline: str = "vendor", kind: str = "arm", sample: str = "") -> pd.Series:
    rows = decisions[(decisions["kind"] == kind) & (decisions["name"] == name) & (decisions["baseline"] == baseline)]
    return rows[rows["sample"] == sample].iloc[0] if sample else rows.iloc[0]


def test_the_fastest_candidate_is_accepted_against_both_baselines():
    decisions = decided(frames())
    for name in ("autosage", "rows", "full", "tuned"):
        found = arm(decisions, name)
        assert (found["choice"], found["accepted"], found["wrong"]) == (GOOD, True, False)
        assert found["speedup"] == pytest.approx(4)
        assert found["regret"] == pytest.approx(1)
    assert arm(decisions, "autosage", "default")["speedup"] == pytest.approx(2)
    assert arm(decisions, "default")["choice"] == DEFAULT
    assert arm(decisions, "default")["regret"] == pytest.approx(2)


def test_the_cost_counts_drawing_and_all_runs_in_calls_of_the_vendor():
    decisions = decided(frames())
    probed = 0.03 * (4 + 2 + 1 + 5) * 1e-3 * 8 + 1e-4
    assert arm(decisions, "rows")["probe_calls"] == pytest.approx(probed / 4e-3)
    assert arm(decisions, "tuned")["probe_calls"] == pytest.approx(2)
    assert arm(decisions, "tuned")["first_seconds"] == pytest.approx(6e-3)


def test_a_misleading_subgraph_is_a_wrong_acceptance():
    decisions = decided(frames(subgraph=0.1))
    found = arm(decisions, "autosage")
    assert (found["choice"], found["accepted"], found["wrong"]) == (BAD, True, True)
    assert found["predicted"] == pytest.approx(8)
    assert found["winner_speedup"] == pytest.approx(0.8)
    assert found["regret"] == pytest.approx(5)
    assert not arm(decisions, "rows")["wrong"]


def test_the_guardrail_refuses_what_is_hardly_faster():
    tables = frames()
    tables["probes"].loc[tables["probes"]["method"] == "vendor", "best"] = 0.03 * 1e-3 / 0.93
    decisions = decided(tables)
    accepted = {name: arm(decisions, name, kind="alpha", sample="rows")["accepted"]
                for name in ("0.8", "0.9", "0.95", "0.98", "1")}
    assert accepted == {"0.8": False, "0.9": False, "0.95": True, "0.98": True, "1": True}
    refused = arm(decisions, "0.9", kind="alpha", sample="rows")
    assert (refused["choice"], refused["speedup"], refused["regret"]) == ("vendor", 1, pytest.approx(4))


def test_the_cap_leaves_out_candidates_that_come_late():
    first = arm(decided(frames(), cap_seconds=1e-9), "autosage")
    assert first["choice"] == DEFAULT
    assert first["probe_calls"] < arm(decided(frames()), "autosage")["probe_calls"]


def test_nothing_is_accepted_on_a_sample_that_is_too_small():
    tables = frames()
    tables["probes"]["sampled_nnz"] = 500
    assert not arm(decided(tables), "autosage")["accepted"]
    assert arm(decided(tables), "full")["accepted"]
    missing = {**frames(), "probes": frames()["probes"].query("sample == 'rows'")}
    found = arm(decided(missing), "autosage")
    assert (found["choice"], found["accepted"]) == ("vendor", False)
    assert math.isnan(found["predicted"])


def test_each_hub_threshold_is_a_candidate_of_its_own():
    decisions = decided(frames())
    hubs = decisions[(decisions["kind"] == "hub") & (decisions["sample"] == "all")]
    assert hubs[hubs["baseline"] == "vendor"].set_index("name")["speedup"].to_dict() == pytest.approx(
        {"never": 4 / 3, "q99": 1.6, "q95": 4 / 2.2, "q90": 4 / 2.1, "always": 2})
    assert not hubs[hubs["baseline"] == "default"]["accepted"].any()
