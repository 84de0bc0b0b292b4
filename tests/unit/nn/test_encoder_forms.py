"""Forms of the encoder layer, with gradients, against the same written in PyTorch in float64."""

import pytest
import torch
from torch.nn import functional

from sparloom.nn.batches import TokenBatch
from sparloom.nn.ragged_programs import PackedWeights, call_layer
from sparloom.ragged import ACTIVATIONS, EncoderSchedule, EncoderShape, compiled_encoder_layer, structure_of

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

WIDTH, HEADS, HIDDEN, LENGTHS = 24, 3, 40, [5, 1, 0, 33, 3]
REFERENCE = {"relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu,
             "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh")}
FORMS = [{"activation": "gelu"}, {"activation": "silu", "norm_first": True, "norm": "rms", "gated": True},
         {"activation": "gelu_tanh", "gated": True, "causal": True}, {"norm_first": True}, {"norm": "rms"}]


def parameters(shape: EncoderShape) -> dict[str, torch.Tensor]:
    sizes = {"w_qkv": (3 * WIDTH, WIDTH), "b_qkv": (3 * WIDTH,), "w_out": (WIDTH, WIDTH), "b_out": (WIDTH,),
             "w_in": (HIDDEN, WIDTH), "b_in": (HIDDEN,), "w_back": (WIDTH, HIDDEN), "b_back": (WIDTH,),
             **{f"{name}_{number}": (WIDTH,) for name in ("gain", "shift") for number in "12"},
             **({"w_up": (HIDDEN, WIDTH), "b_up": (HIDDEN,)} if shape.gated else {})}
    return {name: torch.randn(size) * (size[-1] ** -0.5 if len(size) > 1 else 0.5) for name, size in sizes.items()}


def normalised(shape: EncoderShape, x: torch.Tensor, values: dict[str, torch.Tensor], number: str) -> torch.Tensor:
    apart = x - x.mean(-1, keepdim=True) if shape.norm == "layer" else x
    return apart / (apart.square().mean(-1, keepdim=True) + shape.epsilon).sqrt() * values[f"gain_{number}"] + values[
        f"shift_{number}"]


def attended(shape: EncoderShape, x: torch.Tensor, values: dict[str, torch.Tensor]) -> torch.Tensor:
    qkv = functional.linear(x, values["w_qkv"], values["b_qkv"]).view(-1, 3, HEADS, WIDTH // HEADS)
    q, k, v = qkv.permute(1, 2, 0, 3)
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=shape.causal)
    return functional.linear(mixed.transpose(0, 1).reshape(-1, WIDTH), values["w_out"], values["b_out"])


def network(shape: EncoderShape, x: torch.Tensor, values: dict[str, torch.Tensor]) -> torch.Tensor:
    active = REFERENCE[shape.activation](functional.linear(x, values["w_in"], values["b_in"]))
    if shape.gated:
        active = active * functional.linear(x, values["w_up"], values["b_up"])
    return functional.linear(active, values["w_back"], values["b_back"])


def reference(shape: EncoderShape, x: torch.Tensor, values: dict[str, torch.Tensor]) -> torch.Tensor:
    results = []
    for one in x.split(LENGTHS):
        if shape.norm_first:
            one = one + attended(shape, normalised(shape, one, values, "1"), values)
            results.append(one + network(shape, normalised(shape, one, values, "2"), values))
        else:
            one = normalised(shape, one + attended(shape, one, values), values, "1")
            results.append(normalised(shape, one + network(shape, one, values), values, "2"))
    return torch.cat(results)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_results_and_gradients_are_those_of_pytorch(form: dict[str, object]) -> None:
    torch.manual_seed(0)
    shape = EncoderShape(WIDTH, HEADS, HIDDEN, 1e-5, **form)
    layer = compiled_encoder_layer(shape, EncoderSchedule(rows=7, queries=8), 1)
    x, values, seen = torch.randn(sum(LENGTHS), WIDTH), parameters(shape), torch.randn(sum(LENGTHS), WIDTH)
    found = []
    for dtype in (torch.float32, torch.float64):
        inputs = x.to(dtype).requires_grad_()
        given = {name: value.to(dtype).requires_grad_() for name, value in values.items()}
        if dtype == torch.float32:
            result = call_layer(layer, TokenBatch(inputs, structure_of(LENGTHS)), given, PackedWeights())
        else:
            result = reference(shape, inputs, given)
        found.append([result, *torch.autograd.grad((result * seen.to(dtype)).sum(), [inputs, *given.values()])])
    for name, actual, expected in zip(("result", "x", *values), *found, strict=True):
        size = max(1.0, expected.abs().max().item())
        assert (actual - expected).abs().max() <= 1e-5 * size, name
    with torch.no_grad():
        alone = call_layer(layer, TokenBatch(x, structure_of(LENGTHS)), values, PackedWeights())
    torch.testing.assert_close(alone, found[0][0].detach(), rtol=0, atol=1e-5)


def test_every_activation_is_tested() -> None:
    assert REFERENCE.keys() == ACTIVATIONS.keys() == {form.get("activation", "relu") for form in FORMS}
