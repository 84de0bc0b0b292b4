"""Triton's GEMM: results by its interpreter, ahead-of-time compilation, and all of it on a GPU if there is one."""

import importlib.util
import pickle
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from gpu_here import on_a_gpu

from sparloom.errors import Unsupported
from sparloom.measure import TimingProtocol
from sparloom.ops import GEMM, GemmShape, assert_close
from sparloom.platforms import CudaDevice, CudaPlatform, one_by_one
from sparloom.platforms.cuda import CompiledGemm, DeviceOperands, LaunchShape, Tiling, compile_gemm, gemm_kernel
from sparloom.space import Config

OP = GEMM()
TIMING = TimingProtocol(rounds=1, repetitions=2, short_seconds=0.0, most_repetitions=2, slow_factor=float("inf"),
                        steal_ratio=1.5, retakes=0, seed=0)
SMALL = Tiling(16, 32, 16, warps=4, stages=2, split=1, precision="ieee", aligned_n=False, aligned_k=False)
triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton: pip install -e '.[gpu]'")


class Interpreted:
    """Device that runs programs by Triton's interpreter instead of compiling them."""

    device = CudaDevice.named("h200")

    def __init__(self) -> None:
        self.shapes: list[LaunchShape] = []

    def upload(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def download(self, array: np.ndarray) -> np.ndarray:
        return array

    def empty(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        return np.full(shape, np.nan, dtype)

    def repeat(self, call):
        return one_by_one(call, lambda: 0.0)

    def binary(self, content: bytes, name: str) -> "_InterpretedKernel":
        return _InterpretedKernel(pickle.loads(content), self.shapes)


class Compiled(Interpreted):
    """Device that keeps the machine code it gets and runs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.binaries: list[bytes] = []

    def binary(self, content: bytes, name: str) -> "_InterpretedKernel":
        self.binaries.append(content)
        return _InterpretedKernel(SMALL, self.shapes)


class _InterpretedKernel:
    registers = 64

    def __init__(self, tiling: Tiling, shapes: list[LaunchShape]) -> None:
        self._tiling, self._shapes = tiling, shapes

    def __call__(self, shape: LaunchShape, arguments: Sequence[np.ndarray | np.generic]) -> None:
        import torch

        self._shapes.append(shape)
        arrays = [torch.from_numpy(argument) for argument in arguments[:3]]
        numbers, scratch = [int(argument) for argument in arguments[3:7]], arguments[7:]
        assert [int(pointer) for pointer in scratch] == [0, 0]
        gemm_kernel()[shape.grid](*arrays, *numbers, **self._tiling.constants)


@pytest.fixture
def interpreted(monkeypatch) -> CudaPlatform:
    importlib.import_module("triton.language")  # imported with the switch, it would be interpreted for ever
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("sparloom.platforms.cuda.triton_gemm.compile_gemm",
                        lambda tiling, _: CompiledGemm(pickle.dumps(tiling), 1024, scratch=2))
    platform = CudaPlatform("triton", "h200", 256)
    platform.gpu = Interpreted()
    return platform


def compare(platform: CudaPlatform, shape: GemmShape, config: Config) -> None:
    operands = OP.operands(shape, seed=0)
    assert_close(platform.run(OP, operands, config), OP.oracle(operands), terms=OP.terms(shape),
                 scale=OP.scale(operands))


@triton
@pytest.mark.parametrize("shape", [GemmShape(1, 1, 1), GemmShape(65, 70, 50), GemmShape(200, 33, 100),
                                   GemmShape(130, 260, 20)])
def test_any_shape_is_right(interpreted, shape):
    space = interpreted.space(OP)
    for changes in ({}, {"group_m": 1}, {"split_k": 4}, {"block_m": 16, "block_n": 32, "block_k": 16, "split_k": 4}):
        compare(interpreted, shape, space.config(**changes))


@triton
def test_programs_are_tiles_times_parts(interpreted):
    compare(interpreted, GemmShape(65, 70, 50), interpreted.space(OP).config(split_k=4))
    assert interpreted.gpu.shapes == [LaunchShape((2 * 2, 4), 128, 1024)]


@triton
def test_shared_memory_that_is_known_after_compiling_is_a_failure(interpreted, monkeypatch):
    monkeypatch.setattr("sparloom.platforms.cuda.triton_gemm.compile_gemm",
                        lambda tiling, _: CompiledGemm(pickle.dumps(tiling), 232_449, scratch=2))
    operands, config = OP.operands(GemmShape(20, 20, 20), seed=0), interpreted.baseline(OP, None)
    taken = interpreted.measure(OP, operands, config, TIMING)
    assert taken.failure == "a launch needs 232449 bytes of shared memory per block, above the 232448 of h200"


@triton
@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("changes", [{}, {"split": 4, "aligned_n": True, "aligned_k": True}, {"precision": "tf32x3"}])
def test_machine_code_needs_no_device(tmp_path, monkeypatch, architecture, changes):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = compile_gemm(replace(SMALL, **changes), architecture)
    assert made.binary.startswith(b"\x7fELF")
    assert made.scratch == 2
    assert (16 * 16 + 16 * 32) * 4 <= made.shared_bytes <= 2 * (16 * 16 + 16 * 32) * 4


@triton
def test_a_tiling_that_triton_refuses_is_unsupported(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with pytest.raises(Unsupported, match="Triton refuses Tiling"):
        compile_gemm(replace(SMALL, block_m=17), 90)


@triton
def test_kernels_are_compiled_by_several_processes_and_only_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    platform, operands = CudaPlatform("triton", "h200", 256), OP.operands(GemmShape(40, 50, 60), seed=0)
    platform.gpu = Compiled()
    space, family = platform.space(OP), platform.family(OP)
    configs = [space.config(block_m=16, block_n=32, block_k=16), space.config(block_m=64, block_n=32, block_k=16)]
    family.compile(operands, configs)
    monkeypatch.setattr("sparloom.platforms.cuda.triton_gemm.compile_gemm", None)
    family.compile(operands, configs)
    for config in configs:
        family.bind(platform.gpu, DeviceOperands.on(platform.gpu, operands), config, None)
    assert all(binary.startswith(b"\x7fELF") for binary in platform.gpu.binaries)


def test_missing_triton_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "triton", None)
    with pytest.raises(Unsupported, match=r"no Triton .*pip install"):
        gemm_kernel()


@pytest.mark.gpu
@triton
@on_a_gpu
@pytest.mark.parametrize("shape", [GemmShape(1, 1, 1), GemmShape(130, 260, 100), GemmShape(512, 512, 512)])
def test_configurations_are_right_on_a_gpu(shape):
    platform = CudaPlatform("triton", "here", 256)
    for config in platform.space(OP).sample(40, np.random.default_rng(0)):
        compare(platform, shape, config)


@pytest.mark.gpu
@triton
@on_a_gpu
def test_cublas_is_timed_among_them():
    from sparloom.baselines import vendor_gemms

    platform, operands = CudaPlatform("triton", "here", 256), OP.operands(GemmShape(256, 256, 256), seed=0)
    baselines = vendor_gemms(platform)
    found = {config: taken for config, _, taken in platform.measure_many(
        OP, operands, [platform.baseline(OP, None)], TIMING, baselines)}
    assert len(found) == 2
    assert all(taken.failure is None and taken.kind == "device" for taken in found.values())
