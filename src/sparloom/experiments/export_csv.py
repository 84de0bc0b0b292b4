"""Write stored SPADE samples as the CSV of COGNATE's appendix E, for other people's programs."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparloom.data import SampleSource, write_csv
from sparloom.experiments.labels import samples_of
from sparloom.ops import Op

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["ExportCsv"]

REORDER = "reverse Cuthill-McKee on A + A^T; clustering by degree for rectangular matrices"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportCsv:
    """Write the samples of one operation and preset as `samples=csv` reads them, with their sidecar.

    Args:
        platform: SPADE; other platforms have other parameters than the columns of the CSV.
        unit: of the column time: s, ms, us or ns.
    """

    op: Op
    platform: "Platform"
    samples: SampleSource
    unit: str

    def run(self, out: Path) -> Mapping[str, float]:
        """Write <platform>_<preset>_<op>.csv and .json; returns counts."""
        table = samples_of(self.samples, self.platform, self.op)
        frame = table.frame()
        path = out / f"{self.platform.name}_{self.platform.preset}_{self.op.name}.csv"
        write_csv(path, table, unit=self.unit, sidecar={
            "source": f"sparloom, {', '.join(sorted(set(frame['kind'])))}",
            "version": ", ".join(sorted(set(frame["commit"]))),
            "started": f"{frame['started'].min():%Y-%m-%dT%H:%M:%SZ}",
            "pes": getattr(self.platform, "pes", None),
            "reorder": REORDER,
        })
        metrics = {"matrices": len(table.matrices), "rows": len(frame[["matrix", "config"]].drop_duplicates()),
                   "failures": len(table.failures())}
        logger.info("%s: %d rows of %d matrices", path, metrics["rows"], metrics["matrices"])
        return metrics
