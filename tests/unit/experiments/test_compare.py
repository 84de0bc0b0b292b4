"""A comparison from its command line to its figures, on generated samples: arms run, are shared and fail alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hydra
import pandas as pd
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from run_loggers import forget_loggers
from small import SMALL

from sparloom import cli
from sparloom.__main__ import execute
from sparloom.data import Split
from sparloom.experiments import Arm
from sparloom.experiments.cognate import ArmResult, refuse_unequal
from sparloom.report import read_compared, read_run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
COMMON = ("'op=spmm'", "'recommends=false'", "'task.seeds=[0]'", "'selection.configs_per_matrix=40'")
TREES = ("+task.arms.trees={_target_:sparloom.experiments.Arm,group:spmm,experiment:finetune_spade,"
         "overrides:['task.methods=[trees]'],rows:{trees:trees},note:no network}")
TWO = ("~task.arms.gru", "~task.arms.transformer", "~task.arms.refit", "task.reference=cognate")
BROKEN = ("+task.arms.broken={_target_:sparloom.experiments.Arm,group:spmm,experiment:finetune_spade,"
          "overrides:['task.methods=[magic]'],rows:{cognate:magic}}")


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory) -> Callable[..., Path]:
    """Run a comparison in this process as run.py does; returns its folder."""
    folder = tmp_path_factory.mktemp("evaluated")

    def evaluated(experiment: str, *more: str) -> Path:
        places = [f"paths.{name}={folder / name}" for name in ("artifacts", "data", "outputs")]
        given = [f"experiment={experiment}", f"task.common=[{','.join(COMMON)}]", *SMALL, *places, *more]
        out = folder / experiment / f"{len(list(folder.glob('*/*')))}"
        GlobalHydra.instance().clear()
        with hydra.initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            cfg = hydra.compose("config", given)
            choices = hydra.compose("config", given, return_hydra_config=True).hydra.runtime.choices
            try:
                execute(cfg, out, cli.RunOptions(given, OmegaConf.to_container(choices), cfg))
            except cli.Reported as error:
                (out / "reported").write_text(str(error))
        return out

    yield evaluated
    forget_loggers()


@pytest.fixture(scope="module")
def predictors(evaluate) -> Path:
    """Figure 8 with two of its arms, one that fails, and one without network."""
    return evaluate("eval_figure08", *TWO, BROKEN, TREES)


def kept(out: Path) -> list[Path]:
    return sorted(path for path in (out.parents[1] / "artifacts" / "runs").iterdir() if path.is_dir())


def test_finished_arms_are_compared_and_the_failed_one_is_reported(predictors):
    assert (predictors / "reported").read_text() == "1 arms failed"
    rows = read_compared(predictors).rows.set_index("row")
    assert rows.index.tolist() == ["static", "cognate", "lstm", "magic", "trees", "optimum"]
    assert rows.loc["magic", "failure"].startswith("no method magic: task.methods knows static")
    assert rows.loc[["cognate", "lstm", "optimum"], "failure"].tolist() == ["", "", ""]
    assert rows.loc["cognate", "label"] == "MLP, trained at once"
    assert rows.loc["cognate", "paper_top1_speedup"] == 1.4
    assert rows.loc[["lstm", "trees"], "note"].tolist() == ["2 epochs of pre-training", "no network"]


def test_metrics_have_the_promised_keys(predictors):
    metrics = read_run(predictors).metrics
    bounded = ("top1_speedup", "top5_speedup", "top1_of_optimum", "top5_of_optimum", "opa", "kendall_tau", "ape_time",
               "ape_speedup")
    for row in ("cognate", "lstm"):
        for key in bounded:
            name = f"spmm/{row}/{key}"
            assert metrics[f"{name}_low"] <= metrics[name] <= metrics[f"{name}_high"]
        exact = {"target_labels": 200, "target_matrices": 5, "epochs": 2, "steps": 10, "seeds": 1, "source_epochs": 2}
        assert {key: metrics[f"spmm/{row}/{key}"] for key in exact} == exact
        assert metrics[f"spmm/{row}/source_labels"] > 0
        assert metrics[f"spmm/{row}/dce"] == 200_000 + metrics[f"spmm/{row}/source_labels"]
        assert metrics[f"spmm/{row}/top1_max"] >= metrics[f"spmm/{row}/top1_speedup"]
    assert metrics["spmm/optimum/top1_speedup"] >= metrics["spmm/cognate/top5_speedup"]
    assert "spmm/lstm/top1_over_cognate_low" in metrics
    assert "spmm/cognate/top1_over_cognate" not in metrics
    assert (metrics["arms"], metrics["failed_arms"]) == (4, 1)
    assert metrics["spmm/trees/target_labels"] == 200
    assert not {"spmm/trees/epochs", "spmm/trees/train_prl"} & set(metrics)


def test_matrices_of_one_split_are_compared_apart(evaluate, predictors, tmp_path):
    finished = kept(predictors)
    whole = read_compared(predictors).per_matrix
    names = sorted(whole["matrix"].unique())[:3]
    Split(dict.fromkeys(names, "test"), {name: name for name in names}).write(tmp_path / "split.csv")
    part = evaluate("eval_figure08", *TWO, TREES,
                    f"task.judged={tmp_path / 'split.csv'}")
    compared = read_compared(part)
    assert set(compared.per_matrix["matrix"]) == set(names)
    assert set(compared.rows["matrices"]) == {3}
    assert kept(part) == finished  # the runs of the arms are those from before
    Split({"other": "test"}, {"other": "other"}).write(tmp_path / "other.csv")
    failed = evaluate("eval_figure08", *TWO, TREES,
                      f"task.judged={tmp_path / 'other.csv'}")
    assert "judges none of the 1 test matrices" in (failed / "run.log").read_text() + (failed / "reported").read_text()


def test_rows_matrices_curves_and_figures_are_written(predictors):
    frame = pd.read_parquet(predictors / "per_matrix.parquet")
    assert set(frame["row"]) == {"static", "cognate", "lstm", "trees", "optimum"}
    assert len(frame) == 5 * frame["matrix"].nunique()
    assert set(pd.read_csv(predictors / "curves.csv")["row"]) == {"cognate", "lstm"}
    for ending in (".png", ".svg"):
        assert (predictors / "figure_spmm").with_suffix(ending).stat().st_size > 1000


def test_arms_do_not_replace_the_network_that_recommends(predictors):
    names = [path.name for path in (predictors.parents[1] / "artifacts" / "checkpoints" / "tiny").iterdir()]
    assert any(name.startswith("source_") for name in names)
    assert not any(name.startswith("finetuned_") for name in names)


def result(name: str, row: str, *, group: str = "spmm", config: str = "a", matrices: str = "xy",
           seconds: float = 1.0) -> ArmResult:
    judged = pd.DataFrame({"row": "optimum", "matrix": list(matrices), "best_seconds": seconds,
                           "baseline_seconds": 2.0})
    return ArmResult(name, Arm(group, "finetune_spade", {"cognate": row}), read_run_of(name), judged, pd.DataFrame(),
                     {0: frozenset({("m", config)})})


def read_run_of(name: str):
    from sparloom.report import Run

    return Run(Path(name), {})


@pytest.mark.parametrize(("changes", "message"), [
    ({"row": "one"}, "both have a row one"),
    ({"matrices": "xz"}, "are judged by 2 and 2 matrices, which are not the same"),
    ({"seconds": 1.5}, "are judged by different seconds of the same matrices"),
    ({"config": "b"}, "drew different labels with seed 0"),
])
def test_arms_that_do_not_compare_are_refused_by_name(changes, message):
    first, other = result("first", "one"), result("other", **{"row": "two", **changes})
    with pytest.raises(ValueError, match=f"arms first and other {message}: compare their runs, first and other, or"):
        refuse_unequal([first, other], same_labels=True)
    refuse_unequal([first, replace(other, arm=replace(other.arm, group="sddmm"))], same_labels=True)
