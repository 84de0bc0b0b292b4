"""Tile schedules on disk: one file each, found again by what the schedule was made for."""

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.files import atomic_path
from sparloom.fusion.legality import check_iterations
from sparloom.fusion.schedule import ARRAYS, TileSchedule
from sparloom.sparse import read_members

__all__ = ["ScheduleKey", "ScheduleStore", "load_schedule", "save_schedule"]

log = logging.getLogger(__name__)

VERSION = 1
LIMIT_BYTES = 4 << 30


@dataclass(frozen=True)
class ScheduleKey:
    """All that a schedule depends on.

    Args:
        op: name of the operation.
        pattern: digest of A's pattern, with rows and columns as they are stored.
        inner_pattern: digest of B's pattern, "" where B is dense.
        inner: columns of B, 0 where it is sparse.
        threads: of the machine that executes it.
        cache_bytes: of one thread of that machine.
        order: in which the iterations were inspected: "natural", or the name of another, which the same pattern gives
            again, such as "metis".
    """

    op: str
    pattern: str
    inner_pattern: str
    inner: int
    width: int
    element_bytes: int
    threads: int
    cache_bytes: int
    ct_size: int
    order: str = "natural"

    def digest(self) -> str:
        """Hash the key; 64 hexadecimal digits, the same on every machine."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class ScheduleStore:
    """A folder of schedules; any number of processes may use it.

    Args:
        folder: made when the first schedule is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: ScheduleKey) -> TileSchedule | None:
        """Load what was kept for `key`; None if nothing was, or if its file is damaged."""
        path = self._path(key)
        if not path.exists():
            return None
        try:
            return load_schedule(path)
        except SchemaError as error:
            log.warning("%s: it is made anew", error)
            return None

    def keep(self, key: ScheduleKey, schedule: TileSchedule) -> None:
        """Keep a schedule in place of the one there was."""
        save_schedule(self._path(key), schedule)

    def _path(self, key: ScheduleKey) -> Path:
        return self.folder / f"{key.digest()}.npz"


def save_schedule(path: Path, schedule: TileSchedule) -> None:
    """Write a schedule, atomically, as an archive that numpy.load reads without unpickling."""
    arrays = {name: getattr(schedule, name) for name in ARRAYS}
    with atomic_path(path) as partial, partial.open("wb") as file:
        np.savez(file, version=np.int64(VERSION), tiles=np.array(schedule.tiles, np.int64),
                 build_seconds=np.float64(schedule.build_seconds), **arrays)


def load_schedule(path: Path, limit_bytes: int = LIMIT_BYTES) -> TileSchedule:
    """Read a schedule; whether it fits a matrix is for `check_schedule` to say.

    Args:
        limit_bytes: most that the file may unpack to.

    Raises:
        SchemaError: damaged, too large, of another version, or no schedule: an iteration is missing or occurs twice.
    """
    try:
        return _schedule(read_members(path, ("version", "tiles", "build_seconds", *ARRAYS), limit_bytes), path)
    except (ValueError, IllegalSchedule) as error:
        place = "" if str(error).startswith(str(path)) else f"{path}: "
        raise SchemaError(f"{place}{error}") from error


def _schedule(members: dict[str, np.ndarray], path: Path) -> TileSchedule:
    version = members.get("version")
    if version is None or version.shape != () or version != VERSION:
        raise ValueError(f"{path}: version {version}: this program reads version {VERSION}")
    missing = [name for name in ("tiles", "build_seconds", *ARRAYS) if name not in members]
    if missing:
        raise ValueError(f"{path}: member {missing[0]!r} is missing")
    tiles, seconds = members["tiles"], members["build_seconds"]
    if tiles.shape != (2,) or tiles.dtype != np.int64 or (tiles < 0).any():
        raise ValueError(f"{path}: member 'tiles' is {tiles.tolist()}: it must be two counts")
    if seconds.shape != () or seconds.dtype != np.float64:
        raise ValueError(f"{path}: member 'build_seconds' is {seconds.dtype} of shape {seconds.shape}: it must be one "
                         f"float64")
    counts = (int(tiles[0]), int(tiles[1]))
    schedule = TileSchedule(counts, **{name: members[name] for name in ARRAYS}, build_seconds=float(seconds))
    check_iterations(schedule)
    return schedule
