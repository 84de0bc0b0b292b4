"""Writes into parameters, edge weights and indices are detected, whether torch counts them or not."""

import weakref

import numpy as np
import pytest
import torch

from sparloom.nn import GCNConv, LayerNorm, MultiheadAttention, SAGEConv, TransformerEncoderLayer, spmm
from sparloom.nn.content_hash import (
    KEY_WORDS,
    SpanFingerprint,
    content_hash,
    fingerprint,
    fingerprint_tensors,
    sampled_hash,
)
from sparloom.nn.ragged_programs import PackedWeights
from sparloom.ragged import LENGTHS, EncoderSchedule, EncoderShape, Structure, compiled_encoder_layer

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

WIDTH, HEADS, HIDDEN, SEQUENCES = 8, 2, 12, [5, 3]
NODES = 12


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def encoder():
    theirs = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, batch_first=True)
    return TransformerEncoderLayer(WIDTH, HEADS, HIDDEN), theirs, lambda part: theirs(part[None])[0]


def attention():
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    return MultiheadAttention(WIDTH, HEADS), theirs, lambda part: theirs(*[part[None]] * 3, need_weights=False)[0][0]


def norm():
    theirs = torch.nn.LayerNorm(WIDTH)
    return LayerNorm(WIDTH), theirs, theirs


MODULES = [encoder, attention, norm]


def assert_same(ours, theirs, reference, *, inference=torch.no_grad):
    """Results and gradients are those of torch's layer in float64 with the parameters of now."""
    theirs.float().load_state_dict(ours.state_dict())
    theirs.double()
    x = torch.randn(sum(SEQUENCES), WIDTH)
    found, wanted = x.clone().requires_grad_(), x.double().requires_grad_()
    result, expected = ours(found, SEQUENCES), torch.cat([reference(part) for part in wanted.split(SEQUENCES)])
    slopes = torch.randn(expected.shape).double()
    grads = torch.autograd.grad(result, [found, *ours.parameters()], slopes.float())
    expected_grads = torch.autograd.grad(expected, [wanted, *theirs.parameters()], slopes)
    with inference():
        results = [ours(x, SEQUENCES).clone(), result.detach(), *grads]
    for actual, right in zip(results, [expected, expected, *expected_grads], strict=True):
        torch.testing.assert_close(actual.double(), right.detach(), rtol=1e-4, atol=1e-4)


OPTIMISERS = {
    "sgd": lambda inputs, **how: torch.optim.SGD(inputs, 0.1, 0.9, **how),
    "adam": lambda inputs, **how: torch.optim.Adam(inputs, 0.1, **how),
    "adamw": lambda inputs, **how: torch.optim.AdamW(inputs, 0.1, **how),
    "adagrad": lambda inputs, **how: torch.optim.Adagrad(inputs, 0.1, **how),
}


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("how", ["fused", "foreach"])
@pytest.mark.parametrize("make", MODULES)
def test_steps_of_optimisers_are_detected(make, how, name):
    ours, theirs, reference = make()
    optimiser = OPTIMISERS[name](list(ours.parameters()), **{how: True})
    for _ in range(2):
        optimiser.zero_grad()
        (ours(torch.randn(8, WIDTH), SEQUENCES) * torch.randn(8, WIDTH)).sum().backward()
        optimiser.step()
        assert_same(ours, theirs, reference)


def assigned(ours):
    state = {name: value.clone().mul_(-1) for name, value in ours.state_dict().items()}
    ours.load_state_dict(state, assign=True)


def swapped(ours):
    for parameter in list(ours.parameters()):
        torch.utils.swap_tensors(parameter, torch.nn.Parameter(torch.randn_like(parameter)))


def reused(ours):
    """Put a tensor with other content at the address of the previous one."""
    for parameter in ours.parameters():
        before = parameter.data_ptr()
        shape, parameter.data = parameter.shape, torch.empty(0)
        kept = []
        for _ in range(20):
            kept.append(torch.randn(shape))
            if kept[-1].data_ptr() == before:
                break
        parameter.data = kept[-1]


