"""Arms of a comparison: their overrides, and when runs are shared, reused or repeated."""

import hashlib
import json
from pathlib import Path

import pytest

from sparloom import cli
from sparloom.files import write_sums

MLP = {"experiment": "finetune_spade", "rows": {"cognate": "mlp"}}
LSTM = {"experiment": "finetune_spade", "overrides": ["predictor=lstm", "trainer.epochs=3"]}


class Runner:
    """Fake runner: composes trees from the overrides alone, writes metrics.json and records each run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ran = folder, []

    def compose(self, overrides: list[str]) -> cli.ArmRun:
        if "predictor=broken" in overrides:
            raise cli.Reported("predictor 'broken' does not exist")

        def execute(kept: Path) -> None:
            self.ran.append(sorted(overrides))
            kept.mkdir(parents=True)
            if "predictor=failing" in overrides:
                raise cli.Reported("no memory")
            (kept / "metrics.json").write_text("{}")

        return cli.ArmRun({"overrides": sorted(overrides), "paths": {"data": str(self.folder)}}, execute)

    def run(self, given: tuple[str, ...] = (), data: str | None = None, **arms: dict) -> cli.Arms:
        out = self.folder / "eval" / "now"
        return cli.run_arms(arms, common=["recommends=false"], given=given, compose=self.compose,
                            folder=self.folder / "runs", data=data, out=out)


@pytest.fixture
def runner(tmp_path):
    return Runner(tmp_path)


def test_overrides_of_an_arm_win_over_common_ones_and_the_command_line():
    found = cli.arm_overrides(
        LSTM, common=["op=spmm", "task.seeds=[0]"],
        given=["experiment=eval_figure08", "op=sddmm", "+trainer.epochs=9", "samples=tiny", "task.columns=[opa]",
               "hparams=seeds", "hydra.run.dir=/x", "~task.arms.mlp", "paths.data=/d"])
    assert found == ["experiment=finetune_spade", "predictor=lstm", "trainer.epochs=3", "op=spmm", "task.seeds=[0]",
                     "samples=tiny", "paths.data=/d"]


def test_folders_differ_if_an_option_changes_the_result():
    tree = {"seed": 0, "paths": {"data": "/a"}, "prepare": True, "debug": False, "objective": None}
    same = {"seed": 0, "paths": {"data": "/b"}, "prepare": False, "debug": True, "objective": "x"}
    assert cli.digest(tree, "md5") == cli.digest(same, "md5")
    assert cli.digest(tree, "md5") == cli.digest({**tree, "backend": "torch", "backends": {"torch": "x"}}, "md5")
    assert len({cli.digest(tree, "md5"), cli.digest(tree, None), cli.digest({**tree, "seed": 1}, "md5")}) == 3


def test_equal_arms_share_a_run_and_a_second_comparison_runs_nothing(runner):
    first = runner.run(mlp=MLP, lstm=LSTM, again={**MLP, "rows": {"cognate": "other"}})
    assert len(runner.ran) == 2
    assert first.runs["mlp"] == first.runs["again"] != first.runs["lstm"]
    assert not first.failures
    assert runner.run(lstm=LSTM, mlp=MLP).runs == {name: first.runs[name] for name in ("mlp", "lstm")}
    assert len(runner.ran) == 2


def test_a_failing_arm_does_not_stop_the_others_and_is_retried(runner, caplog):
    arms = {"failing": {**MLP, "overrides": ["predictor=failing"]},
            "broken": {**MLP, "overrides": ["predictor=broken"]}, "mlp": MLP}
    found = runner.run(**arms)
    assert found.failures == {"failing": "no memory", "broken": "predictor 'broken' does not exist"}
    assert list(found.runs) == ["mlp"]
    runner.run(**arms)
    assert len(runner.ran) == 3


def test_a_run_is_repeated_if_its_input_files_changed(runner, tmp_path):
    source = tmp_path / "source.pt"
    source.write_bytes(b"old")
    kept = Path(runner.run(mlp=MLP).runs["mlp"])
    listed = {str(source): hashlib.sha256(b"old").hexdigest(), str(tmp_path / "gone.pt"): "00"}
    (kept / "made_from.json").write_text(json.dumps(listed))
    assert cli.stale(kept) is None
    source.write_bytes(b"new")
    assert cli.stale(kept) == f"older than {source}"
    runner.run(mlp=MLP)
    assert len(runner.ran) == 2
    assert not (kept / "made_from.json").exists()


def test_a_killed_run_restarts_in_an_empty_folder(runner):
    kept = Path(runner.run(mlp=MLP).runs["mlp"])
    (kept / "metrics.json").unlink()
    (kept / "half.csv").touch()
    assert cli.stale(kept) == "not finished"
    runner.run(mlp=MLP)
    assert sorted(path.name for path in kept.iterdir()) == ["metrics.json"]


def test_an_override_that_changes_no_arm_is_refused(runner):
    with pytest.raises(cli.UsageError, match=r"predictor=gru would change nothing: all 1 arms .* set predictor"):
        runner.run(given=("predictor=gru",), lstm=LSTM)
    runner.run(given=("predictor=gru",), lstm=LSTM, mlp=MLP)
    assert any("predictor=gru" in overrides for overrides in runner.ran)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\x00", b"[" * 100_000, b"3"])
@pytest.mark.parametrize("name", ["metrics.json", "made_from.json"])
def test_a_run_with_damaged_files_is_repeated(runner, name, content):
    kept = Path(runner.run(mlp=MLP).runs["mlp"])
    (kept / name).write_bytes(content)
    assert cli.stale(kept) == f"damaged ({name})"
    assert not runner.run(mlp=MLP).failures
    assert len(runner.ran) == 2
    assert cli.stale(kept) is None


def test_a_run_whose_metrics_differ_from_its_checksums_is_repeated(runner):
    kept = Path(runner.run(mlp=MLP).runs["mlp"])
    write_sums(kept, {})
    assert cli.stale(kept) is None
    (kept / "metrics.json").write_text('{"speedup": 2.0}')
    assert cli.stale(kept) == "damaged (metrics.json)"
