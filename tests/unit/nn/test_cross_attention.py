"""Attention to the tokens of another batch: results and gradients are those of torch, a sequence at a time."""

import pytest
import torch

from sparloom.errors import Unsupported
from sparloom.nn import MultiheadAttention

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

WIDTH, HEADS, LENGTHS, MEMORY = 24, 3, [5, 70, 0, 1, 3], [7, 9, 4, 0, 80]


def layers(*, bias: bool) -> tuple[MultiheadAttention, torch.nn.MultiheadAttention]:
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2)
    ours = MultiheadAttention(WIDTH, HEADS, bias=bias)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs.double()


def expected(layer: torch.nn.MultiheadAttention, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    found = []
    for queries, keys in zip(x.split(LENGTHS), memory.split(MEMORY), strict=True):
        if len(keys):
            found.append(layer(queries[None], keys[None], keys[None], need_weights=False)[0][0])
        else:
            nothing = torch.zeros_like(queries)
            found.append(layer.out_proj(nothing))
    return torch.cat(found)


@pytest.mark.parametrize("bias", [True, False])
def test_results_and_gradients(bias: bool) -> None:
    ours, theirs = layers(bias=bias)
    x, memory, seen = (torch.randn(sum(each), WIDTH) for each in (LENGTHS, MEMORY, LENGTHS))
    found = []
    for layer, dtype in ((ours, torch.float32), (theirs, torch.float64)):
        inputs = [each.to(dtype).requires_grad_() for each in (x, memory)]
        result = ours(inputs[0], LENGTHS, memory=inputs[1], memory_lengths=MEMORY) if layer is ours else expected(
            theirs, *inputs)
        found.append([result, *torch.autograd.grad((result * seen.to(dtype)).sum(), [*inputs, *layer.parameters()])])
    for actual, reference in zip(*found, strict=True):
        size = max(1.0, reference.abs().max().item())
        torch.testing.assert_close(actual.double(), reference, rtol=0, atol=1e-5 * size)
    with torch.no_grad():
        torch.testing.assert_close(ours(x, LENGTHS, memory=memory, memory_lengths=MEMORY), found[0][0].detach())


def test_only_what_requires_them_has_gradients() -> None:
    ours, theirs = layers(bias=True)
    ours.requires_grad_(False)
    x, memory = (torch.randn(sum(each), WIDTH) for each in (LENGTHS, MEMORY))
    memory.requires_grad_()
    ours(x, LENGTHS, memory=memory, memory_lengths=MEMORY).sin().sum().backward()
    wide = memory.detach().double().requires_grad_()
    expected(theirs, x.double(), wide).sin().sum().backward()
    torch.testing.assert_close(memory.grad.double(), wide.grad, rtol=0, atol=1e-5)


def test_nested_tensors_and_functional_gradients() -> None:
    ours, _ = layers(bias=True)
    x, memory = (torch.randn(sum(each), WIDTH) for each in (LENGTHS, MEMORY))
    plain = ours(x, LENGTHS, memory=memory, memory_lengths=MEMORY)
    nested, other = (torch.nested.nested_tensor_from_jagged(each, torch.tensor([0, *lengths]).cumsum(0))
                     for each, lengths in ((x, LENGTHS), (memory, MEMORY)))
    torch.testing.assert_close(ours(nested, memory=other).values(), plain)

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        return ours(x, LENGTHS, memory=tokens, memory_lengths=MEMORY).sin().sum()

    wanted = memory.clone().requires_grad_()
    torch.testing.assert_close(torch.func.grad(loss)(memory), torch.autograd.grad(loss(wanted), wanted)[0])


def test_bad_arguments_are_refused() -> None:
    ours, _ = layers(bias=True)
    x, memory = (torch.randn(sum(each), WIDTH) for each in (LENGTHS, MEMORY))
    for error, message, given in (
            (ValueError, "5 sequences attend to 4: pass as many", {"memory": memory, "memory_lengths": [7, 9, 4, 80]}),
            (ValueError, r"the lengths add up to 99, but there are 100 tokens",
             {"memory": memory, "memory_lengths": [7, 9, 4, 0, 79]}),
            (ValueError, r"memory: tokens have shape \(100, 5\)", {"memory": memory[:, :5], "memory_lengths": MEMORY}),
            (ValueError, "memory_lengths without memory", {"memory_lengths": MEMORY}),
            (TypeError, "memory: tokens of shape .* without lengths", {"memory": memory}),
            (Unsupported, "causal=True with tokens of another batch",
             {"memory": memory, "memory_lengths": MEMORY, "is_causal": True})):
        with pytest.raises(error, match=message):
            ours(x, LENGTHS, **given)
