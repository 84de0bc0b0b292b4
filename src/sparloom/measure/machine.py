"""The machine that a measurement was made on."""

import os
import platform
from functools import cache
from pathlib import Path

__all__ = ["describe_machine", "usable_memory", "vector_lanes"]

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # of a container


@cache
def describe_machine() -> dict[str, str | int]:
    """Describe processor, caches, memory and system; holds nothing that identifies the host or its user.

    Returns:
        `name` (one line that goes into sample tables), `processor`, `architecture`, `threads`, `cache_l1d`,
        `cache_l2`, `cache_l3` (per instance, as the kernel prints them, "" when unknown), `memory_mib`, `system`.
    """
    processor = _processor()
    threads = len(os.sched_getaffinity(0))
    caches = _caches()
    return {
        "name": f"{processor}, {threads} threads, L2 {caches['cache_l2'] or '?'}, L3 {caches['cache_l3'] or '?'}",
        "processor": processor,
        "architecture": platform.machine(),
        "threads": threads,
        **caches,
        "memory_mib": _memory() // 2**20,
        "system": f"{platform.system()} {platform.release()}",
    }


def usable_memory() -> int:
    """Bytes that this machine has, or that its container may take."""
    found = [_memory()]
    for path in LIMITS:
        text = path.read_text(encoding="ascii").strip() if path.exists() else ""
        found += [int(text)] if text.isdecimal() else []
    return min(found)


@cache
def vector_lanes() -> int:
    """Count the float32 numbers of a vector register: 16 with AVX-512, 8 with AVX, else 4."""
    path = Path("/proc/cpuinfo")
    features = set(path.read_text(encoding="utf-8").split()) if path.exists() else set()
    return 16 if "avx512f" in features else 8 if "avx" in features else 4


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    """Name, family and model: virtual machines often shorten the name to its maker."""
    fields: dict[str, str] = {}
    path = Path("/proc/cpuinfo")
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    return f"{fields['model name']} family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"


def _caches() -> dict[str, str]:
    sizes = {"cache_l1d": "", "cache_l2": "", "cache_l3": ""}
    names = {("1", "Data"): "cache_l1d", ("2", "Unified"): "cache_l2", ("3", "Unified"): "cache_l3"}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        key = tuple((folder / part).read_text(encoding="utf-8").strip() for part in ("level", "type"))
        if key in names:
            sizes[names[key]] = (folder / "size").read_text(encoding="utf-8").strip()
    return sizes
