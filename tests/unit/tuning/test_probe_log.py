"""The log of probes: whole lines, from many processes, in bounded files."""

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from sparloom.tuning import Decision, Trial
from sparloom.tuning.sparse import CsrChoice, ProbeLog

CHOICE = CsrChoice(config="order=natural")
DECISION = Decision("measured", "accepted", (Trial("order=natural", (0.5, 0.25)),), executions=3, seconds=1.5)
VALUE = {"choice": CHOICE.to_json(), "decision": DECISION.to_json()}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_tells_the_decision(tmp_path):
    probes = ProbeLog(tmp_path / "new")
    probes.add({"op": "spmm", "shapes": [[8]]}, VALUE)
    probes.add({"op": "sddmm"}, {"choice": CsrChoice(library="scipy").to_json()})
    first, second = lines(probes.path)
    assert probes.path == tmp_path / "new" / "probe_logs.jsonl"
    assert first["key"] == {"op": "spmm", "shapes": [[8]]}
    assert first["choice"] == {"library": "", "config": CHOICE.config}
    assert first["decision"]["trials"] == [{"candidate": CHOICE.config, "seconds": [0.5, 0.25]}]
    assert second["choice"]["library"] == "scipy"
    assert first["time"] <= second["time"]


def test_a_full_file_makes_room_for_another(tmp_path):
    probes = ProbeLog(tmp_path, limit_bytes=2000)
    for place in range(40):
        probes.add({"op": place}, VALUE)
    older, newer = lines(tmp_path / "probe_logs.1.jsonl"), lines(probes.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["probe_logs.1.jsonl", "probe_logs.jsonl"]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
    told = [line["key"]["op"] for line in older + newer]
    assert told == list(range(told[0], 40))
    assert len(older) > 2


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path):
    probes = ProbeLog(tmp_path)
    probes.path.write_text('{"time": 1')
    probes.add({"op": "spmm"}, VALUE)
    torn, whole = probes.path.read_text().splitlines()
    assert torn == '{"time": 1'
    assert json.loads(whole)["key"] == {"op": "spmm"}


def test_a_log_that_cannot_be_written_is_no_error(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    ProbeLog(tmp_path / "file").add({}, VALUE)
    assert "the probe is not logged" in caplog.text


def _add(process: int, folder: Path) -> None:
    for place in range(50):
        ProbeLog(folder, limit_bytes=20_000).add({"process": process, "place": place}, VALUE)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_that_append_at_the_same_time_tear_nothing(tmp_path):
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(_add, range(4), [tmp_path] * 4))
    older, newer = lines(tmp_path / "probe_logs.1.jsonl"), lines(tmp_path / "probe_logs.jsonl")
    length = max(path.stat().st_size / len(lines(path)) for path in tmp_path.iterdir())
    assert len(older) >= 20_000 / length - 2  # one file was full when it was put aside, not an empty one
    told = [(line["key"]["process"], line["key"]["place"]) for line in older + newer]
    assert len(set(told)) == len(told)
    assert all([place for process, place in told if process == each] == sorted(
        place for process, place in told if process == each) for each in range(4))
