"""The bench of encoders: methods agree in their own processes, and what is refused or wrong is left out."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("transformers")
pytest.importorskip("sentence_transformers")

from sparloom.experiments import BenchEncoders
from sparloom.experiments.cora import bench_encoders as bench
from sparloom.experiments.cora.text_encoders import _MicroBatches
from sparloom.ragged import LengthCorpus

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

METHODS = ("sparloom", "sparloom_bfloat16", "sparloom_int8", "torch", "torch_bfloat16",
           "sentence_transformers_packed", "missing")
TINY = {"kind": "bert", "width": 24, "layers": 2, "heads": 3, "hidden": 40}


@pytest.mark.slow
def test_methods_are_checked_and_timed_in_turn(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(bench, "SIZES", {"tiny": TINY})
    monkeypatch.setattr(bench, "measure_roof", lambda threads, rounds: SimpleNamespace(flops=1e9))
    monkeypatch.setattr(bench, "ENCODERS", {name: None for name in METHODS})
    out = tmp_path / "out"
    out.mkdir()
    metrics = BenchEncoders(
        models=["tiny"], lengths=LengthCorpus(None, ["cola"], 0), data=["cola"], batches=[1, 9],
        methods=METHODS, memory={"cola": 5}, training={}, start={}, repetitions=2, threads=1,
        journals=str(tmp_path / "journals"), seed=0).run(out)
    whole = pd.read_parquet(out / "per_case.parquet")
    frame = whole[whole["part"] == "inference"]
    assert len(frame) == 2 * len(METHODS)
    refused = frame[frame["failure"] != ""]
    assert set(refused["method"]) == {"missing"}
    assert refused["failure"].str.contains("KeyError: 'missing'").all()
    timed = frame[frame["failure"] == ""]
    assert (timed["seconds"].map(len) == 2).all()
    assert (timed["tokens"] <= timed["padded"]).all()
    assert metrics["tiny/over_torch"] > 0
    assert metrics["tiny/9/over_best"] == pytest.approx(metrics["tiny/9/over_torch"])
    assert metrics["tiny/9/bfloat16/over_best"] == pytest.approx(metrics["tiny/9/bfloat16/over_torch"])
    assert 0.9999 <= metrics["tiny/bfloat16/cosine_min"] < 1
    assert 0.999 <= metrics["tiny/int8/cosine_min"] < metrics["tiny/bfloat16/cosine_min"]
    rows = whole[(whole["part"] == "memory") & (whole["failure"] == "")].set_index("method")
    assert set(rows.index) == {"sparloom", "torch"}
    ratio = rows.loc["torch", "peak_bytes"] / rows.loc["sparloom", "peak_bytes"]
    assert metrics["tiny/memory/over_torch"] == pytest.approx(ratio)
    weights = 2 * (4 * 24 * 24 + 2 * 24 * 40)
    assert 4 * weights <= metrics["tiny/memory/packed_weights"] < 12 * weights  # panels of 24 columns are padded
    assert not list((tmp_path / "journals").iterdir())


def test_wrong_vectors_are_left_out(tmp_path) -> None:
    class Wrong:
        def ask(self, name, *arguments) -> np.ndarray | None:
            return np.full((1, 24), np.nan) if name == "vectors" else None

    settings = BenchEncoders(models=["tiny"], lengths=LengthCorpus(None, ["cola"], 0), data=["cola"], batches=[1],
                             methods=["torch"], memory={}, training={}, start={}, repetitions=1, threads=1,
                             journals=str(tmp_path), seed=0)
    settings._expected["tiny", 5] = np.ones((1, 24))
    settings._folder.mkdir(parents=True)
    with pytest.raises(AssertionError, match="vectors differ by nan"):
        settings._check(bench.EncoderCase("inference", "tiny", "cola", 1), Wrong(), np.array([5]), 1e-4)


def test_micro_batches_keep_the_order_of_sequences() -> None:
    sizes = []

    def encode(sequences):
        sizes.append([len(each) for each in sequences])
        return np.array([[each[0], len(each)] for each in sequences], np.float32)

    batches = _MicroBatches(encode)
    sequences = [[number] * length for number, length in enumerate((3, 9, 1, 5, 9, 2, 7, 4, 6))]
    batches.choose(sequences)
    sizes.clear()
    np.testing.assert_array_equal(batches(sequences), [[each[0], len(each)] for each in sequences])
    flat = [length for part in sizes for length in part]
    assert flat == sorted(flat, reverse=True)
