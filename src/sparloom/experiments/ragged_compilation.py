"""What the compiler takes for the kernels of an encoder layer, in fresh processes: with an empty cache, and again."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from sparloom.files import scratch_folder

__all__ = ["compile_seconds"]

PROGRAM = """
import json, time
from sparloom.ragged import EncoderSchedule, EncoderShape, Executable, scheduled_encoder_layer
start = time.perf_counter()
program = scheduled_encoder_layer(EncoderShape(), EncoderSchedule())
scheduled = time.perf_counter()
Executable(program)
print(json.dumps({"schedule": scheduled - start, "compile": time.perf_counter() - scheduled}))
"""


def compile_seconds(repetitions: int) -> dict[str, list[float]]:
    """Time each repetition with a cache of its own.

    Returns:
        "cold": lowering and compiling all kernels; "cached": lowering and loading them in the next process;
        "schedule": defining and scheduling the program, which comes before either.
    """
    taken: dict[str, list[float]] = {"cold": [], "cached": [], "schedule": []}
    for _ in range(repetitions):
        with scratch_folder("cache") as cache:
            for name in ("cold", "cached"):
                found = _fresh_process(cache)
                taken[name].append(found["compile"])
                taken["schedule"].append(found["schedule"])
    return taken


def _fresh_process(cache: Path) -> Mapping[str, float]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "SPARLOOM_CACHE": str(cache)}, check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)
