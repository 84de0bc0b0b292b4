"""Commands of trials run here, as jobs of Slurm and as tasks of Ray: the same outcomes; stopping ends them."""

import _thread
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sparloom.experiments.cognate import trial_commands
from sparloom.experiments.cognate.trial_commands import (
    KEPT_BYTES,
    CommandResult,
    LocalCommands,
    RayCommands,
    SlurmCommands,
    _Tail,
    run_command,
)

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
    monkeypatch.setattr(submitit.SlurmJob, "watcher", type(submitit.SlurmJob.watcher)())  # that knows no jobs of others
    for name, text in {**SLURM, **changed}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(folder))


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
            install_slurm(tmp_path, monkeypatch)
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
    assert runner.run("echo loaded; cat size", None) == CommandResult(0.5)
    assert runner.run("echo broken >&2; exit 3", None) == CommandResult(None, "exit status 3: broken")
    assert runner.run("sleep 60 & sleep 60", 0.3) == CommandResult(None, "took longer than 0.3 s")
    assert runner.run("echo 0", None) == CommandResult(None, "printed '0', not seconds")
    assert runner.run("echo 1_000", None) == CommandResult(None, "printed '1_000', not seconds")
    missing = runner.run("./simulat", None)
    assert not missing.started
    assert missing.failure.startswith("exit status 127")


PEAK = r"""
import os, resource, sys
from sparloom.experiments.cognate.trial_commands import run_command

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

before = peak()
result = run_command(sys.argv[1], None, os.getcwd())
print(repr(result.seconds), (peak() - before) // 1024, (result.failure or "")[:100])
"""
MUCH = 48 << 20  # bytes


def print_much(unit: str, stream: str = "stdout", rest: str = "", end: str = "0.5") -> str:
    """Write a command that prints a text many times to a stream and its result at the end."""
    program = (f"import sys; part = {unit!r} * ({MUCH // 16} // len({unit!r})); "
               f"[sys.{stream}.write(part) for _ in range(16)]; sys.{stream}.write({rest!r}); sys.{stream}.flush(); "
               f"print({end!r})")
    return shlex.join([sys.executable, "-c", program])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory in /proc")
@pytest.mark.parametrize(("line", "outcome"), [
    (print_much("a b c d\n"), 0.5), (print_much("a b c d\n", "stderr"), 0.5), (print_much("x", rest="\n"), 0.5),
    (print_much("x", "stderr"), 0.5), (print_much("10 % \r"), 0.5), (print_much("\n"), 0.5),
    (print_much("é", rest=" "), 0.5), (print_much(" ", end="") + " | sed 's/^/0.5/'", 0.5),
    (print_much("0"), "bytes that end in one word, not seconds"),
    (print_much("x", rest=" nothing ", end=""), "'nothing'"),
    (print_much("a b c\n", "stderr", rest="broken") + "; exit 3", "exit status 3: "),
], ids=["lines", "messages", "one word", "one message", "progress", "blank lines", "letters", "blanks at the end",
        "digits", "no number", "failure"])
def test_what_a_command_prints_is_kept_to_a_limit(line, outcome) -> None:
    done = subprocess.run([sys.executable, "-c", PEAK, line], capture_output=True, text=True, timeout=120, check=True)
    seconds, megabytes, failure = done.stdout.strip("\n").split(" ", 2)
    if isinstance(outcome, str):
        assert (seconds, outcome in failure) == ("None", True), failure
    else:
        assert (float(seconds), failure) == (outcome, "")
    assert int(megabytes) < MUCH >> 21


def test_the_end_of_what_a_command_prints_is_what_was_printed() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        tail, whole = _Tail(), b""
        while len(whole) < 6 * KEPT_BYTES:
            letters = rng.choice(list(b"ab \n"), p=[0.45, 0.45, 0.05, 0.05], size=int(rng.integers(1, KEPT_BYTES)))
            part = bytes(letters.tolist()) if rng.random() < 0.7 else b" " * letters.size
            tail.add(part)
            whole += part
        assert tail.text.split()[-20:] == whole.decode().split()[-20:]
        assert len(tail.kept) <= 2 * KEPT_BYTES


def test_a_flood_of_output_does_not_hide_the_deadline() -> None:
    result = run_command(f"{sys.executable} -c \"while True: print('log ' * 1000)\"", 0.5, ".")
    assert result == CommandResult(None, "took longer than 0.5 s")


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


