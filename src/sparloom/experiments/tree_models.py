"""Where performance models lie and what they are called: those trained here before those of the data store."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparloom.data import ROLES, SampleSource, check_stored, ensure_data
from sparloom.errors import MissingArtifact
from sparloom.experiments.checkpoints import samples_name
from sparloom.files import settle
from sparloom.ops import Op
from sparloom.sparse import Role

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["TreeModels", "best_in"]

FULL, SMALL, INTERVAL = "full", "small", "interval"


@dataclass(frozen=True)
class TreeModels:
    """Folders of performance models; each kind of samples has its own.

    A folder has `full`, the model that was scored, and maybe `small`, its distilled one, `interval` and a C header. The
    data store, which every clone copies, has the distilled one alone. Models that may not know the matrices of some
    roles lie beside those that know all, which alone are found unasked.

    Args:
        artifacts: folder for those trained here.
        data: folder of the data store; it holds those of the real samples.
    """

    artifacts: str
    data: str

    def name(self, platform: "Platform", op: Op) -> str:
        """Name of the models of a platform with its preset."""
        return f"performance_{platform.name}_{platform.preset}_{op.name}"

    def folder(self, platform: "Platform", op: Op, samples: SampleSource, roles: Collection[Role] = ROLES) -> Path:
        """Where newly trained ones go, which may know the matrices of these roles."""
        name = "_without_".join([self.name(platform, op), *(role for role in ROLES if role not in roles)])
        return Path(self.artifacts) / "checkpoints" / samples_name(samples) / name

    def find(self, platform: "Platform", op: Op, samples: SampleSource) -> Path:
        """Find the folder of trained ones; `best_in` names the best model in it.

        Raises:
            MissingArtifact: names the experiment that trains them.
        """
        places = [self.folder(platform, op, samples)]
        if samples_name(samples) == "real":
            ensure_data(Path(self.data))
            places.append(Path(self.data) / "checkpoints" / self.name(platform, op))
        for place in places:
            for name in (FULL, SMALL):
                settle(place / name)
            if best_in(place).exists():
                for path in sorted(place.rglob("*")) if place is not places[0] else ():
                    check_stored(Path(self.data), path)
                return place
        raise MissingArtifact(f"no performance model of {op.name} on {platform.name} {platform.preset} in "
                              f"{' or '.join(str(place.parent) for place in places)}", experiment="fit_trees")


def best_in(folder: Path) -> Path:
    """Name the model that was scored, or the distilled one where that is missing."""
    return folder / FULL if (folder / FULL).exists() else folder / SMALL
