"""The CPU with kernels written by hand: every operation has a family of kernels, chosen by parameters."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.jit import aligned, compiler_version, sources_digest
from sparloom.measure import Measurement, TimingProtocol, checked_threads
from sparloom.ops import Op
from sparloom.platforms.clock import Stopwatch, keep_threads_awake
from sparloom.platforms.cpu_kernels.kernels import (
    Allocate,
    AttentionKernels,
    Family,
    GemmKernels,
    Given,
    Rival,
    SddmmKernels,
    SpmmKernels,
    SpmmMaxKernels,
)
from sparloom.platforms.timing import Call, Contender, reallocated, repeat_of, sweep
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern

__all__ = ["CpuKernels"]

FAMILIES: Mapping[str, Callable[[int, int, Allocate], Family]] = {
    "gemm": GemmKernels, "spmm": SpmmKernels, "spmm_max": SpmmMaxKernels, "sddmm": SddmmKernels,
    "attention": AttentionKernels}


class CpuKernels:
    """Kernels under kernels/cpu, compiled for this machine; a configuration is a choice among them and their tiles.

    Args:
        threads: of every kernel; names the preset.
        width: columns of the dense operand for which the spaces of sparse operations are made.
        allocate: arrays for results.
    """

    name = "cpu_kernels"
    kind = "wall"

    def __init__(self, threads: int, width: int, allocate: Allocate = aligned) -> None:
        self.threads = checked_threads(threads)
        self.width = width
        self._allocate = allocate

    def __reduce__(self) -> tuple[type["CpuKernels"], tuple[int, int, Allocate]]:
        """Travel to another process as settings: compiled kernels stay where they are."""
        return CpuKernels, (self.threads, self.width, self._allocate)

    @property
    def preset(self) -> str:
        """Name of these settings in sample tables."""
        return f"t{self.threads}"

    def conditions(self, op: Op) -> Mapping[str, Any]:
        """Name what seconds depend on beside the machine: threads, compiler, sources of the kernels of `op`."""
        self.family(op)  # refuses an operation without kernels
        return {"threads": self.threads, "compiler": compiler_version("c++"),
                "sources": sources_digest([f"cpu/{op.name}.cpp"])}

    def space(self, op: Op) -> ConfigSpace:
        """List the configurations of `op`.

        Raises:
            Unsupported: there are no kernels for it.
        """
        return self.family(op).space()

    def baseline(self, op: Op, pattern: Pattern | None) -> Config:
        """Take the default of the space, whatever the pattern; GEMM has none."""
        return self.space(op).default()

    def run(self, op: Op, operands: Given, config: Config) -> np.ndarray:
        """Compute the result in float32.

        Raises:
            IllegalSchedule: the configuration is not in the space.
        """
        family = self.family(op)
        family.space().validate(config)
        result = family.result(operands)
        family.bind(operands, config, result)()
        return result

    def measure(self, op: Op, operands: Given, config: Config, timing: TimingProtocol) -> Measurement:
        """Measure one configuration; the repetitions of all rounds in one measurement."""
        return Measurement.joined([taken for _, _, taken in self.measure_many(op, operands, [config], timing)])

    def measure_many(
        self, op: Op, operands: Given, configs: Sequence[Config], timing: TimingProtocol,
        rivals: Mapping[Config, Rival] | None = None,
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Measure configurations in interleaved rounds; in each, operands are allocated anew.

        Every result is compared with the float64 oracle in every round; one that differs is a failed measurement.

        Args:
            rivals: what others have for the same operation, under the configuration that names it in sample tables;
                bound, checked and timed like a configuration.
        """
        keep_threads_awake()
        family, rng = self.family(op), np.random.default_rng(timing.seed)
        for config in configs:
            family.space().validate(config)
        check = family.check(op, operands, seed=timing.seed)

        def watch(call: Call) -> Stopwatch:
            return Stopwatch(repeat_of(call), timing, threads=self.threads)

        for number in range(timing.rounds):
            given = reallocated(operands)
            result = family.result(given)
            contenders = [Contender(config, family.bind(given, config, result)) for config in configs]
            contenders += [Contender(config, rival(given, result)) for config, rival in (rivals or {}).items()]
            for config, measurement in sweep(contenders, result, check, watch=watch, rng=rng):
                yield config, number, measurement

    def family(self, op: Op) -> Family:
        """Give the kernels of `op`.

        Raises:
            Unsupported: there are none.
        """
        if op.name not in self._families:
            listed = ", ".join(self._families)
            raise Unsupported(f"operation {op.name} on platform {self.name}: there are kernels for {listed}")
        return self._families[op.name]

    @cached_property
    def _families(self) -> dict[str, Family]:
        return {name: family(self.threads, self.width, self._allocate) for name, family in FAMILIES.items()}
