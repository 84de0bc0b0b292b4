"""Constants of a machine that features may read, from its description."""

import re
from collections.abc import Mapping

__all__ = ["machine_constants"]

UNITS: Mapping[str, int] = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
CACHES: Mapping[str, tuple[str, float]] = {
    "l1_bytes": ("cache_l1d", 2.0**15), "l2_bytes": ("cache_l2", 2.0**20), "l3_bytes": ("cache_l3", 2.0**25),
}
"""Name of the constant -> name in `measure.describe_machine`, and what stands for it where that is unknown."""


def machine_constants(machine: Mapping[str, str | int], *, threads: int) -> dict[str, float]:
    """Read what `describe_machine` wrote into the provenance of a table: bytes of the caches, threads of a kernel."""
    caches = {name: _bytes(str(machine.get(key, "")), otherwise) for name, (key, otherwise) in CACHES.items()}
    return caches | {"threads": float(threads)}


def _bytes(text: str, otherwise: float) -> float:
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    return float(int(found[1]) * UNITS[found[2]]) if found else otherwise
