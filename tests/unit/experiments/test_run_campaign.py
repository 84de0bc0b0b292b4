"""Campaigns from the command line: a shell script as the simulator, results by hand, and SPADE."""

import csv
import fcntl
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from sparloom.data import read_trials
from sparloom.errors import SchemaError
from sparloom.sparse import Pattern, SparseMatrix, read_matrix, write_matrix

CHIP = """
name: chip
operations: [spmm]
parameters:
  block: {kind: integer, values: [8, 64, 512], default: 64, tiles: i}
  prefetch: {kind: integer, values: [0, 2, 4], default: 0, own: true}
  codec: {kind: categorical, values: [none, delta, bitmap], default: none, own: true}
"""
SIMULATOR = """#!/bin/sh
# simulate FILE BLOCK PREFETCH CODEC: seconds of an accelerator that cannot use delta with blocks of 512
if [ "$2" = 512 ] && [ "$4" = delta ]; then echo "no memory for $1" >&2; exit 3; fi
case "$4" in none) factor=5;; delta) factor=3;; bitmap) factor=4;; *) exit 9;; esac
size=$(wc -c < "$1")
echo "loaded"
echo "$size $2 $3 $factor" | awk '{ print ($1 / $2 + 10 * ($3 - 2) ^ 2 + $2) * $4 * 1e-6 }'
"""
ALL = "# {file} {block} {prefetch} {codec}"  # a comment of the shell that names everything


@pytest.fixture
def place(tmp_path) -> Path:
    (tmp_path / "chip.yaml").write_text(CHIP)
    (tmp_path / "simulate").write_text(SIMULATOR)
    (tmp_path / "simulate").chmod(0o755)
    (tmp_path / "matrices of mine").mkdir()
    rng = np.random.default_rng(0)
    for number in range(3):
        size = int(rng.integers(100, 900))
        matrix = scipy.sparse.random_array((size, size), density=0.02, format="csr", dtype=np.float32, rng=rng)
        write_matrix(tmp_path / "matrices of mine" / f"m{number}.npz",
                     SparseMatrix(Pattern(matrix.shape, matrix.indptr, matrix.indices), matrix.data))
    return tmp_path


def task(build, place: Path, *overrides: str):
    given = [f"space={place}/chip.yaml", "platform@target=custom", "samples=csv",
             f"matrices='{place}/matrices of mine'", f"task.folder={place}/state", *overrides]
    return build("campaign", *given, folder=place)


def by_script(place: Path) -> str:
    return f"task.command='{place}/simulate {{file}} {{block}} {{prefetch}} {{codec}}'"


def out_of(place: Path, name: str) -> Path:
    (place / name).mkdir()
    return place / name


def test_a_shell_script_is_a_simulator(build, place) -> None:
    metrics = task(build, place, by_script(place), "budget=45", "task.tolerance=0").run(out := out_of(place, "out"))
    progress = pd.read_parquet(out / "progress.parquet")
    assert metrics["trials"] == len(progress) <= 45
    assert metrics["begun"] == metrics["problems"] == 3
    failed = progress[progress["seconds"].isna()]
    assert len(failed) == metrics["failures"]
    assert failed["failure"].str.contains("exit status 3: no memory for").all()
    best = pd.read_csv(out / "best.csv").set_index("matrix")
    for name in ("m0", "m1", "m2"):
        file = place / "matrices of mine" / f"{name}.npz"
        found = {}
        for block in (8, 64, 512):
            for prefetch in (0, 2, 4):
                for codec in ("none", "delta", "bitmap"):
                    ran = subprocess.run([place / "simulate", file, str(block), str(prefetch), codec],
                                         capture_output=True, text=True, check=False)
                    if not ran.returncode:
                        found[block, prefetch, codec] = float(ran.stdout.split()[-1])
        assert best.loc[name, "seconds"] <= 1.02 * min(found.values())
        assert found[best.loc[name, "block"], best.loc[name, "prefetch"], best.loc[name, "codec"]] == pytest.approx(
            best.loc[name, "seconds"])
    assert (out / "progress.svg").stat().st_size > 1000


