"""Results of other tuners as tables: T4 files, and the cache files that Kernel Tuner writes while it runs.

A table of trials has a column for each parameter, `seconds`, and `failure`: None, or why there are no seconds, that is
"compile", "runtime", "correctness", "constraint", "timeout" or another word of the file. Rows of one configuration are
repetitions. Files are JSON and nothing in them is executed. `sparloom.space.read_space` reads the T1 files beside them.

Sources: https://github.com/odgaard/TuningSchema (T1, T4), and `process_cache` in kernel_tuner.util.
"""

import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.files import atomic_path
from sparloom.space import SearchSpace, Value

RESULTS = ("seconds", "failure")
MAX_BYTES = 2**30  # of the text in a file
TIME_UNITS: Mapping[str, float] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds", "milisecond", "miliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
}
FAILURES = {
    "constraints": "constraint", "CompilationFailedConfig": "compile", "RuntimeFailedConfig": "runtime",
    "InvalidConfig": "constraint", "ErrorConfig": "runtime",
}
"""Words of T4 and of Kernel Tuner that have another name here."""

_Trial = tuple[Mapping[str, Any], float, str | None]  # configuration, seconds, failure


def read_trials(path: Path, space: SearchSpace | None = None) -> pd.DataFrame:
    """Read the trials in a T4 file or in a cache file of Kernel Tuner, which may be compressed, .json.gz.

    Args:
        space: whose parameters the trials have, and whose values they get; constraints are not checked, as a trial may
            have failed by one.

    Raises:
        SchemaError: the file is damaged or another one, a time is not positive, or a trial is not of the space.
    """
    tree = _load(path)
    is_cache = isinstance(tree.get("cache"), dict)
    entries = tree["cache"].items() if is_cache else enumerate(tree["results"])
    names = None if space is None else space.names
    rows = []
    for place, entry in entries:
        try:
            values, seconds, failure = _cache_trial(entry, tree) if is_cache else _t4_trial(entry, tree)
            names = names or tuple(values)
            rows.append([*_checked(values, names, space), seconds, failure])
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, IllegalSchedule) as error:
            reason = f"{error} is missing" if isinstance(error, LookupError) else error
            raise SchemaError(f"{path}, {'cache' if is_cache else 'results'}[{place!r}]: {reason}") from None
    if not rows:
        raise SchemaError(f"{path} has no trials")
    columns = dict(zip((*names, *RESULTS), zip(*rows, strict=True), strict=True))
    return pd.DataFrame({**columns, "failure": pd.Series(columns["failure"], dtype=object)})


def write_t4(path: Path, trials: pd.DataFrame) -> None:
    """Write a table of trials as a T4 file, compressed if its name ends with .gz; `read_trials` returns it unchanged.

    Raises:
        SchemaError: a trial has neither positive seconds nor a failure, or both.
    """
    results = []
    for number, row in enumerate(trials.astype(object).to_dict("records")):
        seconds, failure = float(row.pop("seconds")), row.pop("failure")
        failed = isinstance(failure, str)
        if failed == (0 < seconds < math.inf):
            raise SchemaError(f"trial {number} has seconds={seconds} and failure={failure!r}: give positive seconds, "
                              "or nan and a failure")
        invalidity = {"constraint": "constraints"}.get(failure, failure) if failed else "correct"
        time = {"name": "time", "value": seconds, "unit": "s"}
        results.append({"configuration": row, "times": {}, "invalidity": invalidity, "correctness": int(not failed),
                        "measurements": [] if failed else [time], "objectives": ["time"]})
    text = json.dumps({"schema_version": "1.0.0", "metadata": {"timeunit": "seconds"}, "results": results},
                      allow_nan=False).encode()
    with atomic_path(path) as partial:
        partial.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _load(path: Path) -> dict[str, Any]:
    """Read a JSON object, also that of a cache file whose last lines are not written yet."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SchemaError(f"{path} is damaged ({error}): restore it") from None
    if len(content) > MAX_BYTES:
        raise SchemaError(f"{path} has more than {MAX_BYTES:,} bytes of text: split it")
    try:
        tree = _parse(content.decode())
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{path} is not JSON in UTF-8 ({error}): restore it") from None
    if not isinstance(tree, dict) or not (isinstance(tree.get("results"), list) or isinstance(tree.get("cache"), dict)):
        raise SchemaError(f"{path} is neither a T4 file, with a list of results, nor a cache of Kernel Tuner")
    return tree


def _parse(text: str) -> Any:
    """Parse JSON; of a cache that is being written, the lines that are complete."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        if '"cache"' not in text:
            raise
    complete = text.rstrip().removesuffix(",")
    if not complete.endswith("}"):
        complete = complete.rpartition("\n")[0].rstrip().removesuffix(",")
    return json.loads(complete + "}}", parse_constant=_refuse_constant)


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _t4_trial(entry: Mapping[str, Any], tree: Mapping[str, Any]) -> _Trial:
    failure = entry["invalidity"]
    if not isinstance(failure, str):
        raise ValueError(f"invalidity {failure!r:.40} is no word")
    if failure != "correct":
        return entry["configuration"], math.nan, FAILURES.get(failure, failure)
    measured = {each["name"]: each for each in entry["measurements"]}
    time = measured["time" if "time" in measured else entry["objectives"][0]]
    unit = time.get("unit") or tree.get("metadata", {}).get("timeunit", "none")
    return entry["configuration"], _seconds(time["value"], unit), None


def _cache_trial(entry: Mapping[str, Any], tree: Mapping[str, Any]) -> _Trial:
    configuration = {name: entry[name] for name in tree["tune_params_keys"]}
    failures = [FAILURES[value] for value in entry.values() if isinstance(value, str) and value in FAILURES]
    return (configuration, math.nan, failures[0]) if failures else (configuration, _seconds(entry["time"], "ms"), None)


def _seconds(value: Any, unit: str) -> float:
    if unit.lower() not in TIME_UNITS:
        raise ValueError(f"unit {unit!r} of its time is not one of {', '.join(TIME_UNITS)}")
    seconds = value * TIME_UNITS[unit.lower()] if isinstance(value, (int, float)) else math.nan
    if isinstance(value, bool) or not 0 < seconds < math.inf:
        raise ValueError(f"time {value!r:.40} is no positive number")
    return float(seconds)


def _checked(values: Mapping[str, Any], names: Sequence[str], space: SearchSpace | None) -> list[Value]:
    """Return the values in the order of the names, those of the space if there is one."""
    if set(values) != set(names) or set(names) & set(RESULTS):
        raise ValueError(f"it has the parameters {', '.join(values)}, not {', '.join(names)}")
    wrong = next((name for name in names if not isinstance(values[name], (int, float, str))), None)
    if wrong:
        raise ValueError(f"{wrong} is {values[wrong]!r:.40}, neither a number nor text")
    return [values[name] for name in names] if space is None else [
        each.parse(values[each.name]) for each in space.parameters]
