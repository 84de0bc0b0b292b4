"""Gather finished samples of one operation: checked, restricted to a manifest, in one folder for what follows."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparloom.data import (
    Manifest,
    MatrixInputs,
    SampleSource,
    SampleTable,
    Split,
    write_statistics,
    write_walks,
)
from sparloom.ops import Op

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["Gather"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gather:
    """Write what later runs read of some samples, in the layout of `StoredSamples`: paths.data=<folder> reads it.

    Nothing is measured or simulated here: that takes hours and a quiet machine, and is done by Collect.

    Args:
        platforms: whose samples are taken, each with its preset.
        manifest: path of the list of the matrices that take part, as `Manifest` reads it; None: all.
    """

    op: Op
    platforms: Sequence["Platform"]
    samples: SampleSource
    manifest: str | None

    def run(self, out: Path) -> Mapping[str, float]:
        """Check all, then write samples/, inputs/, statistics/, split.csv and manifest.csv; returns counts.

        Raises:
            SchemaError: the samples are not of the matrices of the manifest.
            ValueError: a matrix has no role or no statistics, or a platform has samples of none.
        """
        inputs = self.samples.inputs()
        manifest = Manifest.of(inputs) if self.manifest is None else Manifest.read(Path(self.manifest))
        manifest.check(inputs)
        names = sorted(manifest.matrices)
        roles, families = self.samples.split(), self.samples.families()
        statistics, walks = self.samples.statistics(), self.samples.walks()
        for what, known in (("role", roles), ("pattern statistics", statistics.index), ("walks", walks)):
            _refuse_absent(names, known, what)
        tables = self._tables(names)
        for name, table in tables.items():
            table.write(out / "samples" / f"{name}.parquet")
            logger.info("%s: %d rows of %d of %d matrices", name, len(table), len(table.matrices), len(names))
        MatrixInputs.of([inputs[name] for name in names], inputs.conditions).write(out / "inputs" / "inputs.npz")
        write_statistics(out / "statistics" / "statistics.parquet", statistics.loc[names])
        write_walks(out / "statistics" / "walks.parquet", {name: walks[name] for name in names})
        split = Split({name: roles[name] for name in names}, {name: families.get(name, name) for name in names})
        split.write(out / "split.csv")
        manifest.write(out / "manifest.csv")
        counts = {f"{name}/{what}": count for name, table in tables.items()
                  for what, count in (("rows", len(table)), ("matrices", len(table.matrices)))}
        return {"matrices": len(names), **counts}

    def _tables(self, names: Collection[str]) -> dict[str, SampleTable]:
        """Validated samples by file; presets of one platform share one."""
        tables: dict[str, SampleTable] = {}
        for platform in self.platforms:
            whole = self.samples.table(platform.name, platform.preset, self.op.name)
            table = whole.filter(preset=platform.preset, matrices=names)
            if not len(table):
                raise ValueError(f"no samples of {platform.name} {platform.preset} of any of {len(names)} matrices: "
                                 "check task.manifest and samples")
            table.validate()
            name = f"{platform.name}_{self.op.name}"
            tables[name] = SampleTable.concat([tables[name], table]) if name in tables else table
        return tables


def _refuse_absent(names: Sequence[str], known: Collection[str], what: str) -> None:
    absent = [name for name in names if name not in known]
    if absent:
        raise ValueError(f"{len(absent)} of {len(names)} matrices have no {what} ({', '.join(absent[:3])}): "
                         "run experiment=prepare_inputs, or take them out of the manifest")