def test_results_by_hand_go_round_by_csv(build, place) -> None:
    trials = 0
    for turn in range(3):
        given = [f"task.results={place}/done.csv"] if turn else []
        metrics = task(build, place, "task.batch=4", *given).run(out := out_of(place, f"out{turn}"))
        assert metrics["trials"] == trials
        with (out / "proposals.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 4
        for number, row in enumerate(rows):
            row["seconds"] = "" if number == 3 else "timeout" if number == 2 else str(0.1 + number)
        with (place / "done.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        trials += 3
    again = out_of(place, "again")  # results that are known are not told twice
    whole = task(build, place, "task.batch=4", f"task.results={place}/done.csv", "budget=9").run(again)
    whole = task(build, place, "task.batch=4", f"task.results={place}/done.csv", "budget=9").run(again)
    assert whole["trials"] == 9
    assert whole["failures"] == 3


def test_seconds_of_different_origin_are_not_mixed(build, place) -> None:
    task(build, place, by_script(place), "budget=2").run(out_of(place, "out"))
    with pytest.raises(SchemaError, match="under other conditions, command"):
        task(build, place, "budget=4").run(out_of(place, "by_hand"))
    (place / "done.csv").write_text("matrix,block,prefetch,codec,cycles\nm0,8,0,none,77\n")
    with pytest.raises(ValueError, match=r"done\.csv has cycles, and further trials run here"):
        task(build, place, by_script(place), f"task.results={place}/done.csv").run(out_of(place, "cycles"))
    (place / "spade.csv").write_text("matrix,row_panel,column_panel,split,barrier,bypass,reorder,cycles\n"
                                     "m0,4,65536,32,1,0,0,77\n")
    given = [f"matrices='{place}/matrices of mine'", f"task.folder={place}/spade", f"task.results={place}/spade.csv"]
    with pytest.raises(ValueError, match=r"spade\.csv has cycles, and further trials run here and give seconds"):
        build("campaign", *given, folder=place).run(out_of(place, "spade_out"))


def test_failures_of_a_table_are_asked_for_again(build, place) -> None:
    (place / "done.csv").write_text("matrix,block,prefetch,codec,ms\nm0,64,0,none,timeout\nm1,64,0,none,0.5\n")
    given = [f"task.results={place}/done.csv", "task.batch=100"]
    assert task(build, place, *given).run(out_of(place, "first"))["failures"] == 1
    metrics = task(build, place, *given, "task.retry=true").run(out := out_of(place, "again"))
    assert metrics["failures"] == 0
    asked = pd.read_csv(out / "proposals.csv")
    assert (asked[["matrix", "block", "prefetch", "codec"]] == ["m0", 64, 0, "none"]).all(axis=1).any()
    assert task(build, place, *given).run(out_of(place, "known"))["failures"] == 0  # the same row
    with (place / "done.csv").open("a") as file:
        file.write("m0,64,0,none,timeout\n")
    assert task(build, place, *given).run(out_of(place, "new"))["failures"] == 1


def test_best_configurations_are_written_as_values_of_the_space(build, place) -> None:
    (place / "done.csv").write_text("matrix,block,prefetch,codec,ms\nm1,64,2,none,0.5\n")
    task(build, place, f"task.results={place}/done.csv").run(out := out_of(place, "out"))
    with (out / "best.csv").open(newline="") as file:
        rows = {row["matrix"]: row for row in csv.DictReader(file)}
    assert [rows["m1"][name] for name in ("block", "prefetch", "codec", "trials")] == ["64", "2", "none", "1"]
    assert [rows["m0"][name] for name in ("block", "seconds", "trials", "expected_regret")] == ["", "", "0", ""]


@pytest.mark.timeout(300)  # the daemon sleeps for 600 s
def test_a_daemon_that_a_command_starts_does_not_hold_up_the_campaign(build, place) -> None:
    (place / "start").write_text(f"""#!/bin/sh
setsid sh -c 'echo $$ > {place}/daemon; exec sleep 600' &
while [ ! -s {place}/daemon ]; do sleep 0.01; done
echo 0.5
""")
    (place / "start").chmod(0o755)
    metrics = task(build, place, f"task.command='{place}/start {ALL}'", "budget=1").run(out_of(place, "out"))
    os.kill(int((place / "daemon").read_text()), signal.SIGKILL)  # it is still there
    assert (metrics["trials"], metrics["failures"]) == (1, 0)


@pytest.mark.slow
@pytest.mark.timeout(300)  # the command sleeps for 600 s
def test_sigterm_ends_the_commands(run_command, place) -> None:
    marked = f"600.{os.getpid():07}1"
    command = [*run_command, "experiment=campaign", f"space={place}/chip.yaml",
               f"matrices='{place}/matrices of mine'", f"task.folder={place}/state",
               f"task.command='touch {place}/begun; sleep {marked} {ALL}'",
               "logger=none", f"paths.outputs={place}/outputs"]
    process = subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    while process.poll() is None and not (place / "begun").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    while is_running(marked):  # a process that was killed ends soon; the test would take 600 s otherwise
        time.sleep(0.02)


def is_running(marked: str) -> bool:
    """Return whether the command line of a process has a text."""
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if marked.encode() in line.read_bytes():
                return True
    return False


@pytest.mark.slow
def test_a_killed_campaign_loses_nothing(build, place, run_command) -> None:
    slow = f"task.command='sleep 0.05; {place}/simulate {{file}} {{block}} {{prefetch}} {{codec}}'"
    command = [*run_command, "experiment=campaign", f"space={place}/chip.yaml",
               f"matrices='{place}/matrices of mine'", f"task.folder={place}/state", slow, "logger=none",
               f"paths.outputs={place}/outputs"]
    process = subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    told = place / "state" / "told.jsonl"
    while process.poll() is None and (not told.exists() or told.read_bytes().count(b"\n") < 6):
        time.sleep(0.02)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = told.read_bytes().count(b"\n")
    resumed = task(build, place, slow, "budget=14")
    pending = resumed.campaign.pending()
    metrics = resumed.run(out_of(place, "out"))
    assert metrics["trials"] == 14 > before
    lines = pd.read_json(told, lines=True)
    assert not lines.duplicated(["problem", "config"]).any()
    known = set(lines[["problem", "config"]].itertuples(index=False, name=None))
    assert known >= {(each.problem, each.config.key) for each in pending}


def test_spade_is_simulated_from_its_estimate(build, place) -> None:
    metrics = build("campaign", f"matrices='{place}/matrices of mine'", f"task.folder={place}/spade", "budget=9",
                    "task.tolerance=0", folder=place).run(out := out_of(place, "out"))
    assert metrics["trials"] == 9
    assert metrics["expected_regret"] < 0.2
    assert pd.read_csv(out / "best.csv")["trials"].sum() == 9


@pytest.mark.parametrize(("overrides", "error", "message"), [
    (["matrices=/nowhere"], ValueError, "matrices=/nowhere: there is no such file or folder"),
    (["task.executor=moon", "task.command='echo 1'"], ValueError, r"task\.executor=moon: there are local, slurm"),
    (["task.executor=slurm"], ValueError, r"task\.executor=slurm runs commands, and there is none"),
    (["budget=0"], ValueError, r"task\.budget=0: it must be at least 1"),
    (["task.command='echo {blok}'"], ValueError, r"task\.command has \{blok\}: there are file, matrix, block"),
    (["task.results=bad.csv"], SchemaError, r"bad\.csv, line 2: .*block"),
    (["task.command='awk {print}'"], ValueError, r"task\.command has \{print\}"),
    (["task.command='run {file} {block} {codec}'"], ValueError, r"lacks \{prefetch\}: trials that differ only in"),
    (["task.command='run {block} {prefetch}'"], ValueError, r"lacks \{codec\}, \{file\}: trials that differ only in"),
    (["task.results=short.csv"], SchemaError, r"short\.csv: the header is matrix,block: column prefetch is missing"),
    (["task.results=comma.csv"], SchemaError, r"comma\.csv, line 2: ms is '0,5': give a positive number"),
    (["task.results=unit.csv"], SchemaError, r"unit\.csv, line 2: ms is '12ms': give a positive number"),
    (["task.results=square.csv"], SchemaError, r"square\.csv, line 2: ms is '²': give a positive number"),
    (["task.results=other.csv"], SchemaError, r"other\.csv, line 3: matrix 'm9' is not among those of this campaign"),
])
def test_mistakes_of_the_user(build, place, monkeypatch, overrides, error, message) -> None:
    monkeypatch.chdir(place)
    Path("bad.csv").write_text("matrix,block,prefetch,codec,ms\nm0,5,0,none,1\n")
    Path("short.csv").write_text("matrix,block\nm0,8\n")
    for name, text in (("comma", '"0,5"'), ("unit", "12ms"), ("square", "²")):
        Path(f"{name}.csv").write_text(f"matrix,block,prefetch,codec,ms\nm0,8,0,none,{text}\n")
    Path("other.csv").write_text("matrix,block,prefetch,codec,ms\nm0,8,0,none,1\nm9,8,0,none,1\n")
    with pytest.raises(error, match=message):
        task(build, place, *overrides).run(out_of(place, "out"))


def test_a_command_that_always_fails_is_stopped_and_repaired(build, place) -> None:
    (place / "licence").write_text("#!/bin/sh\necho no licence >&2; exit 1\n")
    (place / "licence").chmod(0o755)
    with pytest.raises(RuntimeError, match=r"all of the \d trials failed, .*no licence.*task\.retry=true"):
        task(build, place, f"task.command='{place}/licence {ALL}'").run(out_of(place, "out"))
    metrics = task(build, place, f"task.command='{place}/licence > /dev/null || echo 1.5 {ALL}'", "budget=8",
                   "task.retry=true").run(out_of(place, "again"))
    assert metrics["failures"] == 0
    assert metrics["trials"] == 8


def test_what_finished_is_kept_when_another_trial_ends_the_run(build, place) -> None:
    script = "if [ $1 = 8 ]; then sleep 0.5; exit 127; fi; echo 0.5"
    (place / "mixed").write_text(f"#!/bin/sh\n{script}\n")
    (place / "mixed").chmod(0o755)
    with pytest.raises(ValueError, match="exit status 127"):
        task(build, place, f"task.command='{place}/mixed {{block}} {ALL}'", "task.jobs=4").run(out_of(place, "out"))
    lines = (place / "state" / "told.jsonl").read_text()
    assert '"failure": null' in lines
    assert "127" not in lines


def test_a_second_run_in_a_folder_is_refused(build, place) -> None:
    (place / "state").mkdir()
    second = task(build, place, by_script(place))
    with (place / "state" / "running").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match="another process runs the campaign"):
            second.run(out_of(place, "out"))


def test_other_machines_and_matrices_are_refused(build, place) -> None:
    given = [f"matrices='{place}/matrices of mine'", f"task.folder={place}/spade", "budget=3"]
    build("campaign", *given, folder=place).run(out_of(place, "out"))
    with pytest.raises(SchemaError, match="under other conditions, timing"):
        build("campaign", *given, "timing=quick", folder=place).run(out_of(place, "timed"))
    with pytest.raises(SchemaError, match="under other conditions, level"):
        build("campaign", *given, "target.level=t0", folder=place).run(out_of(place, "other"))
    file = place / "matrices of mine" / "m1.npz"
    before = read_matrix(file)
    matrix = scipy.sparse.csr_array((before.values, before.pattern.indices, before.pattern.indptr),
                                    before.pattern.shape)
    rolled = matrix[np.random.default_rng(1).permutation(matrix.shape[0])].sorted_indices()
    write_matrix(file, SparseMatrix(Pattern(rolled.shape, rolled.indptr, rolled.indices), rolled.data))
    with pytest.raises(SchemaError, match=r"other problems, such as 'm1'"):
        build("campaign", *given, folder=place).run(out_of(place, "changed"))


T1 = """{"General": {"BenchmarkName": "kernel"}, "ConfigurationSpace": {
  "TuningParameters": [
    {"Name": "block_x", "Type": "int", "Values": "[2**i for i in range(4, 9)]", "Default": 32},
    {"Name": "block_y", "Type": "int", "Values": "[1, 2, 4, 8]", "Default": 1},
    {"Name": "SHARED", "Type": "bool", "Values": [true, false], "Default": true}],
  "Conditions": [{"Expression": "block_x * block_y <= 512", "Parameters": ["block_x", "block_y"]}]}}
"""
RUN_KERNEL = """#!/bin/sh
# run BLOCK_X BLOCK_Y SHARED [SIZE]
if [ "$1" = 16 ] && [ "$3" = 1 ]; then echo "too many registers" >&2; exit 1; fi
echo "$1 $2 $3 ${4:-100}" | awk '{ d = $1 * $2 - 128; print ($4 + 0.01 * d * d + 20 * $3) * 1e-6 }'
"""


@pytest.fixture
def kernel(tmp_path) -> Path:
    (tmp_path / "kernel_T1.json").write_text(T1)
    (tmp_path / "run").write_text(RUN_KERNEL)
    (tmp_path / "run").chmod(0o755)
    return tmp_path


def tune(build, kernel: Path, state: str, *overrides: str):
    command = f"task.command='{kernel}/run {{block_x}} {{block_y}} {{SHARED}}'"
    return build("campaign", f"space={kernel}/kernel_T1.json", "platform@target=custom", "samples=csv",
                 f"task.folder={kernel}/{state}", "task.jobs=1", command, *overrides, folder=kernel)


def test_a_kernel_of_a_t1_file_needs_no_matrix(build, kernel) -> None:
    metrics = tune(build, kernel, "state", "budget=20").run(out := out_of(kernel, "out"))
    best = pd.read_csv(out / "best.csv").iloc[0]
    assert best["block_x"] * best["block_y"] == 128
    assert best["SHARED"] == 0
    assert metrics["problems"] == 1
    trials = read_trials(out / "trials_T4.json.gz")
    assert len(trials) == metrics["trials"] <= 20
    assert trials["failure"].notna().sum() == metrics["failures"]
    assert ((trials["block_x"] == 16) & (trials["SHARED"] == 1)).sum() == metrics["failures"]


def test_a_campaign_starts_from_other_campaigns_and_files(build, kernel) -> None:
    tune(build, kernel, "old", "budget=16").run(out := out_of(kernel, "old device"))
    results = pd.read_parquet(out / "progress.parquet")
    pd.DataFrame([dict(pair.split("=") for pair in key.split(",")) for key in results["config"]]).assign(
        ms=[each if each > 0 else "failed" for each in results["seconds"]]).to_csv(kernel / "other.csv", index=False)
    sources = f"sources=['{kernel}/old','{out}/trials_T4.json.gz',{kernel}/other.csv]"
    tune(build, kernel, "new", "budget=9", sources).run(new := out_of(kernel, "new device"))
    assert pd.read_parquet(new / "progress.parquet")["seconds"].min() == results["seconds"].min()
    trusts = pd.read_parquet(new / "trusts.parquet")
    assert list(trusts) == ["old", "trials_T4", "other"]
    assert len(trusts) == 10
    assert (trusts.iloc[0] == 0.5).all()
    assert (trusts.iloc[-1] > 0.5).all()
    assert (new / "trusts.svg").stat().st_size > 1000


def test_problems_come_from_a_csv_with_features(build, kernel) -> None:
    (kernel / "sizes.csv").write_text("problem,size,kind\nsmall,10,half\nlarge,1000,float\n")
    command = f"task.command='{kernel}/run {{block_x}} {{block_y}} {{SHARED}} {{size}}'"
    task = build("campaign", f"space={kernel}/kernel_T1.json", "platform@target=custom", "samples=csv", command,
                 f"problems={kernel}/sizes.csv", f"task.folder={kernel}/state", "budget=30", "task.jobs=1",
                 folder=kernel)
    metrics = task.run(out := out_of(kernel, "out"))
    assert metrics["problems"] == 2
    best = pd.read_csv(out / "best.csv").set_index("problem")
    assert (best["block_x"] * best["block_y"] == 128).all()
    assert best.loc["large", "seconds"] > 5 * best.loc["small", "seconds"]


@pytest.mark.parametrize(("overrides", "error", "message"), [
    (["problems=twice.csv"], SchemaError, r"twice\.csv, line 3: a is there twice"),
    (["problems=sizes.csv"], ValueError, r"task\.command .* lacks \{problem\}"),
    (["problems=sizes.csv", "matrices=."], ValueError, "the problems are the one or the other"),
    (["sources=[nowhere.json]"], FileNotFoundError, "nowhere"),
    (["sources=[sizes.csv]"], SchemaError, "give one column of times"),
    (["task.results=empty_T4.json"], SchemaError, "has no trials"),
    (["problems=nowhere.csv"], ValueError, r"problems=nowhere\.csv: there is no such file"),
    (["task.command='run {block_x} {SHARED}'"], ValueError, r"lacks \{block_y\}"),
])
def test_mistakes_with_problems_and_sources(build, kernel, monkeypatch, overrides, error, message) -> None:
    monkeypatch.chdir(kernel)
    Path("twice.csv").write_text("problem,size\na,1\na,2\n")
    Path("sizes.csv").write_text("problem,size\na,1\nb,2\n")
    Path("empty_T4.json").write_text('{"results": []}')
    with pytest.raises(error, match=message):
        tune(build, kernel, "state", *overrides).run(out_of(kernel, "out"))
