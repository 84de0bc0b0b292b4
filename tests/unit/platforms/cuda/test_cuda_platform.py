"""GPUs as a platform: limits without a device, measurements on an emulated one, all configurations on a real one."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from cuda_emulator import Emulator
from gpu_here import has_gpu, on_a_gpu

from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.measure import TimingProtocol
from sparloom.ops import SDDMM, CsrAttention, Operands, SpMM, SpmmMax, SpmmMean, assert_close
from sparloom.platforms import CudaDevice, CudaPlatform
from sparloom.platforms.cuda import DeviceOperands, LaunchShape, SpmmKernels, SpmmProgram
from sparloom.space import Config, CudaKernelSpace
from sparloom.sparse import Pattern, SparseMatrix

TIMING = TimingProtocol(rounds=2, repetitions=3, short_seconds=0.0, most_repetitions=3, slow_factor=float("inf"),
                        steal_ratio=1.5, retakes=0, seed=0)
H200 = CudaDevice.named("h200")
CASES = [("cuda", SpMM()), ("cuda", SDDMM()), ("cuda_kernels", SpMM()), ("cuda_kernels", SDDMM()),
         ("cuda_kernels", SpmmMean()), ("cuda_kernels", SpmmMax()), ("cuda_kernels", CsrAttention(2))]
cases = pytest.mark.parametrize(("space", "op"), CASES, ids=lambda value: getattr(value, "name", value))


def matrix(rows: int = 6, cols: int = 9, *, seed: int = 0) -> SparseMatrix:
    pattern = Pattern.from_coo(*np.nonzero(np.random.default_rng(seed).random((rows, cols)) < 0.4), (rows, cols))
    return SparseMatrix(pattern, np.linspace(-1, 1, pattern.nnz, dtype=np.float32))


@pytest.fixture(scope="module")
def emulated(tmp_path_factory) -> CudaPlatform:
    platform = CudaPlatform("cuda_kernels", "h200", 16)
    platform.gpu = Emulator([SpmmProgram.of(platform.space(SpMM()).default()).text], tmp_path_factory.mktemp("one"))
    return platform


@pytest.mark.parametrize(("shape", "reason"), [
    (LaunchShape((2**31 - 1, 65535), 1024, 227 * 1024, 64), None),
    (LaunchShape((1, 1), 1056), "1056 threads per block, above the 1024 of h200"),
    (LaunchShape((1, 1), 32, 227 * 1024 + 1), "232449 bytes of shared memory per block, above the 232448 of h200"),
    (LaunchShape((1, 1), 32, 0, 256), "256 registers per thread, above the 255 of h200"),
    (LaunchShape((1, 1), 1024, 0, 65), "66560 registers per block, above the 65536 of h200"),
    (LaunchShape((2**31, 1), 32), "2147483648 blocks in x, above the 2147483647 of h200"),
    (LaunchShape((1, 65536), 32), "65536 blocks in y, above the 65535 of h200"),
])
def test_launches_beyond_a_limit_are_refused(shape, reason):
    assert H200.refuse(shape) == reason


def test_other_devices_are_read_not_guessed():
    described = "device 'b200' is not described: a100, h100, h200, or here for the one installed"
    with pytest.raises(ValueError, match=described):
        CudaDevice.named("b200")


@cases
@pytest.mark.parametrize("width", [1, 2, 8, 30, 32, 64, 128, 2048])
def test_defaults_are_legal_at_every_width(space, op, width):
    listed = CudaPlatform(space, "h200", width).space(op)
    listed.validate(listed.default())
    assert len(listed) == len(list(listed)) > 0


def test_blocks_hold_whole_warps_and_fit():
    for config in CudaKernelSpace("spmm"):
        program = SpmmProgram.of(config)
        assert program.threads == 32 * config["warps"]
        assert program.grid(1000, 256)[0] * program.groups >= 1000
        assert H200.refuse(LaunchShape(program.grid(1000, 256), program.threads, 4 * program.threads * program.columns)
                           ) is None


def test_all_resident_groups_share_the_work():
    program = SpmmProgram(lanes=32, columns=4, vector=4, reduction="outside", unroll=4, groups=8, balance="nonzeros")
    assert program.share(132 * 2048 // 32 * 1000, H200) == 1000
    assert program.share(100, H200) == 64


@pytest.mark.cc
def test_configurations_are_measured_on_the_clock_of_the_device(emulated):
    operands = SpMM().operands(matrix(), 16, seed=0)
    config = emulated.baseline(SpMM(), None)
    found = list(emulated.measure_many(SpMM(), operands, [config], TIMING))
    assert [number for _, number, _ in found] == [0, 1]
    assert {(taken.kind, len(taken.seconds), taken.cpu_seconds) for _, _, taken in found} == {("device", 3, ())}
    assert len(emulated.measure(SpMM(), operands, config, TIMING).seconds) == 6


@pytest.mark.cc
def test_the_baseline_is_repeated_in_every_round(emulated, tmp_path, monkeypatch):
    default = emulated.baseline(SpMM(), None)
    other = next(config for config in emulated.space(SpMM()) if config != default)
    monkeypatch.setattr(emulated, "gpu", Emulator([SpmmProgram.of(each).text for each in (default, other)], tmp_path))
    found = list(emulated.measure_many(SpMM(), SpMM().operands(matrix(), 16, seed=0), [other, default], TIMING))
    assert sorted(number for config, number, _ in found if config == default) == [0, 1, 2, 3, 4, 5]
    assert [number for config, number, _ in found if config == other] == [0, 1]
    assert {number for _, number, _ in found[:4]} == {0, 2, 3}
    assert all(len(taken.seconds) == 3 for _, _, taken in found)


@pytest.mark.cc
def test_wrong_results_are_failures(emulated, monkeypatch):
    bind = SpmmKernels.bind

    def spoiled(family, gpu, placed, config, result):
        call = bind(family, gpu, placed, config, result)
        return lambda: (call(), result.__setitem__((2, 3), 5))

    monkeypatch.setattr(SpmmKernels, "bind", spoiled)
    operands = SpMM().operands(matrix(), 16, seed=0)
    taken = emulated.measure(SpMM(), operands, emulated.baseline(SpMM(), None), TIMING)
    assert taken.failure.startswith("wrong result: element (2, 3) is 5.0")
    assert taken.kind == "device"


@pytest.mark.cc
def test_a_configuration_that_cannot_start_fails_and_baselines_still_run(emulated, monkeypatch):
    monkeypatch.setattr(emulated.gpu, "device", replace(H200, registers_per_block=32 * 127))
    operands, vendor = SpMM().operands(matrix(), 16, seed=0), Config("vendor", (("vendor", "dense"),))
    dense = np.zeros(operands.matrix.pattern.shape, np.float32)
    dense[operands.matrix.pattern.row_ids(), operands.matrix.pattern.indices] = operands.matrix.values

    def baseline(placed, result):
        return lambda: np.matmul(dense, placed.dense["B"], out=result)

    rows = emulated.measure_many(SpMM(), operands, [emulated.baseline(SpMM(), None)], replace(TIMING, rounds=1),
                                 {vendor: baseline})
    found = {config.space: taken for config, _, taken in rows}
    assert found["cuda_kernels"].failure == "a launch needs 4096 registers per block, above the 4064 of h200"
    assert len(found["vendor"].seconds) == 3


@pytest.mark.cc
def test_refusals_name_the_operation_the_configuration_or_the_type(emulated):
    @dataclass(frozen=True)
    class Other:
        name: str = "convolution"

    with pytest.raises(Unsupported, match="operation convolution on platform cuda_kernels: there are kernels for"):
        emulated.space(Other())
    operands, config = SpMM().operands(matrix(), 16, seed=0), emulated.baseline(SpMM(), None)
    with pytest.raises(IllegalSchedule, match="is 64, above the dense width 16"):
        emulated.run(SpMM(), operands, config.replace(lanes=32))
    double = replace(operands, dense={"B": operands.dense["B"].astype(np.float64)})
    with pytest.raises(Unsupported, match="B is float64: the kernels take float32 or float16, convert it"):
        emulated.run(SpMM(), double, config)


def test_a_missing_gpu_is_named():
    if has_gpu():
        pytest.skip("there is a GPU")
    platform = CudaPlatform("cuda", "here", 32)
    with pytest.raises(Unsupported, match=r"no (CuPy|NVIDIA GPU)"):
        platform.run(SpMM(), SpMM().operands(matrix(), 32, seed=0), platform.baseline(SpMM(), None))


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("width", [30, 32, 256])
@cases
def test_every_configuration_is_right_on_a_gpu(space, op, width):
    platform, operands = CudaPlatform(space, "here", width), op.operands(skewed(), width, seed=0)
    pattern = operands.matrix.pattern
    oracle, bounds = op.oracle(operands), {"terms": op.terms(pattern, width), "scale": op.scale(operands)}
    for config in platform.space(op):
        assert_close(platform.run(op, operands, config), oracle, **bounds)


@pytest.mark.gpu
@on_a_gpu
@cases
def test_float16_is_right_on_a_gpu(space, op):
    platform, drawn = CudaPlatform(space, "here", 64), op.operands(skewed(), 64, seed=0)
    operands = Operands(drawn.matrix, {name: array.astype(np.float16) for name, array in drawn.dense.items()})
    bounds = {"terms": op.terms(operands.matrix.pattern, 64), "scale": op.scale(operands)}
    oracle = op.oracle(operands)
    for config in platform.space(op).sample(40, np.random.default_rng(0)):
        found = platform.run(op, operands, config)
        assert found.dtype == np.float16
        assert_close(found, oracle, **bounds)


@pytest.mark.gpu
@on_a_gpu
@cases
def test_bfloat16_is_right_on_a_gpu(space, op):
    """NumPy has no bfloat16, so the kernels receive its bits."""
    platform, operands = CudaPlatform(space, "here", 64), cut(op.operands(skewed(), 64, seed=0))
    family, gpu, oracle = platform.family(op), platform.gpu, op.oracle(operands)
    dense = {name: gpu.upload(upper_half(array)) for name, array in operands.dense.items()}
    placed = DeviceOperands(operands, dense, gpu.upload(upper_half(operands.matrix.values)), element="Bfloat")
    allowed = 2.0**-7 * op.scale(operands) * (op.terms(operands.matrix.pattern, 64) + 1)
    for config in platform.space(op).sample(40, np.random.default_rng(0)):
        result = gpu.empty(oracle.shape, np.uint16)
        family.bind(gpu, placed, config, result)()
        found = (gpu.download(result).astype(np.uint32) << 16).view(np.float32)
        assert (np.abs(found - oracle) <= allowed).all()


def upper_half(numbers: np.ndarray) -> np.ndarray:
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def cut(operands: Operands) -> Operands:
    """Truncate numbers to bfloat16."""
    def kept(numbers: np.ndarray) -> np.ndarray:
        return (numbers.view(np.uint32) >> 16 << 16).view(np.float32)

    matrix = SparseMatrix(operands.matrix.pattern, kept(operands.matrix.values))
    return Operands(matrix, {name: kept(array) for name, array in operands.dense.items()})


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("op", [SpMM(), SDDMM(), CsrAttention(2)], ids=lambda op: op.name)
def test_a_gpu_is_timed_by_its_events(op):
    platform = CudaPlatform("cuda_kernels", "here", 64)
    taken = platform.measure(op, op.operands(skewed(), 64, seed=0), platform.baseline(op, None), TIMING)
    assert taken.kind == "device"
    assert len(taken.seconds) == 6
    assert 5e-7 <= taken.best < 1


def skewed() -> SparseMatrix:
    """2000 rows, some empty, two of them hubs."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 12, 2000)
    lengths[[5, 1700]] = 900, 400
    cols = np.concatenate([rng.choice(1000, length, replace=False) for length in lengths])
    pattern = Pattern.from_coo(np.repeat(np.arange(2000), lengths), cols, (2000, 1000))
    return SparseMatrix(pattern, rng.uniform(-1, 1, pattern.nnz).astype(np.float32))
