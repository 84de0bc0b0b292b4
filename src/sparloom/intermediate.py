"""Values that a run reports before its end; whoever watches its folder may ask it to stop."""

from pathlib import Path

__all__ = ["REPORTED", "STOP", "STOPPED", "Stopped", "report"]

REPORTED, STOP, STOPPED = "intermediate.csv", "stop", "stopped"


class Stopped(Exception):
    """A run ends before its time because a sweep asked it to."""


def report(out: Path, *, step: int, value: float) -> bool:
    """Append a value of the objective to `out/intermediate.csv` and say whether the run shall end here.

    A sweep watches the file and answers with a file `out/stop`; without a sweep the answer is always False. The answer
    may come some steps late. A run that has been told to stop raises `Stopped`, or returns what metrics it has.

    Args:
        step: counts up from 0 in steps that all trials of a sweep share, such as epochs.
    """
    with (out / REPORTED).open("a", encoding="utf-8") as file:
        file.write(f"{step},{float(value)!r}\n")
    asked = (out / STOP).exists()
    if asked:
        (out / STOPPED).touch()
    return asked
