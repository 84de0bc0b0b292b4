"""Trees that choose kernels, fitted to made-up samples of tiny matrices: what they learn, and what is written."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from sparloom.data import Sample, SampleTable
from sparloom.experiments import ChooseKernels
from sparloom.experiments.autosage.learned_choice import rounded
from sparloom.models.performance import BoostingConfig, Rows
from sparloom.ops import SDDMM, SpMM
from sparloom.platforms import CpuKernels
from sparloom.sparse import SyntheticCorpus
from sparloom.tuning.sparse import choice

CORPUS = SyntheticCorpus([4000], 3, 0, ["uniform", "hub_rows", "nearest"])
OPS = {"spmm": SpMM(), "sddmm": SDDMM()}
WIDTHS = (64, 256)
GROWTH = BoostingConfig(trees=0, patience=0, leaves=16, depth=-1, rows_per_leaf=5, learning_rate=0.3, lasso=0.0,
                        ridge=0.0, row_share=1.0, column_share=1.0, bins=31, threads=1, seed=0)
MACHINE = {"cache_l1d": "32K", "cache_l2": "1024K", "cache_l3": "32768K"}


@dataclass(frozen=True)
class MadeSamples:
    """Prefetching pays for wide operands of SpMM, and for SDDMM on one of two processors only."""

    sddmm_gain: float

    def table(self, platform, preset, op):
        rows = [
            Sample(op=op, platform=platform, preset=preset, matrix=entry.name, width=width, config=config.key,
                   round=part, seconds=(1e-3 * self.factor(op, width, config),), cpu_seconds=(), kind="wall",
                   failure=None, stolen=False, machine="m", commit="", started="2000-01-01T00:00:00Z")
            for entry in CORPUS.entries() for width in WIDTHS for part in (0, 1)
            for config in CpuKernels(2, width).family(OPS[op]).space()]
        return SampleTable.of(rows, [{"machine": MACHINE}])

    def factor(self, op, width, config):
        gains = config["prefetch"] == 4 and config["order"] == "natural"
        return 1 - (self.sddmm_gain if op == "sddmm" else 0.2 * (width == 256)) * gains

    def split(self):
        names = [entry.name for entry in CORPUS.entries()]
        return {name: "test" if number % 3 == 0 else "train" for number, name in enumerate(names)}


def task():
    presets = {op: {"t2": "today"} for op in ("spmm", "sddmm")}
    return ChooseKernels(MadeSamples(0.2), MadeSamples(-0.2), presets, CORPUS, {"direct": 6, "prepared": 12}, GROWTH,
                         {"trees": 20}, margin=0.01, preparation=0.03, seed=0)


@pytest.mark.cc
def test_trees_learn_what_pays_and_are_written_where_they_pay_on_another_processor(tmp_path):
    metrics = task().run(tmp_path)
    for setting in ("direct", "prepared"):
        assert metrics[f"spmm/{setting}/test/trees/over_rule"] == pytest.approx(0.8**0.5, rel=1e-3)
        assert metrics[f"spmm/{setting}/test/trees/regret"] == pytest.approx(1, rel=1e-3)
        assert metrics[f"sddmm/{setting}/test/trees/over_rule"] == pytest.approx(0.8, rel=1e-3)
        assert metrics[f"sddmm/{setting}/today/trees/over_rule"] == pytest.approx(1.2, rel=1e-3)
        assert (metrics[f"spmm/{setting}/accepted"], metrics[f"sddmm/{setting}/accepted"]) == (1, 0)
    frame = pd.read_parquet(tmp_path / "per_case.parquet")
    chosen = frame[(frame["chooser"] == "trees") & (frame["op"] == "spmm") & (frame["setting"] == "direct")]
    assert set(chosen.loc[chosen["width"] == 256, "config"].str.contains("prefetch=4")) == {True}
    assert set(chosen.loc[chosen["width"] == 64, "config"].str.contains("prefetch=0")) == {True}
    written = (tmp_path / "choice_tables.hpp").read_text()
    assert "kNodesSpmmDirect" in written
    assert "Sddmm" not in written
    assert {path.name for path in tmp_path.glob("*.txt")} == {"spmm_direct.txt", "spmm_prepared.txt"}


def test_rounded_trees_predict_multiples_of_the_unit_near_the_original():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, len(choice.FEATURES)))
    booster = GROWTH.with_trees(8).train(Rows(features, np.tanh(features[:, 0])), choice.FEATURES)
    found = rounded(booster).predict(features)
    assert (found * 2**15 == np.round(found * 2**15)).all()
    assert np.median(np.abs(found - booster.predict(features))) < 1e-3
