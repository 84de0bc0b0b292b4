"""Other libraries' encoder layers on sequences of several lengths: all compute the same."""

import sys

import pytest
import torch

from sparloom.baselines import (
    PADDED_BASELINES,
    RAGGED_BASELINES,
    PackedInputs,
    attention_module,
    encoder_baselines,
    encoder_layer,
    fast_path,
    fbgemm,
    flex,
    micro_batch_baselines,
    micro_batch_sizes,
    nested,
    reference,
)
from sparloom.errors import Unsupported

MODULES = {"encoder": encoder_layer(64, 4, 128, seed=1), "attention": attention_module(64, 4, seed=1)}
COMPILED = ("compiled", "compiled_frozen", "flex", "flex_frozen", "onednn_flex")
NEVER_CAUSAL = ("nested", "nested_fast")
RAGGED = (30, 1, 17, 9, 5, 40)


def inputs(module: str, lengths: tuple[int, ...] = RAGGED, *, causal: bool = False) -> PackedInputs:
    return PackedInputs.drawn(MODULES[module], lengths, seed=0, causal=causal)


def assert_agrees(prepare, given: PackedInputs) -> None:
    found = prepare(given).packed()
    assert found.shape == given.tokens.shape
    torch.testing.assert_close(found, reference(given.double()).float(), atol=1e-5, rtol=1e-5)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("lengths", [RAGGED, (12,) * 4, (33,), (1,), (1, 1)], ids=str)
def test_peers_agree_with_one_sequence_after_the_other(module, causal, lengths):
    given = inputs(module, lengths, causal=causal)
    for name, prepare in encoder_baselines(given).items():
        if name not in COMPILED and not (causal and name in NEVER_CAUSAL):
            try:
                assert_agrees(prepare, given)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error
            except Unsupported:
                assert name == "fbgemm", name


@pytest.mark.cc
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("module", "causal"), [pytest.param("encoder", False, marks=pytest.mark.exhaustive),
                                                ("attention", True)])
def test_compiled_peers_agree_with_one_sequence_after_the_other(module, causal):
    given = inputs(module, causal=causal)
    for name in COMPILED:
        assert_agrees(encoder_baselines(given)[name], given)


@pytest.mark.exhaustive
@pytest.mark.cc
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch is without MKL")
def test_frozen_and_other_programs_are_not_taken_for_each_other():
    given = inputs("encoder")  # for which the test above has compiled them
    peers = {name: encoder_baselines(given)[name](given) for name in COMPILED[:4]}
    for name, peer in peers.items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            peer.run()
        names = {event.key for event in seen.key_averages()}
        assert ("mkl::_mkl_linear" in names) == name.endswith("frozen")


@pytest.mark.cc
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("lengths", [pytest.param((40,) * 3, marks=pytest.mark.exhaustive),
                                     pytest.param((1,), marks=pytest.mark.exhaustive), (130,)], ids=str)
def test_flex_takes_any_lengths(lengths):
    assert_agrees(flex, inputs("attention", lengths))


@pytest.mark.parametrize(("batch", "sizes"), [(1, []), (2, []), (3, [2]), (32, [2, 4, 8, 16]), (33, [2, 4, 8, 16, 32])])
def test_micro_batches_are_powers_of_two_below_the_batch(batch, sizes):
    assert micro_batch_sizes(batch) == sizes
    assert list(micro_batch_baselines(batch)) == [
        f"{name}_{size}" for size in sizes for name in ("micro_batches", "micro_batches_fast")]


@pytest.mark.parametrize("name", [name for name in (*PADDED_BASELINES, *RAGGED_BASELINES) if name not in COMPILED])
def test_peers_leave_the_fast_path_as_it_was(name):
    given = inputs("encoder")
    for enabled in (False, True):
        with fast_path(enabled):
            try:
                encoder_baselines(given)[name](given).run()
            except Unsupported:
                assert name == "fbgemm"
            assert torch.backends.mha.get_fastpath_enabled() == enabled


def test_without_fbgemm_its_peer_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "fbgemm_gpu", None)
    with pytest.raises(Unsupported, match=r"fbgemm_gpu is not installed, .* pip install .*sparloom\[peers\]"):
        fbgemm(inputs("encoder"))


def test_modules_that_pytorch_refuses_are_unsupported(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise RuntimeError("No viable backend\nand more")

    monkeypatch.setattr("sparloom.baselines.packed_encoder.scaled_dot_product_attention", refuse)
    with pytest.raises(Unsupported, match=rf"PyTorch {torch.__version__.split('+')[0]}.* here: No viable backend$"):
        nested(inputs("encoder"))
