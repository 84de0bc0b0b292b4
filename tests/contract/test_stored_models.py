"""What the data store has: source models that depend on the matrix, a small model of GEMM, samples of both parts."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from sparloom.data import Manifest, ensure_data, matrix_samples
from sparloom.experiments.cognate.evaluation_data import with_statistics
from sparloom.experiments.harness import best_in, labels_with_noise
from sparloom.experiments.trees import best_configs, gemm_subject
from sparloom.models import CognateModel, swapped_accuracy
from sparloom.models.performance import load_performance
from sparloom.report import efficiencies

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_source_model_depends_on_the_matrix(op: str) -> None:
    ensure_data(ROOT / "data")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", overrides=["experiment=pretrain_cpu", f"op={op}", f"paths.root={ROOT}"])
    task, platform = instantiate(config.task), instantiate(config.source)
    space = platform.space(task.op)
    name = task.checkpoints.source(platform, task.op, task.recipe.module.net)
    model = CognateModel.load(ROOT / "data" / "checkpoints" / f"{name}.pt", net=task.recipe.module.net, space=space)
    labels = labels_with_noise(task.samples.table(platform.name, platform.preset, op), space.default().key)
    roles = task.samples.split()
    held = labels[[roles[name] == "validation" for name in labels["matrix"]]]
    accuracy = swapped_accuracy(model.net, matrix_samples(held, with_statistics(
        task.samples.inputs(), task.samples.statistics()), space))
    assert accuracy["opa"] > accuracy["opa_swapped"] + 0.02


@pytest.mark.slow
def test_small_model_of_gemm_chooses_fast_kernels(tmp_path: Path) -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", overrides=["experiment=fit_trees", f"paths.root={ROOT}",
                                              f"paths.artifacts={tmp_path}"])
    task = instantiate(config.task)
    whole = gemm_subject(task.samples, task.gemm_platform, task.gemm, judging=task.judging_sweep)
    subject = whole.take(~whole.unasked)
    folder = best_in(task.models.find(task.gemm_platform, task.gemm, task.samples))
    assert folder.name == "small"
    model = load_performance(folder, spec=subject.spec, space=task.gemm_platform.space(task.gemm).digest())
    choices = best_configs(subject, model.over(subject.measured.configs).score(subject.measured.problems))
    reached = efficiencies(subject.judged.seconds)[np.arange(len(subject)), choices]
    assert reached.mean() > 0.94  # it has learned these shapes; one configuration for all reaches 0.91


def test_final_figures_judge_other_matrices_and_learn_from_the_same() -> None:
    ensure_data(ROOT / "data")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        real, final, joined = (instantiate(compose("config", overrides=[f"paths.root={ROOT}", *chosen]).samples)
                               for chosen in ((), ("samples=final",), (
                                   "samples=final", "samples.training=null", "samples.test=null")))
    assert [Counter(source.split().values()) for source in (real, final, joined)] == [
        {"train": 170, "validation": 34, "test": 152}, {"train": 170, "validation": 34, "test": 40},
        {"train": 202, "validation": 39, "test": 192}]
    assert {name for name, role in final.split().items() if role != "test"} == {
        name for name, role in real.split().items() if role != "test"}
    for preset in ("cognate32", "cognate32_205"):
        for op in ("spmm", "sddmm"):
            rows = Counter(joined.table("spade", preset, op).frame()["matrix"])
            assert set(rows) == set(joined.split())
            assert set(rows.values()) == {256}
    packaged = ROOT / "src" / "sparloom" / "sparse"
    for part, source in (("suitesparse", joined.development), ("suitesparse_final", joined.final)):
        manifest = Manifest.read(packaged / f"{part}.csv")
        manifest.check(source.inputs())
        assert set(manifest.matrices) == set(source.split()) == set(source.statistics().index) == set(source.walks())
