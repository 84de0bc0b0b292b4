"""Numbers, tables and figures of the evaluation of ragged programs, from generated rows."""

import numpy as np
import pandas as pd
import pytest

from sparloom.report import (
    RAGGED_PARTS,
    hoisting_frame,
    over_ideal,
    over_ragged,
    pad_fusion_frame,
    prelude_frame,
    storage_frame,
)
from sparloom.report.ragged import turn_metrics, turn_ratios

SECONDS = {"dense": 1.0, "vloops": 1.1, "vdims": 4.0, "hoisted": 1.25, "padded": 2.0, "split": 1.6, "hfused": 1.5,
           "exact": 1.0, "separate_loops": 5.0, "inlined_loops": 4.0, "separate_products": 3.0, "inlined_products": 2.0,
           "changes": 0.75, "sparloom": 1.0, "torch": 2.0, "graph": 1.0, "graph_unhoisted": 2.0, "graph_prelude": 0.5,
           "sparse": 1.25, "sparse_unhoisted": 6.0, "sparse_prelude": 2.5}
ARMS = {"hoisting": ("dense", "vloops", "vdims", "hoisted"), "splitting": ("padded", "split", "hfused", "exact"),
        "pad_fusion": ("separate_loops", "inlined_loops", "separate_products", "inlined_products", "changes",
                       "sparloom"),
        "breakdown": ("sparloom", "torch"),
        "storage": ("graph", "graph_unhoisted", "graph_prelude", "sparse", "sparse_unhoisted", "sparse_prelude")}
OPERATORS = {"hoisting": ("qkt", "qkt_fused"), "splitting": ("qkt", "attnv"), "pad_fusion": ("",),
             "breakdown": ("qkv", "attention"), "storage": ("qkt", "softmax")}
TABLE_BYTES = {"graph": 2048, "sparse": 8192}
PRELUDES = {"shared": (1.0, 0.0), "unshared": (7.0, 0.0), "redundant": (3.0, 30.0), "by_tensor": (1.0, 5.0),
            "by_layout": (0.5, 5.0), "sparse_redundant": (200.0, 0.0), "sparse_by_tensor": (100.0, 0.0)}


def timed(seconds):
    return {"median": seconds, "p10": 0.9 * seconds, "p90": 1.1 * seconds, "stolen": False, "seconds": [seconds] * 3}


@pytest.fixture
def frame():
    rows = []
    for data, most in (("race", 2.0), ("cola", 8.0)):
        for size in (32, 128):
            flops = {"dense": most, "partial": 1.21 if data == "race" else 1.0, "own": 1.0, "ideal": 1.0}
            rows += [{"part": "computation", "data": data, "size": size, "operator": kernel, "method": method,
                      "flops": scale * flops[method]} for kernel, scale in (("qkv", 3e9), ("scores", 1e9))
                     for method in flops]
            rows += [{"part": "computation", "data": data, "size": size, "operator": "causal", "method": method,
                      "flops": count} for method, count in (("dense", 4e6), ("ideal", 2e6), ("own", 2.5e6))]
            rows += [{"part": "prelude", "data": data, "size": size, "operator": "", "method": arm,
                      "storage_bytes": 1024 * storage, "fusion_bytes": 1024 * fusion,
                      **timed(1e-6 * (storage + fusion))} for arm, (storage, fusion) in PRELUDES.items()]
        rows += [{"part": "activations", "data": data, "size": 64, "operator": tensor, "method": method,
                  "bytes": count * scale} for tensor, scale in (("qkv", 1.0), ("ff1", 3.0))
                 for method, count in (("dense", most), ("partial", 1.5), ("ragged", 1.0), ("own", 0.5))]
    for part, operators in OPERATORS.items():
        rows += [{"part": part, "data": "" if part == "hoisting" else "race", "size": 4, "operator": operator,
                  "method": arm, "storage_bytes": TABLE_BYTES.get(arm), **timed(SECONDS[arm])}
                 for operator in operators for arm in ARMS[part]]
    return pd.DataFrame(rows)


def metrics(frame, part):
    return RAGGED_PARTS[part].metrics(frame)


