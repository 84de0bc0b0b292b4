"""Commands of trials run here and as jobs of Slurm: the same outcomes; stopping ends them."""

import os
import threading
import time
from pathlib import Path

import pytest

from sparloom.experiments.cognate.trial_commands import CommandResult, LocalCommands, SlurmCommands

SLURM = {  # a Slurm of one machine: jobs are processes
    "sbatch": """#!/bin/sh
id=$(($(cat "$FAKE_SLURM/last" 2> /dev/null || echo 0) + 1))
echo $id > "$FAKE_SLURM/last"
SLURM_JOB_ID=$id SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 \\
    SLURM_JOB_NODELIST=here nohup sh "$1" > /dev/null 2>&1 &
echo $! > "$FAKE_SLURM/$id.pid"
echo "Submitted batch job $id"
""",
    "srun": """#!/bin/sh
while [ $# -gt 0 ]; do case "$1" in --output|--error) shift 2;; --*) shift;; *) break;; esac; done
exec "$@"
""",
    "scancel": """#!/bin/sh
echo "$@" >> "$FAKE_SLURM/cancelled"
""",
    "sacct": """#!/bin/sh
echo "JobID|State|NodeList"
[ ! -f "$FAKE_SLURM/states" ] || cat "$FAKE_SLURM/states"
""",
    "squeue": """#!/bin/sh
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
""",
}
LOSING = """#!/bin/sh
id=$(($(cat "$FAKE_SLURM/last" 2> /dev/null || echo 0) + 1))
echo $id > "$FAKE_SLURM/last"
echo "Submitted batch job $id"
"""  # the job never runs


def install_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, **changed: str) -> None:
    submitit = pytest.importorskip("submitit", reason="no submitit: it is in the extra scale")
    monkeypatch.setattr(submitit.SlurmJob, "watcher", type(submitit.SlurmJob.watcher)(delay_s=0))
    for name, text in {**SLURM, **changed}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(folder))


@pytest.fixture(params=["local", "slurm"])
def runner(request, tmp_path, monkeypatch):
    if request.param == "local":
        return LocalCommands(tmp_path, {})
    install_slurm(tmp_path, monkeypatch)
    return SlurmCommands(tmp_path, {"timeout_min": 5, "slurm_partition": "cpu"})


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_outcomes(runner, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("size").write_text("0.5")
    assert runner.run("echo loaded; cat size", None) == CommandResult(0.5)
    assert runner.run("echo broken >&2; exit 3", None) == CommandResult(None, "exit status 3: broken")
    assert runner.run("sleep 60 & sleep 60", 0.3) == CommandResult(None, "took longer than 0.3 s")
    assert runner.run("echo 0", None) == CommandResult(None, "printed '0', not seconds")
    assert runner.run("echo 1_000", None) == CommandResult(None, "printed '1_000', not seconds")
    missing = runner.run("./simulat", None)
    assert not missing.started
    assert missing.failure.startswith("exit status 127")


@pytest.mark.slow
def test_stopping_ends_what_runs_and_what_would_begin(runner, tmp_path) -> None:
    if isinstance(runner, SlurmCommands):
        pytest.skip("this Slurm ends no job")
    begun, ended = tmp_path / "begun", tmp_path / "ended"  # the first is whole when it has its name
    found: list[CommandResult] = []
    thread = threading.Thread(target=lambda: found.append(
        runner.run(f"echo $$ > {begun}.new; mv {begun}.new {begun}; sleep 600; touch {ended}", None)))
    thread.start()
    while not begun.exists():
        time.sleep(0.01)
    runner.stop()
    thread.join()
    assert found == [CommandResult(None)]
    assert runner.run("echo 1", None) == CommandResult(None)
    deadline = time.monotonic() + 120
    while is_running(begun.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not ended.exists()


def test_jobs_are_cancelled(tmp_path, monkeypatch) -> None:
    install_slurm(tmp_path, monkeypatch, sbatch="#!/bin/sh\necho Submitted batch job 7\n")
    runner, found = SlurmCommands(tmp_path, {}), []
    thread = threading.Thread(target=lambda: found.append(runner.run("echo 1", None)))
    thread.start()
    while not runner._jobs:
        time.sleep(0.01)
    runner.stop()
    thread.join()
    assert found == [CommandResult(None)]
    assert (tmp_path / "cancelled").read_text().split()[0] == "7"


def test_a_lost_job_is_submitted_again(tmp_path, monkeypatch) -> None:
    install_slurm(tmp_path, monkeypatch, sbatch=LOSING)
    (tmp_path / "states").write_text("".join(f"{job}|NODE_FAIL|here\n" for job in range(1, 9)))
    outcome = SlurmCommands(tmp_path, {}).run("echo 1", None)
    assert outcome.failure.startswith("job 3: ")
    assert outcome.failure.endswith("the last of 3 attempts")
    assert outcome.seconds is None


@pytest.mark.parametrize(("make", "options", "message"), [
    (LocalCommands, {"num_cpus": 2}, "commands on this machine have none"),
    (SlurmCommands, {"cluster": "moon"}, "task.executor=slurm with .*moon"),
    (SlurmCommands, {"cluster": "local", "minutes": 5}, "task.executor=slurm with .*minutes"),
    (SlurmCommands, {}, "task.executor=slurm with .*srun"),
])
def test_options_that_executors_do_not_have(make, options, message, tmp_path) -> None:
    if make is SlurmCommands:
        pytest.importorskip("submitit", reason="no submitit: it is in the extra scale")
    with pytest.raises(ValueError, match=message):
        make(tmp_path, options)
