"""Ragged programs on the emulated device."""

import numpy as np
import pytest
from cuda_emulator import Emulator

from sparloom.errors import Unsupported
from sparloom.ops import assert_close
from sparloom.platforms import CudaDevice, RaggedOnDevice
from sparloom.ragged import (
    LENGTHS,
    DeviceProgram,
    EncoderShape,
    Executable,
    Structure,
    device_encoder_layer,
    encoder_layer,
)

pytestmark = pytest.mark.cc

SHAPE = EncoderShape(8, 2, 12)
SMALL = CudaDevice("small", 90, multiprocessors=1, shared_per_block_bytes=48 * 1024)


@pytest.fixture(scope="module")
def on_device(tmp_path_factory):
    program = device_encoder_layer(SHAPE)
    emulator = Emulator(DeviceProgram(program).texts.values(), tmp_path_factory.mktemp("emulated"), SMALL)
    return RaggedOnDevice(emulator, program)


@pytest.mark.parametrize("lengths", [[3, 0, 5, 1], [1], [0, 0]], ids=["several", "one token", "nothing"])
def test_one_object_serves_batches_of_any_lengths(on_device, lengths, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    of, rng = Structure({LENGTHS: lengths}), np.random.default_rng(0)
    definition = Executable(encoder_layer(SHAPE))
    tensors = definition.program.tensors()
    given = {name: rng.standard_normal(of.size(tensors[name]), dtype=np.float32)
             for name in definition.program.inputs()}
    wanted = definition(of, **given)
    run, there = on_device.bind(of, **given)
    run()
    assert_close(there["norm_2"], wanted, terms=64, scale=8.0)


def test_a_program_for_a_processor_is_refused():
    with pytest.raises(Unsupported, match="has no CUDA form: give it one parallel loop at the top"):
        DeviceProgram(encoder_layer(SHAPE))
