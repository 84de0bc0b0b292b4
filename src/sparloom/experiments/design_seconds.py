"""Simulated seconds by matrix and machine, kept on disk: a killed run goes on where it was."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparloom.data import Conditions
from sparloom.files import read_json, write_json
from sparloom.space import Config
from sparloom.sparse import Pattern

if TYPE_CHECKING:
    from sparloom.platforms.spade import Machine

__all__ = ["DesignSeconds"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DesignSeconds:
    """Asks the simulator, level T1, for what no file has; one file per matrix and machine.

    A file is found by the operation, the width, all parameters of the machine, the version of the simulator, and the
    content of the pattern.

    Args:
        folder: of the files.
        op: name of the operation.
        width: columns of the dense operands.
    """

    folder: Path
    op: str
    width: int

    def of(self, pattern: Pattern, configs: Sequence[Config], machines: Sequence["Machine"]) -> np.ndarray:
        """Seconds of each configuration on each machine, (machines, configs)."""
        from sparloom.platforms.spade import simulate_many

        paths = [self._path(pattern, machine) for machine in machines]
        known = [_read(path) for path in paths]
        lacking = [tuple(config for config in configs if config.key not in found) for found in known]
        for missing in dict.fromkeys(lack for lack in lacking if lack):
            places = [place for place, lack in enumerate(lacking) if lack == missing]
            times = simulate_many(pattern, self.op, width=self.width, configs=missing,
                                  machines=[machines[place] for place in places])
            for place, row in zip(places, times, strict=True):
                fresh = {config.key: float(value) for config, value in zip(missing, row, strict=True)}
                known[place] = {**known[place], **fresh}
                write_json(paths[place], known[place])
        return np.array([[found[config.key] for config in configs] for found in known])

    def _path(self, pattern: Pattern, machine: "Machine") -> Path:
        from sparloom.platforms.spade import simulator_digest

        made = {"machine": asdict(machine), "width": self.width, "simulator": simulator_digest()}
        digest = Conditions(made).digest
        return self.folder / f"{self.op}-{digest}" / f"{pattern.digest()[:24]}.json"


def _read(path: Path) -> Mapping[str, float]:
    if not path.exists():
        return {}
    try:
        return read_json(path)
    except ValueError as error:
        logger.warning("%s is damaged (%s): it is simulated again", path, error)
        return {}
