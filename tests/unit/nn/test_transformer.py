"""The encoder layer and attention against PyTorch's, sequence after sequence and padded, with gradients."""

import copy
import pickle

import pytest
import torch

from sparloom.nn import MultiheadAttention, TransformerEncoderLayer
from sparloom.ragged import LENGTHS, Structure

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache", "one_thread")]

WIDTH, HEADS, HIDDEN = 32, 4, 48
BATCHES = [[5, 1, 0, 9, 3], [6, 6, 6], [7], [70, 3, 130], [0], []]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def layers(**options):
    """Make PyTorch's layer with random norms and biases, and ours with its state dict."""
    theirs = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, batch_first=True, **options)
    for parameter in theirs.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, parameter.mean().item(), 0.3)
    ours = TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def attentions(**options):
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)
    if theirs.in_proj_bias is not None:
        torch.nn.init.normal_(theirs.in_proj_bias)
        torch.nn.init.normal_(theirs.out_proj.bias)
    ours = MultiheadAttention(WIDTH, HEADS, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def mask(length):
    return torch.nn.Transformer.generate_square_subsequent_mask(length)


def by_sequence(theirs, x, lengths, *, causal=False):
    """Compute every sequence separately with PyTorch."""
    results = []
    for one in x.split(list(lengths)):
        if not len(one):
            continue
        inputs = mask(len(one)) if causal else None
        if isinstance(theirs, torch.nn.MultiheadAttention):
            results.append(theirs(one[None], one[None], one[None], need_weights=False, attn_mask=inputs)[0][0])
        else:
            results.append(theirs(one[None], src_mask=inputs)[0])
    return torch.cat([x[:0], *results])


def assert_near(actual, expected, scale=1.0):
    """Within 1e-5 of the largest element."""
    size = max(scale, expected.abs().max().item()) if expected.numel() else scale
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * size)


def assert_same_gradients(x, *pairs):
    """Compare gradients of the sum of squares of results by tokens and parameters."""
    grads = [torch.autograd.grad(result.square().sum(), [x, *module.parameters()]) for module, result in pairs]
    for actual, expected in zip(*grads, strict=True):
        assert_near(actual, expected)


@pytest.mark.parametrize("pair", [layers, attentions])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", BATCHES, ids=str)
def test_results_and_gradients_are_those_of_pytorch(pair, causal, lengths):
    theirs, ours = pair()
    x = torch.randn(sum(lengths), WIDTH)
    seen = torch.randn(sum(lengths), WIDTH)
    found = []
    for module, call in ((ours, lambda x: ours(x, lengths, is_causal=causal)),
                         (theirs, lambda x: by_sequence(theirs, x, lengths, causal=causal))):
        inputs = x.clone().requires_grad_()
        result = call(inputs)
        asked = [inputs, *module.parameters()]
        grads = torch.autograd.grad((result * seen).sum(), asked, allow_unused=True)
        found.append([result, *(torch.zeros_like(tensor) if grad is None else grad
                                for tensor, grad in zip(asked, grads, strict=True))])
    for actual, expected in zip(*found, strict=True):
        assert_near(actual, expected)
    with torch.no_grad():
        assert_near(ours(x, lengths, is_causal=causal), found[1][0])


@pytest.mark.parametrize("pair", [layers, attentions])
def test_layers_without_bias(pair):
    theirs, ours = pair(bias=False)
    x = torch.randn(9, WIDTH, requires_grad=True)
    assert_near(ours(x, [5, 4]), by_sequence(theirs, x, [5, 4]))
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert_same_gradients(x, (ours, ours(x, [5, 4])), (theirs, by_sequence(theirs, x, [5, 4])))


def test_threads_of_torch_are_those_of_the_layer():
    ours = layers()[1]
    x = torch.randn(200, WIDTH, requires_grad=True)
    torch.set_num_threads(2)
    try:
        result = ours(x, [150, 50])
        grads = torch.autograd.grad(result.square().sum(), [x, *ours.parameters()])
    finally:
        torch.set_num_threads(1)
    again = ours(x, [150, 50])
    assert_near(result, again)
    for one, other in zip(grads, torch.autograd.grad(again.square().sum(), [x, *ours.parameters()]), strict=True):
        assert_near(one, other)


def test_a_model_of_two_layers_against_padded_sequences():
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, 0.0, batch_first=True), 2, enable_nested_tensor=False).eval()
    ours = torch.nn.ModuleList(TransformerEncoderLayer(WIDTH, HEADS, HIDDEN) for _ in range(2))
    for mine, other in zip(ours, model.layers, strict=True):
        mine.load_state_dict(other.state_dict())
    lengths = torch.tensor([5, 1, 9, 3])
    padded = torch.randn(4, 9, WIDTH)
    beyond = torch.arange(9) >= lengths[:, None]
    expected = model(padded, src_key_padding_mask=beyond)[~beyond]
    shared = Structure({LENGTHS: lengths.numpy()})
    for inputs in (lengths, lengths.tolist(), lengths.numpy(), shared):
        x = padded[~beyond]
        for layer in ours:
            x = layer(x, inputs)
        assert_near(x, expected)


