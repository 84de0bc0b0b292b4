"""Commands of docs/gpu_status.md and targets of stored configurations can still be run."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import hydra
import pytest
from binding import faults, locate
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from sparloom import cli

ROOT = Path(__file__).parents[2]
COMMANDS = [shlex.split(command) for command in
            re.findall(r"`python ((?:-m pytest|run\.py)[^`]*)`", (ROOT / "docs/gpu_status.md").read_text("utf-8"))]
TESTS = [command[2:] for command in COMMANDS if command[0] == "-m"]
RUNS = [command[1:] for command in COMMANDS if command[0] == "run.py"]
RUN = re.compile(r"(?<!\S)`?python run\.py ([^`\n]+)")
PLACEHOLDER = re.compile(r"<|_chip")  # of the reader; of docs/extending.md, which has a test of its own
REMOVED = {  # commit -> runs whose results stay, but not their code or not all that their configuration names
    "20511320": ["bench_decompositions", "bench_graphsage", "bench_kernels", "bench_powers", "bench_ragged_schedules",
                 "check_probe", "compare_slopes", "dse_spade", "fit_processors", "spade_sensitivity",
                 "validate_cpu_many", "validate_cpu_many_16"],
    "6d36a0fa": ["bench_decisions", "bench_dispatch", "bench_dispatch_final", "bench_dispatch_samples"],
    "5aa39e6d": ["bench_decisions_busy", "export_benchmark"],
    "4962a906": ["audit_cpu_labels", "bench_featurizer", "bench_simulator", "check_gcn", "eval_members",
                 "summarise_spade"],
    "2ed0aedf": ["rank_tuners"]}
GONE = {name for names in REMOVED.values() for name in names}
STORED = [ROOT / "dvc.lock", *(path for path in sorted((ROOT / "results").glob("*/config.yaml"))
                               if path.parent.name.removesuffix("_sddmm") not in GONE)]
COLLECT = """
import contextlib, io, json, sys, pytest
class Count:
    items = None
    def pytest_collection_finish(self, session):
        self.items = len(session.items)
for arguments in json.loads(sys.argv[1]):
    count = Count()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        pytest.main([*arguments, "--collect-only", "-q", "-p", "no:cacheprovider"], plugins=[count])
    assert count.items is not None, printed.getvalue()
    print(count.items, flush=True)
"""


def test_the_page_has_commands():
    assert len(TESTS) >= 10
    assert len(RUNS) >= 5


@pytest.mark.slow
def test_every_test_command_for_a_gpu_selects_tests():
    done = subprocess.run([sys.executable, "-c", COLLECT, json.dumps(TESTS)], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    counts = [int(line) for line in done.stdout.split()]
    assert len(counts) == len(TESTS), done.stdout + done.stderr
    assert [" ".join(command) for command, count in zip(TESTS, counts, strict=True) if not count] == []


def commands_of_pages() -> list[str]:
    """All runs that pages show, each once, without comments."""
    found = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8"))
        for command in RUN.findall(text):
            if not PLACEHOLDER.search(command) and path.name != "gpu_status.md":
                found[shlex.join(shlex.split(command, comments=True))] = None
    return list(found)


def test_every_experiment_on_a_page_exists():
    named = {option for command in commands_of_pages() for option in shlex.split(command)
             if option.startswith("experiment=")}
    assert len(named) >= 30
    missing = [option for option in sorted(named)
               if not (ROOT / "conf" / f"{option.replace('=', '/')}.yaml").is_file()]
    assert missing == []


@pytest.mark.parametrize("command", [command for command in commands_of_pages() if " " in command])
def test_every_run_of_a_page_composes(command, monkeypatch, tmp_path):
    """Runs with options; tests/contract/test_conf.py composes all experiments without options."""
    kept = [each for each in shlex.split(command) if not each.startswith("hydra") and "interval(" not in each]
    composes(kept, monkeypatch, tmp_path)


@pytest.mark.parametrize("command", RUNS, ids=" ".join)
def test_every_run_for_a_gpu_composes(command, monkeypatch, tmp_path):
    composes(command, monkeypatch, tmp_path)


def composes(command: list[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Compose a run, for each value that it sweeps over, and bind what its configuration names."""
    GlobalHydra.instance().clear()
    for name in ("SPARLOOM_DATA", "SPARLOOM_ARTIFACTS", "SPARLOOM_OUTPUTS", "SPARLOOM_MIRROR", "SPARLOOM_SEQLENS"):
        monkeypatch.setenv(name, str(folder))
    given = [each for each in cli.prepare(["run.py", *command], ROOT / "conf")[1:] if each != "-m"]
    swept = {override.input_line: list(override.sweep_string_iterator())
             for override in OverridesParser.create().parse_overrides(given) if override.is_sweep_override()}
    with hydra.initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for position in range(max([1, *map(len, swept.values())])):
            overrides = [f"{each.partition('=')[0]}={swept[each][position % len(swept[each])]}" if each in swept
                         else each for each in given]
            tree = OmegaConf.to_container(hydra.compose("config", overrides), resolve=True)
            assert list(faults(tree)) == []


@pytest.mark.parametrize(("commit", "names"), REMOVED.items())
def test_the_page_of_results_names_the_commit_of_removed_studies(commit, names):
    text = (ROOT / "docs/results/index.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(rf"is at\s+commit {commit}: (.*)", text)
    assert re.findall(r"`(\w+)` \(", sentence.partition("That of others")[0]) == names
    assert [name for name in names if not (ROOT / "results" / name / "metrics.json").is_file()] == []


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_targets_of_stored_configurations_resolve(path):
    targets = set(re.findall(r"_target_: (sparloom\.[\w.]+)", path.read_text(encoding="utf-8")))
    for target in targets:
        assert locate(target) is not None
