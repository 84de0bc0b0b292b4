"""NVIDIA GPUs as a platform."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from importlib import metadata
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.jit import sources_digest
from sparloom.measure import REPEATS, Measurement, TimingProtocol
from sparloom.ops import CsrAttention, Op
from sparloom.platforms.clock import Stopwatch
from sparloom.platforms.cuda.device import CudaDevice, CupyGpu, Gpu
from sparloom.platforms.cuda.operands import Family, Given, Placed, Rival
from sparloom.platforms.cuda.sparse_kernels import AttentionKernels, SddmmKernels, SpmmKernels
from sparloom.platforms.cuda.triton_gemm import TritonGemm
from sparloom.platforms.timing import Call, Contender, sweep
from sparloom.space import Config, ConfigSpace, CudaKernelSpace, CudaSpace
from sparloom.sparse import Pattern

__all__ = ["CudaPlatform"]

SPACES = {"cuda": ("spmm", "sddmm"), "cuda_kernels": ("spmm", "spmm_mean", "spmm_max", "sddmm", "attention"),
          "triton": ("gemm",)}
KERNELS = {"spmm": SpmmKernels, "spmm_mean": SpmmKernels, "spmm_max": SpmmKernels, "sddmm": SddmmKernels,
           "attention": AttentionKernels}
SOURCES = {"spmm_mean": "spmm", "spmm_max": "spmm"}
COMPILERS = ("cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "triton")


class CudaPlatform:
    """Kernels under kernels/cuda, or those of Triton, on the current device and timed by its own clock.

    Spaces and limits need no device; running does.

    Args:
        space: "cuda", the spaces of COGNATE's third platform; "cuda_kernels", AutoSAGE's mappings and more;
            "triton", dense GEMM. Names the platform.
        device: whose limits hold: "here", the installed one, or the name of one to plan for, such as "h200". Names the
            preset.
        width: columns of the dense operands for which the spaces are made; of attention, all heads together.
    """

    kind = "device"

    def __init__(self, space: str, device: str, width: int) -> None:
        if space not in SPACES:
            raise ValueError(f"space {space!r}: there are {', '.join(SPACES)}")
        self.name = space
        self.device = device
        self.width = width
        self._families: dict[tuple[str, int], Family] = {}

    def __reduce__(self) -> tuple[type["CudaPlatform"], tuple[str, str, int]]:
        """Travel to another process as settings: devices stay where they are."""
        return CudaPlatform, (self.name, self.device, self.width)

    @property
    def preset(self) -> str:
        """Name of the device in sample tables."""
        return self.limits.name

    @cached_property
    def limits(self) -> CudaDevice:
        """What the device offers a launch."""
        return CudaDevice.here() if self.device == "here" else CudaDevice.named(self.device)

    def conditions(self, op: Op) -> Mapping[str, Any]:
        """Name what seconds depend on: the device, the sources of the kernels of `op`, and what compiles them."""
        self.family(op)  # refuses an operation without kernels
        compilers = {name: _version(name) for name in COMPILERS}
        sources = "" if self.name == "triton" else sources_digest([f"cuda/{SOURCES.get(op.name, op.name)}.cu"])
        return {"device": asdict(self.limits), "sources": sources, "compilers": compilers}

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
        """Compute the result, in the type of the dense operands: float32, or float16 where the kernels are ours.

        Raises:
            IllegalSchedule: the configuration is not in the space.
            Unsupported: there is no device, or it cannot start the kernels.
        """
        family = self.family(op)
        family.space().validate(config)
        result = family.result(self.gpu, operands)
        family.bind(self.gpu, Placed.on(self.gpu, operands), config, result)()
        return self.gpu.download(result)

    def measure(self, op: Op, operands: Given, config: Config, timing: TimingProtocol) -> Measurement:
        """Measure one configuration; the repetitions of all rounds in one measurement."""
        return Measurement.joined([taken for _, number, taken in self.measure_many(op, operands, [config], timing)
                                   if number < timing.rounds])

    def measure_many(
        self, op: Op, operands: Given, configs: Sequence[Config], timing: TimingProtocol,
        rivals: Mapping[Config, Rival] | None = None,
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Measure configurations in interleaved rounds; in each, operands are copied to the device anew.

        The baseline of a sparse operation, if asked for beside others, is measured three times in each round (A/A), as
        by `CpuPlatform`: the second and third are rounds `rounds + 2 * round` and the next, and tell the drift.

        Every result is compared with the float64 oracle in every round; one that differs is a failed measurement, and
        so is a configuration that the device cannot start.

        Args:
            rivals: what others have for the same operation, under the configuration that names it in sample tables.
        """
        gpu, family, rng = self.gpu, self.family(op), np.random.default_rng(timing.seed)
        for config in configs:
            family.space().validate(config)
        check = family.check(op, operands, seed=timing.seed)
        repeated = self._repeated(op, configs)

        def watch(call: Call) -> Stopwatch:
            return Stopwatch(gpu.repeat(call), timing, threads=1, kind=self.kind)

        for number in range(timing.rounds):
            placed, result = Placed.on(gpu, operands), family.result(gpu, operands)
            calls = {config: partial(family.bind, gpu, placed, config, result) for config in configs}
            calls |= {config: partial(rival, placed, result) for config, rival in (rivals or {}).items()}
            contenders, refused = _bound(calls)
            contenders += [each for each in contenders if each.config in repeated for _ in range(REPEATS)]
            numbers = {config: iter((number, *range(timing.rounds + REPEATS * number,
                                                    timing.rounds + REPEATS * (number + 1)))) for config in repeated}
            for config, reason in refused.items():
                yield config, number, Measurement.failed(reason, self.kind)
            for config, measurement in sweep(contenders, result, lambda found: check(gpu.download(found)), watch=watch,
                                             rng=rng):
                yield config, next(numbers[config]) if config in repeated else number, measurement

    @cached_property
    def gpu(self) -> Gpu:
        """The device, opened on first use.

        Raises:
            Unsupported: there is none, or it is not the one that was planned for.
        """
        gpu = CupyGpu()
        if self.device != "here" and gpu.device.name != self.limits.name:
            raise Unsupported(f"device={self.device} is planned for, but a {gpu.device.name} is here: use device=here")
        return gpu

    def family(self, op: Op) -> Family:
        """Give the kernels of `op`.

        Raises:
            Unsupported: there are none.
        """
        if op.name not in SPACES[self.name]:
            listed = ", ".join(SPACES[self.name])
            raise Unsupported(f"operation {op.name} on platform {self.name}: there are kernels for {listed}")
        key = op.name, self.width // op.heads if isinstance(op, CsrAttention) else self.width
        if key not in self._families:
            self._families[key] = self._family(*key)
        return self._families[key]

    def _repeated(self, op: Op, configs: Sequence[Config]) -> tuple[Config, ...]:
        """Name the configuration whose repetitions tell the drift; sweeps of GEMM have no rounds for it."""
        baseline = None if self.name == "triton" or len(configs) < 2 else self.baseline(op, None)
        return (baseline,) if baseline in configs else ()

    def _family(self, op: str, width: int) -> Family:
        if self.name == "triton":
            return TritonGemm(self.limits)
        make = CudaSpace if self.name == "cuda" else CudaKernelSpace
        return KERNELS[op](make(op, width=width))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _bound(calls: Mapping[Config, Callable[[], Call]]) -> tuple[list[Contender], dict[Config, str]]:
    """Bind all configurations; those that the device cannot start come with the reason."""
    contenders, refused = [], {}
    for config, bind in calls.items():
        try:
            contenders.append(Contender(config, bind()))
        except Unsupported as error:
            refused[config] = str(error)
    return contenders, refused