def inferred(ours):
    with torch.inference_mode():
        for parameter in ours.parameters():
            parameter.data.copy_(torch.randn(parameter.shape))


def set_to(ours):
    for parameter in ours.parameters():
        parameter.data.set_(torch.randn(parameter.shape))


def copied(ours):
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.randn(parameter.shape))


def as_arrays(ours):
    for parameter in ours.parameters():
        parameter.detach().numpy()[...] = np.random.default_rng(0).standard_normal(parameter.shape, np.float32)


WRITERS = {
    "data": lambda ours: [parameter.data.mul_(-1) for parameter in ours.parameters()],
    "swapped data": lambda ours: [setattr(parameter, "data", parameter.data * -1) for parameter in ours.parameters()],
    "foreach": lambda ours: torch._foreach_mul_([parameter.data for parameter in ours.parameters()], -1.0),
    "assigned": assigned, "swapped": swapped, "reused": reused, "inferred": inferred, "set": set_to, "copied": copied,
    "numpy": as_arrays,
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("make", MODULES)
def test_writes_of_any_kind_are_detected(make, writer):
    ours, theirs, reference = make()
    for _ in range(2):
        assert_same(ours, theirs, reference, inference=torch.inference_mode)
        WRITERS[writer](ours)
    assert_same(ours, theirs, reference, inference=torch.inference_mode)


@pytest.mark.parametrize("make", MODULES)
def test_a_change_of_one_bit_of_one_parameter_is_detected(make):
    ours = make()[0]
    x = torch.randn(8, WIDTH)
    for parameter in ours.parameters():
        with torch.no_grad():
            before = ours(x, SEQUENCES)
            parameter.detach().view(torch.int32).view(-1)[-1] ^= 1 << 30
            assert not torch.equal(ours(x, SEQUENCES), before)
            parameter.detach().view(torch.int32).view(-1)[-1] ^= 1 << 30
            assert torch.equal(ours(x, SEQUENCES), before)


@pytest.mark.parametrize("make", MODULES)
def test_gradients_are_those_of_the_weights_of_their_call(make):
    """A write that torch does not count, between a call and its backward pass, does not affect either."""
    ours = make()[0]
    x = torch.randn(8, WIDTH, requires_grad=True)
    wanted = [x, *ours.parameters()]
    expected = torch.autograd.grad(ours(x, SEQUENCES).square().sum(), wanted)
    first = ours(x, SEQUENCES).square().sum()
    for parameter in ours.parameters():
        parameter.data.add_(1)
    second = ours(x, SEQUENCES).square().sum()
    others = torch.autograd.grad(second, wanted)
    for actual, right in zip(torch.autograd.grad(first, wanted), expected, strict=True):
        assert torch.equal(actual, right)
    assert not torch.equal(others[0], expected[0])


@pytest.mark.parametrize("make", MODULES)
def test_counted_writes_between_a_call_and_its_backward_are_errors(make):
    ours = make()[0]
    loss = ours(torch.randn(8, WIDTH), SEQUENCES).sum()
    with torch.no_grad():
        next(ours.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_memory_is_reused_once_it_has_no_readers():
    layer, packed = compiled_encoder_layer(EncoderShape(WIDTH, HEADS, HIDDEN), EncoderSchedule(), 1), PackedWeights()
    ours = encoder()[0]
    first = packed.inference(layer, ours.weights())
    assert packed.inference(layer, ours.weights()) is first
    held, address = first.memory.copy(), first.memory.ctypes.data
    ours.linear1.weight.data.add_(1)
    second = packed.inference(layer, ours.weights())
    assert second.memory.ctypes.data != address
    assert first.memory.tobytes() == held.tobytes()  # not by value: padding may hold NaN
    del first
    ours.linear1.weight.data.add_(1)
    assert packed.inference(layer, ours.weights()).memory.ctypes.data == address


def test_memory_is_not_reused_while_a_view_is_read():
    layer, packed = compiled_encoder_layer(EncoderShape(WIDTH, HEADS, HIDDEN), EncoderSchedule(), 1), PackedWeights()
    parameters = {name: torch.randn(weight.shape) for name, weight in layer.forward_weights.items()}
    weights = packed.inference(layer, parameters).weights
    before = {name: array.copy() for name, array in weights.items()}
    for _ in range(3):
        packed.inference(layer, {name: torch.randn(tensor.shape) for name, tensor in parameters.items()})
    for name, array in weights.items():
        np.testing.assert_array_equal(array, before[name])


def test_parameters_of_another_shape_are_refused():
    ours = encoder()[0]
    ours.linear1.weight = torch.nn.Parameter(torch.randn(WIDTH, HIDDEN))
    with pytest.raises(ValueError, match=r"parameter w_in has shape \(8, 12\)"):
        ours(torch.randn(8, WIDTH), SEQUENCES)


def test_parameters_of_any_strides():
    ours, theirs, reference = encoder()
    ours.linear1.weight = torch.nn.Parameter(torch.randn(WIDTH, HIDDEN).T)
    assert_same(ours, theirs, reference)
    ours.linear1.weight.data.mul_(2)
    assert_same(ours, theirs, reference)


def test_norms_of_other_kinds_are_computed_or_refused():
    ours, theirs, reference = encoder()
    for layer in (ours, theirs):
        layer.norm1 = torch.nn.LayerNorm(WIDTH, elementwise_affine=False)
    assert_same(ours, theirs, reference)
    ours.norm2.eps = 0.5
    with pytest.raises(ValueError, match=r"norm1 has eps 1e-05 and norm2 0\.5: they must be equal"):
        ours(torch.randn(8, WIDTH), SEQUENCES)


def test_lengths_that_are_written_later_are_those_of_before():
    lengths = np.array(SEQUENCES, np.int32)
    structure, x, ours = Structure({LENGTHS: lengths}), torch.randn(8, WIDTH), encoder()[0]
    expected = ours(x, SEQUENCES)
    lengths[:] = lengths[::-1].copy()
    torch.testing.assert_close(ours(x, structure), expected)


def edges():
    return torch.randint(0, NODES, (2, 40)).unique(dim=1).contiguous()


def test_edge_weights_written_by_fused_optimisers_are_detected():
    graph, x, layer = edges(), torch.randn(NODES, 8), GCNConv(8, 4)
    weight = torch.nn.Parameter(torch.rand(graph.shape[1]) + 0.5)
    alias, optimiser = weight.detach(), torch.optim.SGD([weight], 0.5, fused=True)
    for _ in range(3):
        torch.testing.assert_close(layer(x, graph, alias), layer(x, graph.clone(), weight.clone()))
        weight.grad = torch.rand_like(weight) - 0.9
        optimiser.step()


def test_trainable_weights_keep_their_gradient_beside_equal_constant_ones():
    graph, x, layer = edges(), torch.randn(NODES, 8), GCNConv(8, 4)
    weight = torch.rand(graph.shape[1], requires_grad=True)
    layer(x, graph, weight.detach())
    layer(x, graph, weight).sum().backward()
    assert weight.grad.abs().sum() > 0


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("layer", [lambda: GCNConv(8, 4), lambda: SAGEConv(8, 4)])
def test_values_of_sparse_tensors_written_without_a_count_are_detected(layer, layout):
    rows, cols = edges()
    made = torch.sparse_coo_tensor(torch.stack([rows, cols]), torch.rand(rows.numel()), (NODES, NODES)).coalesce()
    made = made.to_sparse_csr() if layout == "csr" else made
    layer, x = layer(), torch.randn(NODES, 8)
    for _ in range(3):
        torch.testing.assert_close(layer(x, made), layer(x, made.clone()))
        made.values().numpy()[...] = np.random.default_rng(1).random(rows.numel(), np.float32)


def test_edges_written_without_a_count_are_detected():
    graph, x, layer = edges(), torch.randn(NODES, 8), GCNConv(8, 4)
    for _ in range(3):
        torch.testing.assert_close(layer(x, graph), layer(x, graph.clone()))
        graph.numpy()[0, 3] = (graph[0, 3] + 1) % NODES


@pytest.mark.filterwarnings("ignore:Sparse")
def test_gradients_follow_values_written_without_a_count():
    matrix = (torch.rand(9, 7) - 0.5).relu().to_sparse_csr()
    x = torch.randn(7, 5, requires_grad=True)
    for _ in range(3):
        grad, = torch.autograd.grad(spmm(matrix, x).sum(), x)
        torch.testing.assert_close(grad, matrix.to_dense().T @ torch.ones(9, 5))
        matrix.values().numpy()[...] += 1


@pytest.mark.filterwarnings("ignore:Sparse")
def test_indices_written_without_a_count_are_detected():
    matrix = (torch.rand(9, 7) - 0.5).relu().to_sparse_csr()
    x = torch.randn(7, 5)
    spmm(matrix, x)
    row = int(matrix.crow_indices()[-2])
    matrix.col_indices().numpy()[row:] = np.arange(matrix.col_indices().numel() - row)
    torch.testing.assert_close(spmm(matrix, x), matrix.to_dense() @ x)


def test_fingerprints_differ_by_any_bit_and_by_where_arrays_end():
    rng = np.random.default_rng(0)
    for size in (1, 3, 1024, 4095, 4096, 4097, 9000):
        data = rng.integers(0, 256, size, np.uint8)
        found = {fingerprint([data])}
        for place in {0, size // 2, size - 1}:
            for bit in range(8):
                changed = data.copy()
                changed[place] ^= 1 << bit
                found.add(fingerprint([changed]))
        assert len(found) == 1 + 8 * len({0, size // 2, size - 1})
        assert fingerprint([data.copy()]) in found
    data = np.zeros(8192, np.uint8)
    assert len({fingerprint([data[:n], data[n:]]) for n in range(0, 8193, 1024)}) == 9
    assert fingerprint([data[:100]]) != fingerprint([data[:101]])
    blocks = rng.integers(0, 256, (2, 4096), np.uint8)
    assert fingerprint([blocks]) != fingerprint([blocks[::-1].copy()])
    assert KEY_WORDS == 65 * 16 + 4


def test_fingerprints_of_views_cover_their_elements():
    plain = torch.randn(6, 4)
    for tensor in (plain, plain.T, plain[:, ::2], plain[1:], plain[:0], plain[:1].expand(6, 4), plain.bfloat16(),
                   torch.complex(plain, plain).conj().imag, torch.nn.Parameter(plain)):
        shown = tensor.detach().resolve_neg().clone(memory_format=torch.contiguous_format)
        bits = shown.view(torch.int16) if shown.dtype == torch.bfloat16 else shown
        assert fingerprint_tensors((tensor, plain)) == fingerprint([bits.numpy(), plain.numpy()])


def test_memory_that_is_compared_again_outlives_its_tensor():
    tensor = torch.ones(1 << 20)
    compared, storage = SpanFingerprint([tensor], sample=1), weakref.ref(tensor.untyped_storage())
    tensor.data = torch.zeros(3)
    assert storage() is not None
    assert compared.unchanged()


def test_contents_differ_by_type_and_shape():
    tensor = torch.zeros(4)
    same = [content_hash(tensor), content_hash(torch.zeros(8)[:4]), content_hash(torch.zeros(8)[::2])]
    assert len(set(same)) == 1
    assert len({content_hash(each) for each in (
        tensor, tensor[:, None], torch.zeros(4, dtype=torch.int32), torch.zeros(2, dtype=torch.double), None)}) == 5
    assert content_hash(tensor.bfloat16()) == content_hash(tensor.bfloat16())


def test_long_index_tensors_are_compared_in_samples():
    long = torch.zeros(1 << 16, dtype=torch.int64)
    before = sampled_hash(long)
    long.numpy()[:] = 1
    assert sampled_hash(long) != before
    counted = sampled_hash(long)
    long[5] = 1
    assert sampled_hash(long) != counted
    with torch.inference_mode():
        uncounted = torch.zeros(1 << 16, dtype=torch.int64)
        before = sampled_hash(uncounted)
        uncounted[1000] = 1
        assert sampled_hash(uncounted) != before
