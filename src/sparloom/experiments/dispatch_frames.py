"""Tables of a bench of input-aware operations: the same columns, of the same types, however few rows there are."""

from collections.abc import Iterable, Mapping

import pandas as pd

__all__ = ["CANDIDATES", "DECISIONS", "PER_CASE", "frame_of"]

CASE = {"op": "str", "matrix": "str", "width": "int64", "rows": "int64", "nnz": "int64", "kind": "str"}
TIMED = {"method": "str", "median": "float64", "p10": "float64", "p90": "float64", "stolen": "object",
         "seconds": "object"}
PER_CASE = {**CASE, **TIMED, "flops": "float64", "bytes": "float64", "peak_bytes": "float64", "failure": "str"}
DECISIONS = {**CASE, "way": "str", "repeat": "int64", "choice": "str", "origin": "str", "reason": "str",
             "calls": "int64", "call_seconds": "float64", "beyond_seconds": "float64", "start_seconds": "float64",
             "decision_seconds": "float64", "decision_executions": "int64"}
CANDIDATES = {**CASE, **TIMED}


def frame_of(rows: Iterable[Mapping[str, object]], columns: Mapping[str, str]) -> pd.DataFrame:
    """Make a table; what a row does not have is missing.

    Args:
        columns: name -> type.
    """
    return pd.DataFrame(list(rows), columns=list(columns)).astype(dict(columns))