def test_computation_wasted_by_padding(frame):
    found = metrics(frame, "computation")
    assert found["padding/batch_32"] == pytest.approx(0.1)
    assert found["padding/batch_128_max"] == pytest.approx(0.21)
    assert found["padding_dense/batch_32"] == pytest.approx(3.0)
    assert found["padding_own/batch_32"] == pytest.approx(0)
    assert found["padding_own/causal_batch_32"] == pytest.approx(0.25)
    assert over_ideal(frame).loc[("cola", 32), "dense"] == pytest.approx(8.0)


def test_memory_wasted_by_padding(frame):
    found = metrics(frame, "computation")
    assert found["memory/dense_over_ragged"] == pytest.approx(4.0)
    assert found["memory/dense_over_own_max"] == pytest.approx(16.0)
    assert over_ragged(frame).loc["race", "partial"] == pytest.approx(1.5)


def test_preludes(frame):
    found = metrics(frame, "prelude")
    assert found["prelude/race_32/kb_redundant_over_shared"] == pytest.approx(33)
    assert found["prelude/race_32/over_unshared"] == pytest.approx(7)
    rows = prelude_frame(frame)
    assert rows.loc[("race", 128, "redundant"), "paper's fusion kB"] == 2609.58
    assert np.isnan(rows.loc[("race", 128, "shared"), "paper's fusion kB"])


def test_ratios_of_interleaved_runs(frame):
    hoisting, splitting = metrics(frame, "hoisting"), metrics(frame, "splitting")
    assert hoisting["hoisting/qkt/vdims_slowdown"] == pytest.approx(4.0)
    assert hoisting["hoisting/qkt/hoisted_over_vdims"] == pytest.approx(3.2)
    assert hoisting_frame(frame).loc["qkt_fused", "hoisted"] == pytest.approx(1.25)
    assert splitting["splitting/attnv/race_4/exact_over_padded"] == pytest.approx(2.0)
    padding, breakdown = metrics(frame, "pad_fusion"), metrics(frame, "breakdown")
    assert padding["pad_fusion/race_4/inlined_over_separate_products"] == pytest.approx(1.5)
    assert padding["pad_fusion/race_4/changes_share"] == pytest.approx(0.25)
    assert pad_fusion_frame(frame).loc[("race", 4), "sparloom"] == pytest.approx(1000)
    assert breakdown["breakdown/race_4/total_over_torch"] == pytest.approx(2.0)
    assert breakdown["breakdown/race_4/qkv_share"] == pytest.approx(0.5)


def test_two_schemes_to_find_elements(frame):
    found = {name.removeprefix("storage/qkt/race_4/"): value for name, value in metrics(frame, "storage").items()}
    assert found["over_sparse"] == pytest.approx(1.25)
    assert found["unhoisted_over_sparse"] == pytest.approx(3)
    assert found["prelude_over_sparse"] == pytest.approx(5)
    assert found["with_prelude_over_sparse"] == pytest.approx(2.5)
    assert found["kb_sparse_over_graph"] == pytest.approx(4)
    assert found["sparse_prelude_seconds"] == 2.5
    assert storage_frame(frame).loc[("softmax", "race", 4), "sparse kB"] == pytest.approx(8)


def test_turns_are_compared_one_by_one():
    case = pd.DataFrame({"method": ["a", "b"], "seconds": [[1.0, 2.0, 1.0], [3.0, 2.0, 5.0, 9.0]]}).set_index("method")
    np.testing.assert_array_equal(turn_ratios(case, "a", "b"), [3.0, 1.0, 5.0])
    assert turn_metrics("k", turn_ratios(case, "a", "b")) == pytest.approx({"k": 3.0, "k_p10": 1.4, "k_p90": 4.6})


@pytest.mark.parametrize("part", RAGGED_PARTS)
def test_figures_are_drawn_and_the_same_again(frame, part, tmp_path):
    for name, draw in RAGGED_PARTS[part].figures.items():
        for again in ("once", "again"):
            draw(frame, tmp_path / again)
        assert (tmp_path / "once.png").read_bytes() == (tmp_path / "again.png").read_bytes(), name
