"""The command line before Hydra: what lists experiments, what is refused, and what a described accelerator implies."""

import pytest

from sparloom import cli


@pytest.fixture
def conf(tmp_path):
    (tmp_path / "experiment").mkdir()
    for name, text in {"finetune_spade": "Figure 4.\n# Takes 8 min.", "collect_cpu": "Samples. Takes 1 h."}.items():
        (tmp_path / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n# {text}\n")
    return tmp_path


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_without_an_experiment_all_are_listed(conf, capsys, arguments):
    with pytest.raises(SystemExit) as ending:
        cli.prepare(["run.py", *arguments], conf)
    shown = capsys.readouterr().out
    assert ending.value.code == 0
    assert [word for word in ("finetune_spade", "Figure 4", "8 min", "collect_cpu") if word not in shown] == []


@pytest.mark.parametrize(("arguments", "message"), [
    (["finetune_spad"], "no experiment chosen: give experiment=<name>; did you mean finetune_spade?"),
    (["op=spmm"], "no experiment chosen: give experiment=<name>; known are collect_cpu, finetune_spade"),
    (["experiment=finetune_spade", "space=chip.yaml", "samples=real"],
     "samples=real has no seconds of the accelerator that space=chip.yaml describes"),
])
def test_refused_command_lines(conf, arguments, message):
    with pytest.raises(cli.UsageError) as refusal:
        cli.prepare(["run.py", *arguments], conf)
    assert message in str(refusal.value)


@pytest.mark.parametrize("arguments", [
    ["experiment=collect_cpu"], ["experiment=collect_cpu", "--cfg", "job"], ["-m", "experiment=collect_cpu", "op=a,b"],
    ["experiment=collect_cpu", "~task.jobs"], ["task=collect"], ["experiment=collect_cpu", "space=null"],
])
def test_right_arguments_pass_unchanged(conf, arguments):
    assert cli.prepare(["run.py", *arguments], conf) == ["run.py", *arguments]


def test_a_described_accelerator_implies_its_platform_and_samples(conf):
    chosen = ["run.py", "experiment=finetune_spade", "space=chip.yaml"]
    assert cli.prepare(chosen, conf) == [*chosen, "platform@target=custom", "samples=csv"]
    assert cli.prepare([*chosen, "samples=csv"], conf) == [*chosen, "samples=csv", "platform@target=custom"]
