"""The command line before Hydra: names are checked, paths are quoted so that Hydra reads them unchanged."""

import itertools

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from sparloom import cli


@pytest.fixture
def conf(tmp_path):
    for name, text in {
        "experiment/finetune_spade": "# @package _global_\n# Figure 4.\n# Takes 8 min.\n",
        "experiment/collect_cpu": "# @package _global_\n# Samples. Takes 1 h on 2 cores.\n",
        "task/finetune": "x: 1\n", "op/spmm": "x: 1\n", "op/sddmm": "x: 1\n", "platform/spade": "x: 1\n",
    }.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_no_argument_lists_the_experiments(conf, capsys):
    with pytest.raises(SystemExit) as ending:
        cli.prepare(["run.py"], conf)
    shown = capsys.readouterr().out
    assert ending.value.code == 0
    assert "finetune_spade" in shown
    assert "Figure 4" in shown
    assert "8 min" in shown


def test_help_alone_lists_too(conf, capsys):
    with pytest.raises(SystemExit):
        cli.prepare(["run.py", "--help"], conf)
    assert "collect_cpu" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "message"), [
    (["experiment=finetun_spade"], "experiment 'finetun_spade' does not exist: did you mean finetune_spade?"),
    (["experiment=collect_cpu", "op=spm"], "op 'spm' does not exist: did you mean spmm"),
    (["experiment=collect_cpu", "platform@target=spad"], "platform 'spad' does not exist: did you mean spade?"),
    (["experiment=collect_cpu", "platfrm@target=spade"], "group 'platfrm' does not exist: did you mean platform?"),
    (["experiment=zzz"], "experiment 'zzz' does not exist: known are collect_cpu, finetune_spade"),
    (["finetune_spade"], "argument 'finetune_spade' is not of the form key=value"),
    (["op=spmm"], "no experiment chosen: give experiment=<name>, one of collect_cpu, finetune_spade"),
    (["-m", "experiment=collect_cpu", "op=spmm,sdmm"], "op 'sdmm' does not exist: did you mean sddmm"),
])
def test_wrong_names_suggest_the_nearest(conf, arguments, message):
    with pytest.raises(cli.UsageError) as refusal:
        cli.prepare(["run.py", *arguments], conf)
    assert message in str(refusal.value)


@pytest.mark.parametrize("arguments", [
    ["experiment=collect_cpu"], ["experiment=collect_cpu", "--cfg", "job"],
    ["-m", "experiment=collect_cpu", "op=spmm,sddmm"],
    ["experiment=collect_cpu", "+new.key=1"], ["experiment=collect_cpu", "~task.jobs"],
    ["experiment=collect_cpu", "hydra/launcher=joblib"], ["task=finetune"], ["experiment=collect_cpu", "op=spmm"],
])
def test_right_arguments_pass_unchanged(conf, arguments):
    assert cli.prepare(["run.py", *arguments], conf) == ["run.py", *arguments]


def test_a_described_accelerator_implies_its_platform_and_samples(conf):
    chosen = ["run.py", "experiment=finetune_spade"]
    assert cli.prepare([*chosen, "space=chip.yaml"], conf) == [
        *chosen, "space=chip.yaml", "platform@target=custom", "samples=csv"]
    assert cli.prepare([*chosen, "space=my chip.yaml", "samples=csv"], conf) == [
        *chosen, "space='my chip.yaml'", "samples=csv", "platform@target=custom"]
    assert cli.prepare([*chosen, "space=null"], conf) == [*chosen, "space=null"]
    with pytest.raises(cli.UsageError, match=r"samples=real has no seconds of the accelerator that space=chip\.yaml"):
        cli.prepare([*chosen, "space=chip.yaml", "samples=real"], conf)


