"""NVIDIA GPUs as a platform."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from importlib import metadata
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.jit import sources_digest
from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import CsrAttention, Op
from sparloom.platforms.clock import Stopwatch
from sparloom.platforms.cuda import DeviceOperands
from sparloom.platforms.cuda.device import CudaDevice, CupyGpu, Gpu
from sparloom.platforms.cuda.launch import BaselineBinder, Family
from sparloom.platforms.cuda.sparse_kernels import AttentionKernels, SddmmKernels, SpmmKernels
from sparloom.platforms.cuda.triton_gemm import VERSION, TritonGemm
from sparloom.platforms.platform import Inputs, KernelPlatform, unknown_operation
from sparloom.platforms.timing import Call, measure_rounds
from sparloom.space import Config, CudaKernelSpace, CudaSpace

SPACES = {"cuda": ("spmm", "sddmm"), "cuda_kernels": ("spmm", "spmm_mean", "spmm_max", "sddmm", "attention"),
          "triton": ("gemm",)}
KERNELS = {"spmm": SpmmKernels, "spmm_mean": SpmmKernels, "spmm_max": SpmmKernels, "sddmm": SddmmKernels,
           "attention": AttentionKernels}
SOURCES = {"spmm_mean": "spmm", "spmm_max": "spmm"}
COMPILERS = ("cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "triton")


class CudaPlatform(KernelPlatform):
    """Kernels under kernels/cuda, or those of Triton, run on the current device and timed by its own clock.

    Spaces and limits are available without a device.

    Args:
        space: "cuda", the spaces of COGNATE's third platform; "cuda_kernels", AutoSAGE's mappings and more;
            "triton", dense GEMM. Names the platform.
        device: the device whose limits hold: "here", the installed one, or the name of one to plan for, such as
            "h200". Names the preset.
        width: columns of the dense operands for which the spaces are made; of attention, those of all heads together.
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
        """Pickle the settings only: devices stay in their process."""
        return CudaPlatform, (self.name, self.device, self.width)

    @property
    def preset(self) -> str:
        """Name of the device in sample tables."""
        return self.limits.name

    @cached_property
    def limits(self) -> CudaDevice:
        """Limits of the device."""
        return CudaDevice.here() if self.device == "here" else CudaDevice.named(self.device)

    def conditions(self, op: Op) -> Mapping[str, Any]:
        """Name what seconds depend on: the device, the sources of the kernels of `op`, and the compilers."""
        self.family(op)  # refuses an operation without kernels
        compilers = {name: _version(name) for name in COMPILERS}
        sources = VERSION if self.name == "triton" else sources_digest([f"cuda/{SOURCES.get(op.name, op.name)}.cu"])
        return {"device": asdict(self.limits), "sources": sources, "compilers": compilers}

    def run(self, op: Op, operands: Inputs, config: Config) -> np.ndarray:
        """Compute the result, in the type of the dense operands: float32, or float16 except with Triton.

        Raises:
            IllegalSchedule: the configuration is not in the space.
            Unsupported: there is no device, or it cannot start the kernels.
        """
        family = self.family(op)
        family.space().validate(config)
        result = family.result(self.gpu, operands)
        family.bind(self.gpu, DeviceOperands.on(self.gpu, operands), config, result)()
        return self.gpu.download(result)

    def measure_many(
        self, op: Op, operands: Inputs, configs: Sequence[Config], timing: TimingProtocol,
        baselines: Mapping[Config, BaselineBinder] | None = None,
    ) -> Iterator[tuple[Config, int, Measurement]]:
        """Measure configurations in interleaved rounds, as `KernelPlatform` says; in each, operands are copied anew.

        The baseline of a sparse operation, if asked for together with others, is measured three times in each round
        (A/A) as by `CpuPlatform`, to tell the drift: the additional ones are rounds `rounds + 2 * round` and the next.
        """
        gpu, family = self.gpu, self.family(op)
        for config in configs:
            family.space().validate(config)
        family.compile(operands, configs)
        check = family.check(op, operands, seed=timing.seed)

        def prepare() -> tuple[dict[Config, Callable[[], Call]], Any]:
            inputs, result = DeviceOperands.on(gpu, operands), family.result(gpu, operands)
            ours = {config: partial(family.bind, gpu, inputs, config, result) for config in configs}
            return ours | {config: partial(bind, inputs, result) for config, bind in (baselines or {}).items()}, result

        yield from measure_rounds(
            prepare, lambda found: check(gpu.download(found)), timing, kind=self.kind,
            stopwatch=lambda call: Stopwatch(gpu.repeat(call), timing, threads=1, kind=self.kind),
            repeated=self._repeated(op, configs))

    @cached_property
    def gpu(self) -> Gpu:
        """The device, opened on first use; raises Unsupported if there is none or it was not planned for."""
        gpu = CupyGpu()
        if self.device != "here" and gpu.device.name != self.limits.name:
            raise Unsupported(f"device={self.device} is planned for, but a {gpu.device.name} is here: use device=here")
        return gpu

    def family(self, op: Op) -> Family:
        """Return the kernels of `op`."""
        if op.name not in SPACES[self.name]:
            raise unknown_operation(op, self.name, SPACES[self.name])
        key = op.name, self.width // op.heads if isinstance(op, CsrAttention) else self.width
        if key not in self._families:
            self._families[key] = self._family(*key)
        return self._families[key]

    def _repeated(self, op: Op, configs: Sequence[Config]) -> tuple[Config, ...]:
        """Choose the configuration that is measured repeatedly; sweeps of GEMM have no rounds for it."""
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
