"""Journals: appended rows survive, however the process is killed."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparloom.data import Journal, Sample, compact
from sparloom.errors import SchemaError

Make = Callable[..., Sample]
KEY = ("cpu", "", "spmm", "g/a")

WRITER = """
import sys
from pathlib import Path
from sparloom.data import Journal, Sample

journal = Journal(Path(sys.argv[1]), ("cpu", "", "spmm", "g/a"))
for number in range(len(journal.done()), 200):
    row = Sample(op="spmm", platform="cpu", preset="", matrix="g/a", width=256, config=f"knob={number}", round=0,
                 seconds=(1e-3 * (number + 1),), cpu_seconds=(), kind="wall", failure=None, stolen=False,
                 machine="m", commit="c", started="2025-01-02T03:04:05Z")
    journal.append([row])
    print(number, flush=True)
"""


def test_appended_rows_read_back(tmp_path: Path, sample: Make) -> None:
    journal = Journal(tmp_path / "new", KEY)
    failed = sample(round=1, seconds=(), cpu_seconds=(), failure="killed")
    journal.append([sample()])
    journal.append([failed])
    journal.append([])
    assert journal.samples() == [sample(), failed]
    assert journal.done() == {("knob=1", 0), ("knob=1", 1)}


@pytest.mark.parametrize("kept", [1, 20, -2, -1])
def test_torn_last_line_is_dropped_and_overwritten(tmp_path: Path, sample: Make, kept: int) -> None:
    journal = Journal(tmp_path, KEY)
    journal.append([sample()])
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + whole[:kept])
    assert journal.samples() == [sample()]
    journal.append([sample(round=1)])
    assert [row.round for row in journal.samples()] == [0, 1]


def test_damage_before_the_end_is_an_error_with_its_line(tmp_path: Path, sample: Make) -> None:
    journal = Journal(tmp_path, KEY)
    journal.append([sample(), sample(round=1)])
    first, second = journal.path.read_text().splitlines()
    journal.path.write_text(f"{first}\n{second[:-9]}\n{second}\n")
    with pytest.raises(SchemaError, match=r"jsonl, line 2 is damaged .*: remove it to collect it again"):
        journal.samples()
    journal.path.write_text('{"op": "spmm"}\n')
    with pytest.raises(SchemaError, match=r"line 1 is damaged .*a sample has fields op, platform"):
        journal.samples()


def test_compact_joins_all_journals(tmp_path: Path, sample: Make) -> None:
    for name in ("g/a", "g/b"):
        Journal(tmp_path, ("cpu", "", "spmm", name)).append([sample(matrix=name), sample(matrix=name, round=1)])
    table = compact(tmp_path, [{"seed": 0}])
    assert len(table) == 4
    assert table.matrices == ("g/a", "g/b")
    assert table.provenance == ({"seed": 0},)


@pytest.mark.slow
def test_killed_writers_lose_at_most_the_row_in_flight(tmp_path: Path) -> None:
    rng = random.Random(0)
    journal = Journal(tmp_path, KEY)
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        reported = [writer.stdout.readline()]
        time.sleep(rng.uniform(0.0, 0.03))
        os.kill(writer.pid, signal.SIGKILL)
        reported += writer.stdout.read().splitlines()
        writer.stdout.close()
        writer.wait()
        acknowledged = [int(line) for line in reported if line.strip()]
        present = [int(key.removeprefix("knob=")) for key, _ in journal.done()]
        assert sorted(present) == list(range(len(present)))
        assert max(acknowledged, default=-1) < len(present) <= max(acknowledged, default=len(present) - 1) + 2
    with journal.path.open("ab") as file:
        file.write(b'{"op": "spmm", "platf')
    subprocess.run([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.DEVNULL, check=True)
    assert sorted(row.seconds[0] for row in journal.samples()) == pytest.approx([1e-3 * n for n in range(1, 201)])