@pytest.mark.parametrize("flag", [["--config-dir", "{}"], ["-cd", "{}"], ["--config-dir={}"]])
def test_option_files_of_config_dir_are_known(conf, tmp_path_factory, flag):
    more = tmp_path_factory.mktemp("more")
    (more / "experiment").mkdir()
    (more / "experiment" / "best.yaml").write_text("x: 1\n")
    arguments = [*(word.format(more) for word in flag), "experiment=best"]
    assert cli.prepare(["run.py", *arguments], conf)[1:] == arguments
    with pytest.raises(cli.UsageError, match="did you mean best"):
        cli.prepare(["run.py", *arguments[:-1], "experiment=besst"], conf)


def test_choices_are_those_that_can_be_composed(conf):
    arguments = ["experiment=collect_cpu", "experiment=best", "op=spmm,sddmm", "platform@target=spade", "task=null"]
    kept = ["experiment=collect_cpu", "platform@target=spade", "task=null"]
    assert cli.group_choices([*arguments, "seed=1"], [conf]) == kept


def read_back(argument: str) -> object:
    return OverridesParser.create().parse_override(argument).value()


@pytest.mark.parametrize("path", [
    "/data/a b.mtx", "/data/a,b.mtx", "/data/a=b.mtx", "/data/it's.mtx", '/data/"q".mtx', "/data/(1).mtx",
    "/d/[x]{y}.npz", "/d/back\\slash.mtx", "/d/ends\\", "/d/both\\'.mtx", "relative/größe.mtx", "/d/a:b.mtx",
    "/d/#1.mtx", "/d/100%.mtx", "/d/backup.mtx~", "/d/a@b+c$d.mtx",
])
def test_paths_with_special_characters_are_unchanged(conf, path):
    argument = cli.prepare(["run.py", "experiment=collect_cpu", f"matrix={path}"], conf)[2]
    assert read_back(argument) == path


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=20))
def test_any_file_name_is_unchanged(name):
    from sparloom.cli.arguments import _quoted

    path = f"/data/{name}.mtx"
    if "${" in path:
        return
    assert read_back(_quoted(f"matrix={path}")) == path


@pytest.mark.parametrize("key", ["task.pretrained", "samples.manifest", "samples.files.spmm", "paths.data"])
def test_all_keys_that_name_files_take_any_path(conf, key):
    argument = cli.prepare(["run.py", "experiment=collect_cpu", f"{key}=/a b/(1).pt"], conf)[2]
    assert read_back(argument) == "/a b/(1).pt"


def test_interpolations_and_quoted_values_stay(conf):
    arguments = ["experiment=collect_cpu", "matrix=${paths.root}", "corpus.mirror='a b'"]
    assert cli.prepare(["run.py", *arguments], conf)[1:] == arguments


def test_home_is_expanded(conf, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert cli.prepare(["run.py", "experiment=collect_cpu", "matrix=~/a.mtx"], conf)[2] == "matrix=/home/someone/a.mtx"


def swept(conf, *words: str) -> list[list[object]]:
    """Return the values that Hydra reads for the last argument of a sweep."""
    argument = cli.prepare(["run.py", "-m", "experiment=collect_cpu", *words], conf)[-1]
    override = OverridesParser.create().parse_override(argument)
    values = list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]
    return [getattr(value, "text", value) for value in values]


def test_a_sweep_over_files_runs_each(conf, tmp_path):
    names = [tmp_path / name for name in ("one.mtx", "a,b.mtx", "a b.mtx", "c=(1).mtx", "it's, so.mtx")]
    for path in names:
        path.write_text("")
    assert swept(conf, f"matrix={','.join(map(str, names))}") == [str(path) for path in names]
    assert swept(conf, f"matrix=choice({names[0]},{names[1]})") == [str(path) for path in names[:2]]
    assert swept(conf, f"matrix={names[0]}, {names[2]}") == [str(names[0]), str(names[2])]
    assert swept(conf, "matrix='x,y.mtx',z.mtx") == ["x,y.mtx", "z.mtx"]
    assert swept(conf, "matrix='q'.mtx,\"r\".mtx") == ["'q'.mtx", '"r".mtx']
    assert swept(conf, f"matrix={names[1]}") == [str(names[1])]
    assert swept(conf, "samples.files.spmm=a.csv,b c.csv") == ["a.csv", "b c.csv"]


