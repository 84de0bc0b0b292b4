"""The interfaces of platforms and of their kernels, and the platform of accelerators that a file describes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sparloom.errors import Unsupported
from sparloom.measure import Kind, Measurement, TimingProtocol
from sparloom.ops import DenseOperands, Op, Operands
from sparloom.platforms.timing import Call, Check
from sparloom.space import Config, ConfigSpace, Description, GridSpace, read_description
from sparloom.sparse import Pattern

Inputs = Operands | DenseOperands

BaselineBinder = Callable[[Inputs, np.ndarray], Call]
"""Binds a kernel of another library to operands and a result, to be timed among ours."""


class Platform(Protocol):
    """A machine that runs configurations of operations, or simulates them.

    Several presets of one platform may share their work in `measure_together`, which experiments use where a class has
    it; see `SpadePlatform`. A class may also have `conditions(op)`: a mapping of plain values on which its seconds
    depend, besides the machine, the timing and what a row of a sample table names. Samples are never added to samples
    that were made under other conditions. Without the method, the conditions are its public attributes except width,
    readings, name, preset and kind.

    Args:
        name: of the platform, the same for all presets.
        preset: name of its settings in sample tables.
        kind: clock of its seconds; different kinds never mix.
    """

    name: str
    preset: str
    kind: Kind

    def space(self, op: Op) -> ConfigSpace:
        """List the configurations of `op`, not yet bound to a matrix."""

    def baseline(self, op: Op, pattern: Pattern) -> Config:
        """Choose the configuration that speedups are relative to."""

    def run(self, op: Op, operands: Operands, config: Config) -> np.ndarray:
        """Compute the result in float32, to compare with the float64 oracle."""

    def measure(self, op: Op, operands: Operands, config: Config, timing: TimingProtocol) -> Measurement:
        """Measure one configuration."""

    def measure_many(
        self, op: Op, operands: Operands, configs: Sequence[Config], timing: TimingProtocol
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Measure configurations in interleaved rounds: configuration, round, measurement.

        Platforms that can time kernels of other libraries among their own take these as a last argument, `baselines`:
        configuration that names one in sample tables -> `BaselineBinder`.
        """


class Family(Protocol):
    """The kernels of one operation on a processor: its configurations, and how one is bound to arrays.

    Whatever else a kernel needs (partitions, workspaces) is made by `bind`, which is never timed. Calls of one family
    may share a workspace, so only one thread at a time may run them.

    Args:
        threads: of every call.
        width: columns of the dense operands for which `space` is made; GEMM ignores it.
    """

    threads: int
    width: int

    def space(self) -> ConfigSpace:
        """List the configurations."""

    def result(self, operands: Inputs) -> np.ndarray:
        """Allocate the array that a kernel overwrites."""

    def bind(self, operands: Inputs, config: Config, result: np.ndarray) -> Call:
        """Bind the kernel of a legal configuration to arrays."""

    def rebind(self, call: Any, operands: Inputs, result: np.ndarray) -> None:
        """Point a call of `bind` to other arrays of the same shapes, which costs much less than binding.

        Args:
            call: keeps these arrays alive until it is rebound.
        """

    def check(self, op: Op, operands: Inputs, *, seed: int) -> Check:
        """Make a check that compares a result, or part of it, with the float64 oracle."""


class KernelPlatform(ABC):
    """A platform of hand-written kernels, one family per operation."""

    @abstractmethod
    def family(self, op: Op) -> Any:
        """Return the kernels of `op`, or raise Unsupported."""

    def space(self, op: Op) -> ConfigSpace:
        """List the configurations of `op`, or raise Unsupported."""
        return self.family(op).space()

    def baseline(self, op: Op, pattern: Pattern | None) -> Config:
        """Take the default of the space, whatever the pattern, which is None for GEMM."""
        return self.space(op).default()

    def measure(self, op: Op, operands: Inputs, config: Config, timing: TimingProtocol) -> Measurement:
        """Measure one configuration and join the repetitions of all rounds."""
        return Measurement.joined([taken for _, _, taken in self.measure_many(op, operands, [config], timing)])

    @abstractmethod
    def measure_many(
        self, op: Op, operands: Inputs, configs: Sequence[Config], timing: TimingProtocol,
        baselines: Mapping[Config, Any] | None = None,
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Measure configurations in interleaved rounds.

        Every result is compared with the float64 oracle in every round. One that differs is a failed measurement, and
        so is a configuration that cannot be bound.

        Args:
            baselines: kernels of other libraries, by the configuration that names one in sample tables; they are bound,
                checked and timed like configurations.
        """


def unknown_operation(op: Op, platform: str, known: Iterable[str]) -> Unsupported:
    """Make the error of a platform that has no kernels for an operation."""
    return Unsupported(f"operation {op.name} on platform {platform}: there are kernels for {', '.join(known)}")


class RunElsewhere(ABC):
    """A platform that cannot be run or measured from here."""

    @abstractmethod
    def elsewhere(self) -> Unsupported:
        """Make the error that says where its seconds come from."""

    def run(self, op: Op, operands: Operands, config: Config) -> np.ndarray:
        """Raise Unsupported, as the next two do."""
        raise self.elsewhere()

    def measure(self, op: Op, operands: Operands, config: Config, timing: TimingProtocol) -> Measurement:
        raise self.elsewhere()

    def measure_many(
        self, op: Op, operands: Operands, configs: Sequence[Config], timing: TimingProtocol
    ) -> Iterator[tuple[Config, int, Measurement]]:
        raise self.elsewhere()

    def baseline(self, op: Op, pattern: Pattern) -> Config:
        """Take the default of the space."""
        return self.space(op).default()


class CustomPlatform(RunElsewhere):
    """An accelerator that a YAML file describes and whose seconds are in a CSV; it cannot be run from here.

    Args:
        space: path of the file, see `read_description`; it is read at first use.
        preset: name of these settings in sample tables.
        width: columns of the dense operands; None: as the file says.
    """

    option = "custom"  # of conf/options/platforms.yaml
    experiments = "spade"  # whose experiments make its encoder and its model
    runnable = False

    def __init__(self, space: str | None, preset: str, width: int | None) -> None:
        self.preset = preset
        self._file, self._width = space, width

    @cached_property
    def description(self) -> Description:
        """What the file says.

        Raises:
            ValueError: no file is given, or the width is another than that of the file.
            SchemaError: the file is wrong.
        """
        if self._file is None:
            raise ValueError("which accelerator? Give the YAML file of its parameters, space=<path>")
        found = read_description(Path(self._file).expanduser())
        if self._width not in (None, found.width):
            raise ValueError(f"the width of target is {self._width}, but {self._file} describes samples of width "
                             f"{found.width}: leave target.width out, or correct the file")
        return found

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def kind(self) -> Kind:
        return "wall" if self.description.times == "measured" else "simulated"

    @property
    def width(self) -> int:
        """Columns of the dense operands."""
        return self.description.width

    def version(self, op: Op) -> str:
        """Return 8 digits that change with the description; names of stored models contain them."""
        return self.space(op).digest()[:8]

    def conditions(self, op: Op) -> Mapping[str, Any]:
        """Name what the description says; nothing else is known about the seconds."""
        return {"space": self.space(op).digest()}

    def space(self, op: Op) -> GridSpace:
        """List the configurations of `op`, or raise Unsupported."""
        return self.description.space(op.name)

    def elsewhere(self) -> Unsupported:
        return Unsupported(f"{self.name} cannot be run from here, its seconds come from a CSV: time the configurations "
                           "on the accelerator, and leave verify=none")
