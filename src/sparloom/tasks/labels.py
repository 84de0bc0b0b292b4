"""The samples that belong to a platform, and labels of them with the noise that was measured beside them."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom.data import SampleSource, SampleTable
from sparloom.measure import noise_floor
from sparloom.ops import Op
from sparloom.tasks.resumed import check_samples

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["check_width", "labels_with_noise", "samples_of"]


def samples_of(samples: SampleSource, platform: "Platform", op: Op) -> SampleTable:
    """Read the samples of a platform at its own width: seconds of another width are those of another problem.

    Raises:
        ValueError: there are samples, but none of this width; the message names the widths that exist.
        SchemaError: the samples are of a machine with other parameters.
        MissingArtifact: as by `SampleSource.table`.
    """
    table = samples.table(platform.name, platform.preset, op.name)
    check_samples(table, platform, op)
    check_width(table, platform, op)
    width = getattr(platform, "width", None)
    return table if width is None or len(table.widths()) == 1 else table.filter(width=width)


def check_width(table: SampleTable, platform: "Platform", op: Op) -> None:
    """Refuse samples of other widths than that of the platform.

    Raises:
        ValueError: none has this width; the message names the widths that exist.
    """
    widths, width = table.widths(), getattr(platform, "width", None)
    if width is not None and width not in widths:
        raise ValueError(f"no samples of {op.name} on {platform.name} with {width} columns: give the platform a width "
                         f"of {', '.join(map(str, widths))}, or collect them")


def labels_with_noise(table: SampleTable, baseline: str) -> pd.DataFrame:
    """Reduce a table to labels; the repeated baseline of each matrix (A/A) bounds which pairs carry an order.

    Args:
        baseline: key of the configuration that is measured several times per round.

    Returns:
        As `SampleTable.labels`.
    """
    return table.labels(noise=_noise(table, baseline))


def _noise(table: SampleTable, baseline: str) -> dict[str, float]:
    """Relative noise by matrix, of matrices whose baseline ran at least twice."""
    frame = table.frame()
    rows = frame[(frame["config"] == baseline) & frame["failure"].isna()]
    found = {}
    for name, seconds in rows.groupby("matrix", observed=True)["seconds"]:
        least = [float(np.min(repetitions)) for repetitions in seconds]
        if len(least) > 1:
            found[str(name)] = noise_floor([least])
    return found
