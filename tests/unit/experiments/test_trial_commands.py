"""Commands of trials run here, as jobs of Slurm and as tasks of Ray: the same outcomes; stopping ends them."""

import os
import threading
import time
from pathlib import Path

import pytest

from sparloom.experiments.cognate.trial_commands import LocalCommands, Outcome, RayCommands, SlurmCommands

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
""",
}


@pytest.fixture(scope="module")
def ray_of_this_machine():
    ray = pytest.importorskip("ray", reason="no ray: it is in the extra scale")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
        yield
        ray.shutdown()


@pytest.fixture(params=["local", "slurm", "ray"])
def runner(request, tmp_path, monkeypatch):
    match request.param:
        case "local":
            yield LocalCommands(tmp_path, {})
        case "slurm":
            pytest.importorskip("submitit", reason="no submitit: it is in the extra scale")
            for name, text in SLURM.items():
                (tmp_path / name).write_text(text)
                (tmp_path / name).chmod(0o755)
            monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
            monkeypatch.setenv("FAKE_SLURM", str(tmp_path))
            yield SlurmCommands(tmp_path, {"timeout_min": 5, "slurm_partition": "cpu"})
        case "ray":
            request.getfixturevalue("ray_of_this_machine")
            yield RayCommands(tmp_path, {"num_cpus": 1})


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_outcomes(runner, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("size").write_text("0.5")
    assert runner.run("echo loaded; cat size", None) == Outcome(0.5)
    assert runner.run("echo broken >&2; exit 3", None) == Outcome(None, "exit status 3: broken")
    assert runner.run("sleep 60 & sleep 60", 0.3) == Outcome(None, "took longer than 0.3 s")
    assert runner.run("echo 0", None) == Outcome(None, "printed '0', not seconds")
    missing = runner.run("./simulat", None)
    assert not missing.started
    assert missing.failure.startswith("exit status 127")


@pytest.mark.slow
def test_stopping_ends_what_runs_and_what_would_begin(runner, tmp_path) -> None:
    if isinstance(runner, SlurmCommands):
        pytest.skip("this Slurm ends no job")
    begun, ended = tmp_path / "begun", tmp_path / "ended"  # the first is whole when it has its name
    found: list[Outcome] = []
    thread = threading.Thread(target=lambda: found.append(
        runner.run(f"echo $$ > {begun}.new; mv {begun}.new {begun}; sleep 600; touch {ended}", None)))
    thread.start()
    while not begun.exists():
        time.sleep(0.01)
    runner.stop()
    thread.join()
    assert found == [Outcome(None)]
    assert runner.run("echo 1", None) == Outcome(None)
    deadline = time.monotonic() + 120
    while is_running(begun.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not ended.exists()


def test_jobs_are_cancelled(tmp_path, monkeypatch) -> None:
    pytest.importorskip("submitit", reason="no submitit: it is in the extra scale")
    for name, text in {**SLURM, "sbatch": "#!/bin/sh\necho Submitted batch job 7\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path))
    runner, found = SlurmCommands(tmp_path, {}), []
    thread = threading.Thread(target=lambda: found.append(runner.run("echo 1", None)))
    thread.start()
    while not runner._jobs:
        time.sleep(0.01)
    runner.stop()
    thread.join()
    assert found == [Outcome(None)]
    assert (tmp_path / "cancelled").read_text().split()[0] == "7"


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
