"""Experiments are listed by purpose in lines of 80 columns, and described by their files."""

from pathlib import Path

import pytest

from sparloom import cli
from sparloom.__main__ import describe
from sparloom.cli.experiments import GROUPS, OTHER

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf"


@pytest.fixture
def conf(tmp_path) -> Path:
    (tmp_path / "experiment").mkdir()
    return tmp_path


def written(conf: Path, name: str, header: str) -> None:
    (conf / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{header}task: {{}}\n")


def test_every_line_of_the_list_fits_80_columns_whole(capsys):
    cli.print_experiments(CONF)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "..." in line]
    for entry in cli.experiments(CONF):
        assert [line for line in lines if line.split()[:1] == [entry.name]]


@pytest.mark.parametrize("entry", cli.experiments(CONF), ids=lambda entry: entry.name)
def test_every_header_names_a_purpose_and_a_short_time(entry):
    assert entry.group in GROUPS, f"{entry.name}: add a line such as '# Group: benchmarks'"
    assert len(entry.time) <= 10


def test_experiments_are_listed_below_their_purpose(conf, capsys):
    written(conf, "b", "# Group: train\n# Train b.\n# Takes 3 min on 2 cores.\n")
    written(conf, "a", "# Group: benchmarks\n# Time a.\n# Takes 1 h 22 min, an estimate.\n")
    written(conf, "c", "# Measure c.\n")
    cli.print_experiments(conf)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:6]] == [
        ["Train"], ["b", "Train", "b", "3", "min"], ["Benchmarks"], ["a", "Time", "a", "~1", "h", "22", "min"],
        ["Other"], ["c", "Measure", "c"]]
    assert cli.experiments(conf)[2].group == OTHER


def test_help_of_an_experiment_shows_its_header_and_its_file(capsys):
    describe(["experiment=collect_cpu", "--help", "op=sddmm"], CONF)
    text = capsys.readouterr().out
    assert text.startswith("collect_cpu: Collect timed CPU schedules\n")
    assert "(COGNATE §4.1)." in text
    assert "  configs: 100                  # COGNATE §4.1\n" in text
    assert text.endswith("experiment=collect_cpu --cfg job\n")
