"""Record the conditions under which samples were made, and refuse to mix samples of different conditions."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sparloom.data import Conditions, Journal, SampleSource, SampleTable, compact, to_json_values
from sparloom.errors import SchemaError
from sparloom.experiments.harness.measuring import print_failures
from sparloom.measure import TimingProtocol, describe_machine
from sparloom.ops import Op
from sparloom.sparse import Corpus

if TYPE_CHECKING:
    from sparloom.platforms import Platform
import numpy as np
import pandas as pd

from sparloom.measure import noise_floor

logger = logging.getLogger(__name__)
IRRELEVANT = ("width", "readings", "name", "preset", "kind")
"""Attributes of a platform that do not influence its seconds, or that every row has in a column of its own."""


def conditions_of(platform: "Platform", op: Op, timing: TimingProtocol, **further: Any) -> Conditions:
    """Collect everything that the seconds of one platform depend on.

    The number of rounds is left out: another round is measured like the first. Simulated seconds do not depend on the
    machine that runs the simulation.
    """
    protocol = asdict(timing)
    del protocol["rounds"]
    declared = getattr(platform, "conditions", None)
    own = declared(op) if declared is not None else _attributes(platform)
    machine = {} if platform.kind == "simulated" else {"machine": describe_machine()["name"]}
    return Conditions({"platform": own, "op": _attributes(op), "timing": protocol, **machine, **further})


def identities_of(corpus: Corpus) -> dict[str, str]:
    """Map every matrix to a digest (16 digits) of its identity in the corpus, or of its size."""
    named = getattr(corpus, "identity", None)
    return {entry.name: Conditions({"identity": named(entry.name)} if named is not None else
                                   {"rows": entry.rows, "cols": entry.cols, "nnz": entry.nnz}).digest
            for entry in corpus.entries()}


def check_samples(table: SampleTable, platform: "Platform", op: Op) -> None:
    """Check that samples were simulated for the machine of this run.

    Samples of older versions do not record it; measured samples are accepted from any machine.

    Raises:
        SchemaError: the samples are of a machine with other parameters; names the differences.
    """
    stored = table.settings((op.name, platform.name, platform.preset))
    if stored is None or platform.kind != "simulated" or not hasattr(platform, "conditions"):
        return
    made, now = (Conditions({name: value for name, value in settings.items() if name != "simulator"})
                 for settings in (stored["platform"], platform.conditions(op)))
    if made.digest != now.digest:
        raise SchemaError(
            f"the samples of {op.name} on {platform.name} {platform.preset} are of another machine than this run "
            f"({made.differences(now)}): leave its parameters as they were, or collect samples of it into another "
            f"folder, experiment=collect_{platform.name} paths.data=...")


@dataclass(frozen=True)
class Resumed:
    """Existing journals and table of a collection, checked against the conditions of this run.

    Args:
        identities: matrix -> digest of its identity in the corpus, because a name may later stand for another matrix.
        overwrite: drop samples that were made under other conditions instead of raising an error.
    """

    op: str
    platform: str
    journals: Path
    table: Path
    conditions: Mapping[str, Conditions]
    identities: Mapping[str, str]
    overwrite: bool

    def begin(self) -> None:
        """Check existing journals and table, then record the conditions of this collection.

        Raises:
            SchemaError: samples were made under other or unknown conditions; names the difference and the remedies.
        """
        for path in self._paths():
            self._check(path)
        existing = self.existing()
        for preset, conditions in self.conditions.items():
            group = self.op, self.platform, preset
            found = existing.conditions().get(group) if existing is not None else None
            if found not in (None, conditions.digest):
                stored = existing.settings(group)
                raise self._refusal(self.table, preset, found, None if stored is None else Conditions(stored))
        for conditions in self.conditions.values():
            conditions.write(self.journals)

    def name(self, preset: str, matrix: str = "") -> str:
        """Return the value of `Sample.conditions` for rows of this collection."""
        return f"{self.conditions[preset].digest}:{self.identities.get(matrix, '')}"

    def existing(self) -> SampleTable | None:
        """Read the existing table without the rows to be overwritten; None if there is no table."""
        if not self.table.exists():
            return None
        table = SampleTable.read(self.table)
        for preset, conditions in self.conditions.items() if self.overwrite else ():
            group = self.op, self.platform, preset
            if table.conditions().get(group) not in (None, conditions.digest):
                table = table.without(group)
        return table

    def put_together(self, timing: TimingProtocol, **provenance: Any) -> None:
        """Write the table from the journals and what it had, and print failures."""
        entry = {"machine": dict(describe_machine()), "platform": self.platform, "op": self.op,
                 "timing": {key: str(value) for key, value in asdict(timing).items()}, **provenance}
        fresh = compact(self.journals, [entry]).filter(op=self.op, platform=self.platform)
        existing = self.existing()
        table = fresh if existing is None else existing.updated(fresh)
        table.write(self.table)
        logger.info("%s: %d rows of %d matrices", self.table, len(table), len(table.matrices))
        print_failures(table)

    def _paths(self) -> list[Path]:
        """List journals of this platform and operation; other presets may hold rows of the same vendor library."""
        return sorted(self.journals.glob(f"{quote(self.platform, safe='')},*,{quote(self.op, safe='')},*.jsonl"))

    def _check(self, path: Path) -> None:
        journal = Journal.at(path)
        _, preset, _, matrix = journal.key
        if preset not in self.conditions:
            if not self._shares(journal):
                return
            preset = next(iter(self.conditions))
        wanted = self.conditions[preset].digest
        for found in journal.conditions():
            digest, _, identity = found.partition(":")
            same = matrix not in self.identities or identity == self.identities[matrix]
            if digest == wanted and same:
                continue
            if not self.overwrite:
                before = Conditions.read(self.journals, digest) if digest else None
                raise self._refusal(path, preset, digest, before, matrix="" if same else matrix)
            journal.keep(f"{wanted}:{self.identities.get(matrix, identity)}")
            return

    def _shares(self, journal: Journal) -> bool:
        """Tell whether a journal of another preset holds rows of one of these presets, such as the vendor's."""
        return any(sample.preset in self.conditions for sample in journal.samples())

    def _refusal(
        self, path: Path, preset: str, digest: str, before: Conditions | None, *, matrix: str = "",
    ) -> SchemaError:
        if not digest:
            reason = "it does not say under which conditions, as an older version wrote it"
        elif digest == self.conditions[preset].digest:
            reason = f"{matrix} was another matrix"
        elif before is None:
            reason = f"conditions {digest}, now {self.conditions[preset].digest}"
        else:
            reason = before.differences(self.conditions[preset])
        return SchemaError(
            f"{path} holds samples of {self.op} on {self.platform} {preset} that were made under other conditions "
            f"({reason}): seconds of both would be in one table; give other folders (paths.artifacts=..., "
            "paths.data=...), or drop the samples there are by task.overwrite=true")


def _attributes(owner: Any) -> dict[str, Any]:
    """Return public attributes with plain values; cached properties are left out."""
    found = {}
    for name, value in getattr(owner, "__dict__", {}).items():
        if name.startswith("_") or name in IRRELEVANT or isinstance(getattr(type(owner), name, None), cached_property):
            continue
        try:
            found[name] = to_json_values(value)
        except TypeError:
            continue
    return found


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
    """Check that there are samples of the platform's width.

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
