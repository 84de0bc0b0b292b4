"""Why samples have no seconds."""

import pandas as pd

from sparloom import log
from sparloom.data import SampleTable

__all__ = ["failure_reasons", "tell_failures"]

TOLD = 5  # reasons


def failure_reasons(table: SampleTable) -> pd.Series:
    """Count failed samples by reason, the most frequent first; reasons that differ in numbers only are one."""
    return table.failures()["failure"].str.replace(r"\d+(\.\d+)?", "#", regex=True).value_counts()


def tell_failures(table: SampleTable) -> None:
    """Print how many samples failed and the most frequent reasons; nothing when none did."""
    reasons = failure_reasons(table)
    if reasons.empty:
        return
    log.console.print(f"{reasons.sum():,} of {len(table):,} samples failed ({reasons.sum() / len(table):.1%}):")
    for reason, count in reasons.head(TOLD).items():
        log.console.print(f"{count:>9,}  {reason}", markup=False)
    if len(reasons) > TOLD:
        log.console.print(f"{reasons[TOLD:].sum():>9,}  for {len(reasons) - TOLD} other reasons")
