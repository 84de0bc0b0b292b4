"""Measurements and the timing protocol refuse invalid values."""

import pytest

from sparloom.measure import Measurement, TimingProtocol, describe_machine, machine, usable_memory

PROTOCOL = {"rounds": 2, "repetitions": 3, "short_seconds": 0.0, "most_repetitions": 3, "slow_factor": 3.0,
            "steal_ratio": 1.1, "retakes": 1, "seed": 0}


@pytest.mark.parametrize(("seconds", "failure"), [((), None), ((1.0,), "broken")])
def test_a_measurement_has_seconds_or_a_failure(seconds, failure):
    with pytest.raises(ValueError, match="seconds or a failure, not both or neither"):
        Measurement(seconds, "wall", failure)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_seconds_are_finite_and_positive(seconds):
    with pytest.raises(ValueError, match="must be finite and above 0: give a failure instead"):
        Measurement((seconds,), "wall")


@pytest.mark.parametrize(("change", "message"), [
    ({"rounds": 0}, "rounds 0"),
    ({"repetitions": 0}, "repetitions 0"),
    ({"retakes": -1}, "retakes -1"),
    ({"most_repetitions": 2}, "most_repetitions 2 is below repetitions 3"),
    ({"slow_factor": 1.0}, "slow_factor 1.0"),
    ({"steal_ratio": 1.0}, "steal_ratio 1.0"),
])
def test_protocol_refuses_invalid_numbers(change, message):
    with pytest.raises(ValueError, match=message):
        TimingProtocol(**PROTOCOL | change)


def test_description_of_the_machine_has_speed_relevant_fields():
    machine = describe_machine()
    assert machine["threads"] >= 1
    assert machine["memory_mib"] > 0
    assert f"{machine['threads']} threads" in machine["name"]


@pytest.mark.parametrize(("texts", "bytes_"), [
    ([], 4096000), (["max\n"], 4096000), (["1000000\n"], 1000000), (["max", "9223372036854771712\n"], 4096000)])
def test_a_container_may_have_less_memory_than_the_machine(texts, bytes_, tmp_path, monkeypatch):
    for number, text in enumerate(texts):
        (tmp_path / str(number)).write_text(text, encoding="ascii")
    monkeypatch.setattr(machine, "CONTAINER_LIMITS", [tmp_path / "0", tmp_path / "1"])
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert usable_memory() == bytes_
