"""What a decision is found again by."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache

from sparloom.jit import kernel_source
from sparloom.measure import describe_machine
from sparloom.tuning.problem import Problem

__all__ = [
    "PlanKey", "kernels_digest", "machine_digest", "machine_digests", "ragged_kernels_digest", "sources_digest",
]

MACHINE = ("name", "processor", "architecture", "cache_l1d", "cache_l2", "cache_l3")
FORMS = ("c_transposed", "addends")
SOURCES = ("fused_f32.cpp", "fused_f64.cpp", "partition_order.cpp", "tile_schedule.cpp")
RAGGED_SOURCES = ("multiply.cpp", "tall_gemm.hpp", "gemm.hpp", "vector.hpp")


@dataclass(frozen=True)
class PlanKey:
    """All that a decision depends on.

    Args:
        form: of its operands: "c_transposed", "addends" or "".
        pattern: digest of A's pattern.
        right: digest of B's, "" where B is dense.
        inner: columns of B, 0 where it is sparse.
        fuse: what was asked for.
        machine: digest of its description.
        kernels: digest of the sources of kernels and inspector: after a change all is decided anew.
    """

    op: str
    form: str
    pattern: str
    right: str
    inner: int
    width: int
    dtype: str
    threads: int
    fuse: str
    machine: str
    kernels: str

    @classmethod
    def of(cls, problem: Problem, *, threads: int, fuse: str) -> "PlanKey":
        """Name a decision about a problem, on this machine."""
        pattern = problem.pattern.digest()
        right = "" if problem.right is None else pattern if problem.right is problem.pattern else problem.right.digest()
        form = ",".join(name for name in FORMS if getattr(problem.op, name, False))
        return cls(
            problem.op.name, form, pattern, right, problem.inner, problem.width, problem.dtype, threads, fuse,
            machine_digest(), kernels_digest())

    def digest(self) -> str:
        """Hash the key; 64 hexadecimal digits."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@cache
def machine_digest() -> str:
    """Hash what a decision may depend on of this machine."""
    return _digest(describe_machine())


@cache
def machine_digests() -> frozenset[str]:
    """Hash this machine as it is seen by processes that may use one of its processors, two, ... or all."""
    machine = describe_machine()
    here = f", {machine['threads']} threads, "
    names = [str(machine["name"]).replace(here, f", {threads} threads, ")
             for threads in range(1, 1 + max(int(machine["threads"]), os.cpu_count() or 1))]
    return frozenset(_digest({**machine, "name": name}) for name in names)


def kernels_digest() -> str:
    """Hash the sources of fused loops and their inspector."""
    return sources_digest(SOURCES)


@cache
def ragged_kernels_digest() -> str:
    """Hash the sources of products of tiles."""
    content = hashlib.sha256()
    for name in RAGGED_SOURCES:
        content.update(kernel_source(f"cpu/{name}").read_bytes())
    return content.hexdigest()


@cache
def sources_digest(names: tuple[str, ...]) -> str:
    """Hash sources under kernels/cpu, and all headers there."""
    folder = kernel_source("cpu/fused.hpp").parent
    content = hashlib.sha256()
    for path in sorted([*folder.glob("*.hpp"), *(folder / name for name in names)]):
        content.update(f"{path.name}\n{path.read_text(encoding='utf-8')}\n".encode())
    return content.hexdigest()


def _digest(machine: Mapping[str, str | int]) -> str:
    return hashlib.sha256(json.dumps([machine[name] for name in MACHINE]).encode()).hexdigest()
