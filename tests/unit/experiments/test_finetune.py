"""The main experiment on generated samples: outputs, inputs and refusals."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from small import SMALL

from sparloom.errors import MissingArtifact, SchemaError
from sparloom.models import load_checkpoint
from sparloom.report import read_run

METHODS = {"random", "static", "trees", "zero_shot", "no_transfer", "cognate", "optimum"}


@pytest.fixture(scope="module")
def frame(trained):
    return pd.read_parquet(trained / "finetune_tiny" / "per_matrix.parquet")


def test_every_method_judges_every_matrix(frame):
    assert set(frame["method"]) == METHODS
    counts = frame.groupby("method").size()
    matrices = frame["matrix"].nunique()
    assert counts["cognate"] == counts["no_transfer"] == counts["trees"] == counts["static"] == 2 * matrices
    assert counts["zero_shot"] == counts["optimum"] == counts["random"] == matrices
    assert (frame["top5_seconds"] <= frame["top1_seconds"]).all()
    assert (frame["best_seconds"] <= frame["top5_seconds"] * (1 + 1e-9)).all()


def test_roles_do_not_overlap(trained, frame):
    split = json.loads((trained / "finetune_tiny" / "split.json").read_text())
    judged = set(split["judged"])
    assert judged == set(frame["matrix"]) == set(split["test"])
    for chosen in split["fine_tuning"].values():
        assert set(chosen) <= set(split["train"])
        assert not set(chosen) & judged
    assert not set(split["train"]) & (set(split["test"]) | set(split["validation"]))


def test_labels_read_are_as_many_as_allowed(trained):
    labels = pd.read_parquet(trained / "finetune_tiny" / "labels.parquet")
    assert labels.groupby("seed").size().to_dict() == {0: 120, 1: 120}
    assert set(labels.groupby(["seed", "matrix"]).size()) == {40}


def test_networks_are_probed(trained, frame):
    """The embeddings cost something when they are permuted only if choices depend on the matrix."""
    metrics = json.loads((trained / "finetune_tiny" / "returned.json").read_text(encoding="utf-8"))
    probes = {key.removeprefix("test/probes/"): value for key, value in metrics.items() if "/probes/" in key}
    assert set(probes) == {"own_of_optimum", "permuted_of_optimum", "permutation_importance"}
    assert probes["own_of_optimum"] == pytest.approx(metrics["test/equal_bins/top1_of_optimum"], rel=1e-5)
    assert probes["permutation_importance"] == pytest.approx(probes["own_of_optimum"] - probes["permuted_of_optimum"])


def test_equal_seeds_choose_equally(build, trained, frame, tmp_path):
    build("finetune_tiny", *SMALL, "task.seeds=[1]", "task.methods=[cognate]", folder=trained).run(tmp_path)
    again = pd.read_parquet(tmp_path / "per_matrix.parquet")
    before = frame[(frame["method"] == "cognate") & (frame["seed"] == 1)].set_index("matrix")
    after = again[again["method"] == "cognate"].set_index("matrix")
    assert before["config"].to_dict() == after["config"].to_dict()


def test_judging_by_validation_reads_no_test_matrix(build, trained, tmp_path):
    metrics = build("finetune_tiny", *SMALL, "task.eval_role=validation", "task.methods=[static,cognate]",
                    "task.seeds=[0]", folder=trained).run(tmp_path)
    split = json.loads((tmp_path / "split.json").read_text())
    assert set(split["judged"]) == set(split["validation"])
    assert "validation/top1_speedup" in metrics
    assert not any(key.startswith("test/") for key in metrics)


def test_figures_curves_and_checkpoints_are_written(trained):
    out = trained / "finetune_tiny"
    for name in ("speedups", "matrices", "curves"):
        assert (out / f"{name}.png").stat().st_size > 1000
        assert (out / f"{name}.svg").stat().st_size > 1000
    curves = pd.read_csv(out / "curves.csv")
    assert set(curves["method"]) == {"no_transfer", "cognate"}
    assert curves.groupby(["method", "seed"])["epoch"].apply(list).map(lambda epochs: epochs == [1, 2]).all()
    assert curves[["train/prl", "validation/prl", "validation/opa"]].notna().all().all()
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == [
        "cognate_0.pt", "cognate_1.pt", "no_transfer_0.pt", "no_transfer_1.pt"]


@pytest.mark.parametrize(("encoder", "rows"), [("autoencoder", 20), ("mapping", 1)])
def test_loss_of_an_encoder_is_logged_and_changes_no_digit(build, tmp_path, encoder, rows):
    few = ["encoder.epochs=20"] if encoder == "autoencoder" else []
    metrics = {}
    for logger in ("csv", "none"):
        task = build("autoencode_spade", f"encoder={encoder}", f"logger={logger}", *few, folder=tmp_path / logger)
        (tmp_path / logger).mkdir()
        metrics[logger] = task.run(tmp_path / logger)
    assert metrics["csv"]["least_distance"] == metrics["none"]["least_distance"]
    first, second = (sorted((tmp_path / logger / "artifacts").rglob("latent_*.pt"))[0] for logger in metrics)
    assert first.read_bytes() == second.read_bytes()
    assert len(pd.read_csv(tmp_path / "csv" / "training" / "metrics.csv")) == rows


def test_trees_may_read_the_score_of_the_source(trained, build, tmp_path, capsys):
    methods = "task.methods=[trees,trees_source]"
    metrics = build("finetune_tiny", *SMALL, methods, "task.seeds=[1]", folder=trained).run(tmp_path)
    assert metrics["test/trees_source_source_labels"] > metrics["test/trees_source_labels"] == 0
    assert metrics["test/trees_source_target_labels"] == metrics["test/trees_target_labels"]
    frame = pd.read_parquet(tmp_path / "per_matrix.parquet").set_index("method")
    assert not np.allclose(frame.loc["trees", "kendall_tau"], frame.loc["trees_source", "kendall_tau"])
    assert "trees + source top-1" in capsys.readouterr().out


def test_missing_prerequisites_name_their_experiment(build, tmp_path):
    with pytest.raises(MissingArtifact) as missing:
        build("finetune_tiny", *SMALL, "op=sddmm", folder=tmp_path).run(tmp_path)
    assert missing.value.experiment == "autoencode_spade"
    assert "op=sddmm" in missing.value.overrides


def test_missing_source_is_reported_before_any_prerequisite_is_made(build, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"lost\.pt does not exist: task\.pretrained is .*=pretrain_cpu; null"):
        build("finetune_tiny", *SMALL, f"task.pretrained={tmp_path / 'lost.pt'}", folder=tmp_path).run(tmp_path)


def test_source_that_knows_the_judging_matrices_is_refused(build, trained, tmp_path):
    message = (r"source_cpu_many_workers_32_single_spmm_cognate-\w+\.pt was trained on 12 of the matrices that judge, "
               r"or on versions of them \(tiny/.*, \.\.\.\): train it on others \(experiment=pre")
    with pytest.raises(ValueError, match=message):
        build("finetune_tiny", *SMALL, "task.eval_role=train", folder=trained).run(tmp_path)


def test_network_of_other_settings_is_refused(build, trained, tmp_path):
    source, = trained.glob("artifacts/checkpoints/tiny/source_cpu_many_*single*")
    given = ("predictor.fusion=sum", f"task.pretrained={source}")
    with pytest.raises(SchemaError, match=r"predictor.fusion=concat instead of sum"):
        build("finetune_tiny", *SMALL, *given, folder=trained).run(tmp_path)


def test_pretraining_keeps_the_best_epoch_and_its_split(trained):
    out = trained / "pretrain_cpu"
    split = json.loads((out / "split.json").read_text())
    assert len(split["train"]) == 12
    assert split["validation"]
    assert not split["test"]
    with pytest.raises(FileNotFoundError):
        read_run(out)


def test_pretraining_takes_convolutions_and_leaves_them_as_they_are(build, trained, tmp_path):
    """Another predictor on given convolutions; it has learned, and one with other convolutions is refused."""
    source, = trained.glob("artifacts/checkpoints/tiny/source_cpu_many_*single*")
    shutil.copytree(trained / "artifacts", tmp_path / "artifacts")
    given = f"task.convolutions={source}"
    build("pretrain_cpu", *SMALL, "predictor.fusion=sum", given, folder=tmp_path).run(tmp_path)
    made, = set((tmp_path / "artifacts/checkpoints/tiny").glob("source_cpu_many_*")) - {
        tmp_path / "artifacts/checkpoints/tiny" / source.name}
    before, after = (load_checkpoint(path, kind="cognate").weights for path in (source, made))
    convolutions = [name for name in before if name.startswith("featurizer.weights.")]
    assert len(convolutions) == 12
    assert all(torch.equal(before[name], after[name]) for name in convolutions)
    assert not torch.equal(before["featurizer.head.0.weight"], after["featurizer.head.0.weight"])
    with pytest.raises(SchemaError, match=r"has other convolutions than this network: featurizer.cells=counts instead"):
        build("pretrain_cpu", *SMALL, "model.net.featurizer.cells=ones", given, folder=tmp_path).run(tmp_path)


def test_a_network_trained_anew_takes_the_convolutions_of_the_usual_one(build, trained, tmp_path):
    shutil.copytree(trained / "artifacts", tmp_path / "artifacts")
    anew = "+checkpoints.variant=refit"
    with pytest.raises(MissingArtifact, match=r"_refit of tiny samples") as told:
        build("finetune_tiny", *SMALL, anew, folder=tmp_path).run(tmp_path)
    assert anew in told.value.overrides
    build("pretrain_cpu", *SMALL, anew, folder=tmp_path).run(tmp_path)
    made, = (tmp_path / "artifacts/checkpoints/tiny").glob("source_cpu_many_*_refit.pt")
    usual = load_checkpoint(made.with_name(made.name.replace("_refit", "")), kind="cognate").weights
    weights = load_checkpoint(made, kind="cognate").weights
    same = {name for name in usual if name.startswith("featurizer.weights.")}
    assert all(torch.equal(weights[name], usual[name]) for name in same)
    assert not torch.equal(weights["featurizer.head.0.weight"], usual["featurizer.head.0.weight"])
    with pytest.raises(ValueError, match=r"checkpoints\.variant='other' is not null or refit"):
        replace(build("pretrain_cpu", folder=tmp_path).checkpoints, variant="other")


@pytest.mark.parametrize("encoder", ["augmentation", "mapping"])
def test_encoders_with_slots_know_simulated_cores_as_the_cpu(build, tmp_path, encoder):
    given = ("samples=tiny", "logger=none", f"encoder={encoder}")
    for target in ("cpu", "cpu_many_single"):
        build("autoencode_cpu", *given, f"platform@target={target}", folder=tmp_path).run(tmp_path)
    stored = sorted((tmp_path / "artifacts/checkpoints/tiny").glob("latent_*"))
    first, second = (load_checkpoint(path, kind="encoder").weights for path in stored)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
