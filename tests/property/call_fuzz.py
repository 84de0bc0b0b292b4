"""Draw public calls by seed and check each: numbers as in float64, or an error that names the offender.

    python call_fuzz.py FIRST COUNT PROGRESS [FAMILY ...]

tries the seeds FIRST, FIRST + 1, ... of all families, or of those named; before each it writes the seed to the file
PROGRESS, so that it is known even if the process dies of it. Says what went wrong and exits with 1 if anything did.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for modules that other tests share, too

from array_calls import Case, draw_empty, draw_out, draw_steps, draw_values
from layer_calls import draw_graph_layer, draw_graph_steps, draw_token_layer, draw_wrong_graph_layer, draw_wrong_tokens
from program_calls import draw_fused, draw_jacobi, draw_pair, draw_solver_steps, draw_threads
from ragged_calls import draw_ragged, draw_ragged_tensor
from tensor_calls import draw_operation, draw_tensor_steps, draw_wrong_operation

__all__ = ["FAMILIES", "draw", "main"]

SHOWN = 30  # failures

FAMILIES: Mapping[str, Callable[[np.random.Generator], Case]] = {
    "out": draw_out, "values": draw_values, "empty": draw_empty, "steps": draw_steps, "jacobi": draw_jacobi,
    "pair": draw_pair, "fused": draw_fused, "ragged": draw_ragged, "threads": draw_threads, "operation": draw_operation,
    "wrong_operation": draw_wrong_operation, "tensor_steps": draw_tensor_steps, "tokens": draw_token_layer,
    "wrong_tokens": draw_wrong_tokens, "graph": draw_graph_layer, "wrong_graph": draw_wrong_graph_layer,
    "graph_steps": draw_graph_steps, "ragged_tensor": draw_ragged_tensor, "solver_steps": draw_solver_steps,
}


def draw(seed: int, families: Sequence[str] = tuple(FAMILIES)) -> Case:
    """Draw the case of a seed, of one family after the other."""
    return FAMILIES[families[seed % len(families)]](np.random.default_rng(seed))


def main(first: int, count: int, progress: str, families: Sequence[str] = ()) -> int:
    """Try seeds; 1 if something went wrong."""
    failures, families = [], tuple(families) or tuple(FAMILIES)
    with open(progress, "w", encoding="ascii") as file:
        for seed in range(first, first + count):
            os.pwrite(file.fileno(), f"{seed:<12}".encode(), 0)
            case = draw(seed, families)
            fault = case.check()
            if fault is not None:
                failures.append(f"seed {seed}: {case.text}: {fault}")
    shown = "\n".join(failures[:SHOWN])
    sys.stdout.write(f"{len(failures)} of {count} cases failed\n{shown}\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