def test_several_files_without_the_sweep_flag_are_refused(conf, tmp_path):
    for name in ("one.mtx", "two.mtx"):
        (tmp_path / name).write_text("")
    files = f"matrix={tmp_path}/one.mtx,{tmp_path}/two.mtx"
    with pytest.raises(cli.UsageError, match="matrix names 2 files: add -m for a run of each"):
        cli.prepare(["run.py", "experiment=collect_cpu", files], conf)
    (tmp_path / "hparams").mkdir()
    assert len(swept(conf, files)) == 2
    prepared = cli.prepare(["run.py", "experiment=collect_cpu", "hydra.mode=MULTIRUN", files], conf)
    assert prepared[-1] == files


def test_a_sweep_has_one_output_folder(conf):
    with pytest.raises(cli.UsageError, match="a sweep has one folder for all its runs"):
        cli.prepare(["run.py", "-m", "experiment=collect_cpu", "paths.outputs=a,b"], conf)


@pytest.mark.parametrize("key", ["paths.outputs", "paths.data", "paths.artifacts"])
@pytest.mark.parametrize("value", ["", "null", "''"])
def test_an_empty_folder_is_refused(conf, key, value):
    with pytest.raises(cli.UsageError, match=f"{key} is empty: give a folder, or leave the option out"):
        cli.prepare(["run.py", "experiment=collect_cpu", f"{key}={value}"], conf)


@pytest.mark.parametrize("name", ["1e5", "007", "true", "False", "nan", "1_000"])
def test_folders_named_like_numbers_are_unchanged(conf, name):
    for key in ("paths.outputs", "matrix"):
        argument = cli.prepare(["run.py", "experiment=collect_cpu", f"{key}={name}"], conf)[2]
        assert read_back(argument) == name


@pytest.mark.parametrize("name", ["${c}", "a${c}b", "${seed}", "${", "${a", "$${c}", "\\${c}"])
def test_a_name_that_reads_as_a_reference_is_refused(conf, tmp_path, name):
    (tmp_path / name).mkdir()
    for key, path in itertools.product(("matrix", "paths.outputs"), (tmp_path / name, tmp_path / name / "x")):
        with pytest.raises(cli.UsageError, match=r"in a path \$\{ begins a reference to another option; rename"):
            cli.prepare(["run.py", "experiment=collect_cpu", f"{key}={path}"], conf)


@pytest.mark.parametrize("value", ["${paths.root}/a.mtx", "${oc.env:HOME}", "${oc.env:A,${oc.env:B,/x}}/y",
                                   "'${paths.root}/a b.mtx'"])
def test_references_are_unchanged(conf, value):
    assert cli.prepare(["run.py", "experiment=collect_cpu", f"matrix={value}"], conf)[2] == f"matrix={value}"


def test_bytes_that_are_not_utf8_are_refused(conf):
    with pytest.raises(cli.UsageError, match=r"holds bytes that are not UTF-8: rename the file or folder"):
        cli.prepare(["run.py", "experiment=collect_cpu", "matrix=/a/\udcff.mtx"], conf)


def test_paths_that_the_configuration_cannot_represent_are_refused():
    cli.check_paths({"SPARLOOM_OUTPUTS": "/a b/(1)=,'x'"})
    for place, text in (("/a/${c}", r"SPARLOOM_OUTPUTS is /a/\$\{c\}: in a path"), ("/\udcff", "not UTF-8")):
        with pytest.raises(cli.UsageError, match=text):
            cli.check_paths({"SPARLOOM_OUTPUTS": place})
