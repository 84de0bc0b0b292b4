"""Count the events of a simulated run on SPADE, and estimate its energy: counts times published energies per event.

A line of 64 bytes is charged once, at the level that served it. The energies are a table of the caller: the one in
conf/experiment/export_benchmark.yaml is that of Horowitz, ISSCC 2014, figure 1.1.9, 45 nm at 0.9 V.

Departures: dynamic energy only, no leakage and no clock, so a slow run costs no more than a fast one with equal counts.
Fills of the levels above the one that served a line, tags, vector registers, the interconnect and the control processor
are not charged.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from sparloom.platforms.spade.machine import LINE_BYTES, VALUE_BYTES, Machine
from sparloom.platforms.spade.simulate import Counts, trace_runs
from sparloom.space import Config
from sparloom.sparse import Pattern

EVENTS = ("multiplications", "additions", "vector_operations", "l1_lines", "victim_lines", "l2_lines", "llc_lines",
          "dram_lines")
"""What is counted: scalar operations in fp32; vector operations of 16 of them; lines of 64 bytes that a level served.

DRAM lines are all that move: rows read and written, the stream of coordinates and values, and results of SDDMM.
"""


def count_events(counts: Counts, op: str, *, passes: int) -> Int[np.ndarray, " events"]:
    """Count the events of all passes of a run, in the order of `EVENTS`.

    Args:
        counts: of one pass.
    """
    lines, lanes = counts.geometry.row_lines, LINE_BYTES // VALUE_BYTES
    vectors = counts.total("nonzeros") * lines
    served = [counts.total(level) * lines for level in ("l1", "victim", "l2", "llc")]
    return passes * np.array([vectors * lanes, vectors * lanes, vectors, *served, counts.dram_bytes(op) // LINE_BYTES],
                             dtype=np.int64)


def simulate_events(
    pattern: Pattern, configs: Mapping[str, Sequence[Config]], *, width: int, machines: Sequence[Machine],
) -> dict[str, tuple[Float[np.ndarray, "machines configs"], Int[np.ndarray, "machines configs events"]]]:
    """Simulate configurations on machines: op -> seconds, as `simulate_ops`, and events, from the same traces."""
    shapes = {op: (len(machines), len(chosen)) for op, chosen in configs.items()}
    result = {op: (np.empty(shape), np.empty((*shape, len(EVENTS)), np.int64)) for op, shape in shapes.items()}
    for run in trace_runs(pattern, configs, width=width, machines=machines):
        seconds, events = result[run.op]
        seconds[run.machines, run.config] = run.seconds
        events[run.machines, run.config] = count_events(run.counts, run.op, passes=run.passes)
    return result


def estimate_joules(
    events: Int[np.ndarray, "*runs events"], picojoules: Mapping[str, float],
) -> Float[np.ndarray, "*runs"]:
    """Estimate joules: counts times energies per event, summed over the events.

    Args:
        events: last axis in the order of `EVENTS`.
        picojoules: event -> energy.

    Raises:
        ValueError: an event has no energy, a negative one, or there is no such event.
    """
    absent, unknown = sorted(set(EVENTS) - set(picojoules)), sorted(set(picojoules) - set(EVENTS))
    if absent or unknown:
        raise ValueError(f"energies: {', '.join(absent) or 'none'} missing, {', '.join(unknown) or 'none'} unknown; "
                         f"give picojoules for each of {', '.join(EVENTS)}")
    negative = sorted(name for name, value in picojoules.items() if not value >= 0)
    if negative:
        raise ValueError(f"energy {picojoules[negative[0]]} of {negative[0]}: give picojoules of at least 0")
    return np.asarray(events, np.float64) @ np.array([picojoules[name] for name in EVENTS]) * 1e-12