def test_an_interrupt_while_a_command_starts_ends_it(tmp_path, monkeypatch) -> None:
    """Ray interrupts a task at any moment, such as when there is a process and no `Popen` of it yet."""
    begun, previous = [], signal.getsignal(signal.SIGINT)

    class Interrupted(subprocess.Popen):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            begun.append(str(self.pid))
            _thread.interrupt_main()  # what a task of Ray gets that is cancelled

    monkeypatch.setattr(trial_commands.subprocess, "Popen", Interrupted)
    assert trial_commands._run_task("sleep 60", None, str(tmp_path), str(tmp_path / "stop")) == CommandResult(None)
    assert len(begun) == 1
    assert not is_running(begun[0])
    assert signal.getsignal(signal.SIGINT) is previous


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["interrupts", "file"])
def test_ray_stops_tasks_when_one_way_is_lost(lost, ray_of_this_machine, tmp_path, monkeypatch) -> None:
    """A file tells tasks to stop, and Ray interrupts them: each is enough, also for a task that has not begun."""
    import ray

    runner, found = RayCommands(tmp_path, {"num_cpus": 2}), []  # one at a time
    threads = [threading.Thread(target=lambda each=each: found.append(runner.run(
        f"sleep 60 & echo $$ $! > {tmp_path}/{each}.new; mv {tmp_path}/{each}.new {tmp_path}/{each}.pid; wait", None)))
        for each in range(2)]
    for thread in threads:
        thread.start()
    while not (begun := list(tmp_path.glob("*.pid"))) or len(runner._tasks) < 2:
        time.sleep(0.01)
    if lost == "interrupts":
        monkeypatch.setattr(ray, "cancel", lambda task: None)
    else:
        runner._stop_file = tmp_path / "unseen"
    runner.stop()
    shell, child = begun[0].read_text().split()
    assert not is_running(shell)  # its task has ended
    deadline = time.monotonic() + 60
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert found == [CommandResult(None)] * 2
    assert list(tmp_path.iterdir()) == begun  # and none of a second command, nor of stopping


@pytest.mark.slow
def test_a_task_of_ray_that_does_not_stop_is_reported(ray_of_this_machine, tmp_path, monkeypatch, caplog) -> None:
    import ray

    monkeypatch.setattr(ray, "cancel", lambda task: None)
    monkeypatch.setattr(trial_commands, "STOP_SECONDS", 0.1)
    runner, found = RayCommands(tmp_path, {"num_cpus": 1}), []
    thread = threading.Thread(target=lambda: found.append(runner.run("sleep 60", None)))
    thread.start()
    while not runner._tasks:
        time.sleep(0.01)
    stop_file, runner._stop_file = runner._stop_file, tmp_path / "unseen"
    runner.stop()
    stop_file.touch()  # for the machine
    thread.join()
    assert found == [CommandResult(None)]
    assert "tasks of Ray that still run 0.1 s after they were stopped: 1" in caplog.text


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


@pytest.mark.parametrize("state", ["NODE_FAIL", None])
def test_a_lost_job_is_submitted_again(state, tmp_path, monkeypatch) -> None:
    """Its state tells, or, without accounts, that it is not queued and has no result."""
    install_slurm(tmp_path, monkeypatch, sbatch=LOSING)
    monkeypatch.setattr(trial_commands, "STATE_SECONDS", 0.05)
    if state is not None:
        (tmp_path / "states").write_text("".join(f"{job}|{state}|here\n" for job in range(1, 9)))
    outcome = SlurmCommands(tmp_path, {}).run("echo 1", None)
    assert outcome.failure.startswith("job 3 was lost: NODE_FAIL, the last of 3 attempts" if state else (
        "job 3 has left the queue without a result, the last of 3 attempts"))
    assert outcome.seconds is None


@pytest.mark.slow
def test_a_refused_job_waits_for_others(tmp_path, monkeypatch) -> None:
    one = SLURM["sbatch"].replace("#!/bin/sh\n", """#!/bin/sh
if [ -f "$FAKE_SLURM/full" ]; then echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; fi
touch "$FAKE_SLURM/full"
""")
    install_slurm(tmp_path, monkeypatch, sbatch=one, squeue="#!/bin/sh\necho \"$@\"\n")
    monkeypatch.setattr(trial_commands, "STATE_SECONDS", 0.05)
    runner, found = SlurmCommands(tmp_path, {}), []
    gate = tmp_path / "gate"
    threads = [threading.Thread(daemon=True, target=lambda: found.append(
        runner.run(f"while [ ! -f {gate} ]; do sleep 0.05; done; rm -f {tmp_path}/full; echo 2", None)))
        for _ in range(2)]
    for thread in threads:
        thread.start()
    while not runner._jobs:
        time.sleep(0.01)
    gate.touch()
    for thread in threads:
        thread.join()
    assert found == [CommandResult(2.0)] * 2
    (tmp_path / "full").touch()
    with pytest.raises(ValueError, match=r"Slurm takes no job: .*QOSMaxSubmitJob.*: change task\.executor_options"):
        runner.run("echo 1", None)


@pytest.mark.parametrize(("make", "options", "message"), [
    (LocalCommands, {"num_cpus": 2}, "commands on this machine have none"),
    (RayCommands, {"cpus": 2}, "task.executor=ray with .*cpus"),
    (RayCommands, {"num_cpus": "two"}, "task.executor=ray with .*num_cpus"),
    (SlurmCommands, {"cluster": "moon"}, "task.executor=slurm with .*moon"),
    (SlurmCommands, {"cluster": "local", "minutes": 5}, "task.executor=slurm with .*minutes"),
    (SlurmCommands, {}, "task.executor=slurm with .*srun"),
])
def test_options_that_executors_do_not_have(make, options, message, tmp_path) -> None:
    if make is SlurmCommands:
        pytest.importorskip("submitit", reason="no submitit: it is in the extra scale")
    if make is RayCommands:
        pytest.importorskip("ray", reason="no ray: it is in the extra scale")
    with pytest.raises(ValueError, match=message):
        make(tmp_path, options)
