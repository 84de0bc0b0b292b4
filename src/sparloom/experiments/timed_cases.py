"""Cases that are timed one after the other, each on disk as soon as it is done."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from sparloom.experiments.case_journal import CaseJournal
from sparloom.experiments.fanout import run_jobs
from sparloom.experiments.processors import alone
from sparloom.fusion import pinned
from sparloom.measure import Measurement
from sparloom.models import retain_memory

__all__ = ["statistics_of", "timed_cases"]

logger = logging.getLogger(__name__)

Case = TypeVar("Case")


def statistics_of(taken: Measurement) -> dict[str, Any]:
    """Columns of a timed method: seconds of each repetition, their median and bounds, and whether time was stolen."""
    low, middle, high = np.quantile(taken.seconds, (0.1, 0.5, 0.9))
    return {"median": float(middle), "p10": float(low), "p90": float(high), "stolen": taken.stolen,
            "seconds": list(taken.seconds)}


def timed_cases(
    rows_of: Callable[[Case], Sequence[Mapping[str, Any]]], planned: Mapping[str, Case], journal: Path, *,
    weights: Mapping[str, float], threads: int,
) -> pd.DataFrame:
    """Do the cases that the journal has not, alone on this machine, and give the rows of all in the order planned.

    Args:
        journal: file of what is under way; the caller removes it when its run is complete.
        weights: expected cost of each case in any unit.
        threads: that are pinned.
    """
    retain_memory()
    done = CaseJournal(journal)
    waiting = {key: case for key, case in planned.items() if key not in done.rows()}
    logger.info("%d of %d cases to do", len(waiting), len(planned))
    with alone(), pinned(threads):
        for key, rows in run_jobs(rows_of, waiting, weights={key: weights[key] for key in waiting}, processes=1,
                                  description="cases"):
            done.append(key, rows)
    found = done.rows()
    return pd.DataFrame([row for key in planned for row in found[key]])