def test_tensors_that_need_no_gradient_get_none():
    theirs, ours = layers()
    x, lengths = torch.randn(8, WIDTH), [5, 3]
    for module in (ours, theirs):
        module.requires_grad_(False)
        module.linear1.weight.requires_grad_()
        module.norm2.bias.requires_grad_()
    ours(x, lengths).square().sum().backward()
    by_sequence(theirs, x, lengths).square().sum().backward()
    for actual, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (actual.grad is None) == (expected.grad is None)
        if actual.grad is not None:
            assert_near(actual.grad, expected.grad)
    assert not ours.requires_grad_(False)(x, lengths).requires_grad


def test_gradients_pass_through_layers_once():
    ours = layers()[1]
    x = torch.randn(4, WIDTH, requires_grad=True)
    result = ours(ours(x, [4]), [4])
    result.square().sum().backward(retain_graph=True)
    first = x.grad.clone()
    result.square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * first)
    grad, = torch.autograd.grad(ours(x, [4]).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_nested_tensors_stay_nested():
    theirs, ours = layers()
    parts = [torch.randn(length, WIDTH, requires_grad=True) for length in (5, 2, 7)]
    inputs = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    result = ours(ours(inputs))
    assert result.is_nested
    assert result.layout == torch.jagged
    assert_near((result + inputs).values(), by_sequence(theirs, by_sequence(
        theirs, torch.cat(parts), [5, 2, 7]), [5, 2, 7]) + torch.cat(parts))
    result.values().square().sum().backward()
    assert all(part.grad.abs().sum() > 0 for part in parts)
    attention = attentions()[1]
    torch.testing.assert_close(attention(inputs).values(), attention(torch.cat(parts), [5, 2, 7]))


def test_initial_weights_are_those_of_pytorch():
    for ours, theirs in ((TransformerEncoderLayer, torch.nn.TransformerEncoderLayer),
                         (MultiheadAttention, torch.nn.MultiheadAttention)):
        torch.manual_seed(3)
        expected = theirs(WIDTH, HEADS, batch_first=True).state_dict()
        torch.manual_seed(3)
        found = ours(WIDTH, HEADS).state_dict()
        assert list(found) == list(expected)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_saved_and_copied_layers(tmp_path):
    ours = layers()[1]
    x = torch.randn(6, WIDTH)
    expected = ours(x, [6])
    ours.zero_grad()
    expected.sum().backward()
    torch.save(ours.state_dict(), tmp_path / "layer.pt")
    again = TransformerEncoderLayer(WIDTH, HEADS, HIDDEN)
    again.load_state_dict(torch.load(tmp_path / "layer.pt"))
    for copied in (again, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(copied(x, [6]), expected)
        with torch.no_grad():
            copied.linear2.weight.zero_()
        torch.testing.assert_close(ours(x, [6]), expected)


def test_inference_mode():
    theirs, ours = layers()
    with torch.inference_mode():
        x = torch.randn(6, WIDTH)
        assert_near(ours(x, [2, 4]), by_sequence(theirs, x, [2, 4]))
        made = TransformerEncoderLayer(WIDTH, HEADS, HIDDEN)
        made.load_state_dict(theirs.state_dict())
        assert_near(made(x, [2, 4]), by_sequence(theirs, x, [2, 4]))
        made.linear1.weight.zero_()
        assert not torch.allclose(made(x, [2, 4]), ours(x, [2, 4]))


def refused(error, message, call, *arguments, **options):
    with pytest.raises(error, match=message):
        call(*arguments, **options)


@pytest.mark.parametrize("ours", [lambda: layers()[1], lambda: attentions()[1]])
def test_arguments_of_forward_are_checked(ours):
    layer = ours()
    x = torch.randn(6, WIDTH)
    refused(TypeError, r"tokens are torch\.float64: expected a torch\.float32 tensor: pass tokens\.float\(\)", layer,
            x.double(), [6])
    refused(TypeError, "tokens are ndarray: expected a torch.float32 tensor", layer, x.numpy(), [6])
    refused(TypeError, r"tokens of shape \(6, 32\) without lengths: pass the length of every sequence", layer, x)
    refused(ValueError, "the lengths add up to 7, but there are 6 tokens", layer, x, [3, 4])
    refused(ValueError, r"tokens have shape \(6, 16\): expected \(tokens, 32\)", layer, x[:, :16], [6])
    refused(ValueError, r"tokens have shape \(1, 6, 32\): expected", layer, x[None], [6])
    refused(ValueError, r"lengths are an array of 1 dimensions of float64: give a vector of integers", layer, x, [6.0])
    refused(ValueError, r"lengths are an array of 2 dimensions of int64", layer, x, torch.tensor([[6]]))
    refused(ValueError, r"length function lengths has the entry -1: lengths are at least 0", layer, x, [7, -1])
    refused(ValueError, r"tokens are on meta: this layer supports the CPU only: pass tokens\.cpu\(\)", layer,
            x.to("meta"), [6])
    refused(ValueError, r"lengths are on meta: this layer supports the CPU", layer, x, torch.tensor([6]).to("meta"))
    refused(TypeError, r"parameter .* is torch\.float64, but this layer computes in torch\.float32: use layer\.float",
            ours().double(), x, [6])
    refused(ValueError, r"parameter .* is on meta: this layer supports the CPU only", ours().to("meta"), x, [6])


def test_arguments_of_layers_are_checked():
    for layer in (lambda **options: TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, **options),
                  lambda **options: MultiheadAttention(WIDTH, HEADS, **options)):
        refused(ValueError, r"dropout=0\.1: dropout is not supported: pass 0 and apply dropout", layer, dropout=0.1)
        refused(ValueError, "batch_first=False: sequences are concatenated, so only True is supported", layer,
                batch_first=False)
    refused(ValueError, "embed_dim=30 must be divisible by num_heads=4", MultiheadAttention, 30, 4)
    for activation in ("tanh", torch.tanh, torch.nn.Tanh(), 3, None):
        refused(ValueError, "activation=.*: expected one of relu, gelu, gelu_tanh, silu, or the function or module",
                TransformerEncoderLayer, WIDTH, HEADS, activation=activation)
    refused(TypeError, "norm_first=1: expected a bool", TransformerEncoderLayer, WIDTH, HEADS, norm_first=1)
    refused(ValueError, "dim_feedforward=0: expected a positive int", TransformerEncoderLayer, WIDTH, HEADS, 0)
    refused(TypeError, r"dim_feedforward=1\.5: expected a positive int", TransformerEncoderLayer, WIDTH, HEADS, 1.5)
    refused(TypeError, "num_heads=True: expected a positive int", MultiheadAttention, WIDTH, True)


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations_may_be_functions_or_modules(name):
    same = {"relu": (torch.relu, torch.nn.functional.relu, torch.nn.ReLU()),
            "gelu": (torch.nn.functional.gelu, torch.nn.GELU()), "gelu_tanh": (torch.nn.GELU("tanh"),),
            "silu": (torch.nn.functional.silu, torch.nn.SiLU())}[name]
    x, named = torch.randn(7, WIDTH), TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, activation=name)
    theirs = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, same[-1], batch_first=True)
    theirs.load_state_dict(named.state_dict())
    assert_near(named(x, [7]), theirs(x[None])[0])
    for activation in same:
        named.activation = activation
        assert_near(named(x, [7]), theirs(x[None])[0])


@pytest.mark.filterwarnings("ignore")
def test_compiled_models_call_the_layer_as_it_is():
    ours = layers()[1]
    model = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH), ours])

    def call(x, lengths):
        return model[1](torch.relu(model[0](x)), lengths).sum()

    compiled = torch.compile(call, backend="eager")
    for lengths in ([5, 1, 9], [9, 5, 1]):
        x = torch.randn(15, WIDTH)
        grads = [torch.autograd.grad(each(x, torch.tensor(lengths)), [*model.parameters()])
                 for each in (call, compiled)]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "heads", "hidden", "lengths", "causal"), [
    (2, 2, 8, [5, 3], False), (4, 4, 1, [5, 0, 3], True), (1, 1, 1, [1], False), (16, 16, 3, [70, 1], True),
    (15, 3, 7, [2, 6], False), (15, 3, 7, [2, 6], True), (3, 3, 5, [], False),
], ids=str)
def test_heads_and_layers_of_few_columns(width, heads, hidden, lengths, causal):
    theirs = torch.nn.TransformerEncoderLayer(width, heads, hidden, 0.0, batch_first=True).double()
    attention = torch.nn.MultiheadAttention(width, heads, batch_first=True).double()
    pairs = [(TransformerEncoderLayer(width, heads, hidden), theirs), (MultiheadAttention(width, heads), attention)]
    for ours, reference in pairs:
        ours.load_state_dict(reference.state_dict())
        x = torch.randn(sum(lengths), width, requires_grad=True)
        wide = x.detach().double().requires_grad_()
        parts = [part for part in wide.split(lengths) if len(part)]
        masks = [mask(len(part)).double() if causal else None for part in parts]
        expected = [
            theirs(part[None], src_mask=seen)[0] if reference is theirs else
            attention(*[part[None]] * 3, need_weights=False, attn_mask=seen)[0][0]
            for part, seen in zip(parts, masks, strict=True)]
        results = ours(x, lengths, is_causal=causal), torch.cat([wide[:0], *expected])
        slopes = torch.randn(results[0].shape)
        torch.testing.assert_close(results[0].double(), results[1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(torch.autograd.grad(results[0], x, slopes)[0].double(),
                                   torch.autograd.grad(results[1], wide, slopes.double())[0], rtol=1e-3, atol=1e-4)
