"""Forms of the encoder layer, with gradients, against the same written in PyTorch in float64."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from sparloom.nn.batches import TokenBatch
from sparloom.nn.ragged_programs import PackedWeights, call_layer
from sparloom.ragged import ACTIVATIONS, EncoderSchedule, EncoderShape, compiled_encoder_layer, structure_of

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

WIDTH, HEADS, HIDDEN, LENGTHS = 32, 4, 40, [5, 1, 0, 33, 3]
MASK = torch.arange(sum(LENGTHS)) % 3 > 0
TABLES = ("bias_before", "bias_after")
REFERENCE = {"relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu,
             "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh")}
DECODER = {"activation": "silu", "norm_first": True, "norm": "rms", "gated": True, "head": 16, "key_heads": 2,
           "rotary": 16}
FORMS = [{"activation": "gelu", "window": 4}, {"activation": "silu", "norm_first": True, "norm": "rms", "gated": True},
         {"activation": "gelu_tanh", "gated": True, "causal": True, "scale": 0.7},
         {"norm": "rms", "distances": 6, "rotary": 4, "scale": 0.7}, {"distances": 40, "causal": True},
         {"norm_first": True, "first_norm": False, "masked": True, "window": 3},
         {"causal": True, "window": 9}, {"dropout": (0.3, 0.2, 0.1, 0.4)},
         {"dropout": (0.5, 0.0, 0.5, 0.0), "activation": "silu", "gated": True, "norm_first": True, "rotary": 8},
         {"rotary": 6, "causal": True}, {**DECODER, "causal": True}, {**DECODER, "key_heads": 4, "window": 4},
         {**DECODER, "key_heads": 1, "head_norms": True, "sum_norms": True, "norm": "rms_centred", "scale": 0.3},
         {**DECODER, "head_norms": True, "causal": True, "window": 3, "dropout": (0.3, 0.0, 0.0, 0.0)},
         {"distances": 5, "dropout": (0.4, 0.0, 0.0, 0.0), "window": 4}]
PARTS_ELSEWHERE = (1,)  # forms whose parts are in others, too
RANDOM = np.random.default_rng(0).integers(0, 1 << 31, sum(LENGTHS))


def parameters(shape: EncoderShape) -> dict[str, torch.Tensor]:
    queries, pairs = HEADS * shape.head_width, 2 * (shape.key_heads or 0) * shape.head_width
    into = {"q": queries, "kv": pairs} if shape.key_heads else {"qkv": 3 * WIDTH}
    sizes = {**{f"w_{name}": (size, WIDTH) for name, size in into.items()},
             **{f"b_{name}": (size,) for name, size in into.items()}, "w_out": (WIDTH, queries), "b_out": (WIDTH,),
             "w_in": (HIDDEN, WIDTH), "b_in": (HIDDEN,), "w_back": (WIDTH, HIDDEN), "b_back": (WIDTH,),
             **{f"{name}_{number}": (WIDTH,) for name in ("gain", "shift")
                for number in ("1" * shape.first_norm + "2" + "34" * shape.sum_norms)},
             **({f"gain_{name}": (shape.head_width,) for name in "qk"} if shape.head_norms else {}),
             **({"w_up": (HIDDEN, WIDTH), "b_up": (HIDDEN,)} if shape.gated else {}),
             **({name: (HEADS, shape.distances + 1) for name in TABLES} if shape.distances else {})}
    return {name: torch.randn(size) * (size[-1] ** -0.5 if len(size) > 1 else 0.5) for name, size in sizes.items()}


def normalised(shape: EncoderShape, x: torch.Tensor, values: dict[str, torch.Tensor], number: str) -> torch.Tensor:
    apart = x - x.mean(-1, keepdim=True) if shape.norm == "layer" else x
    gain = values[f"gain_{number}"] + (shape.norm == "rms_centred")
    return apart / (apart.square().mean(-1, keepdim=True) + shape.epsilon).sqrt() * gain + values.get(
        f"shift_{number}", 0.0)


def turned(shape: EncoderShape, x: torch.Tensor) -> torch.Tensor:
    """Rotate the leading columns of (heads, tokens, width) by the position."""
    angles = angles_of(shape, x.shape[1]).to(x.dtype)
    first, rest = x[..., : shape.rotary], x[..., shape.rotary :]
    low, high = first.chunk(2, -1)
    return torch.cat([first * angles.cos() + torch.cat([-high, low], -1) * angles.sin(), rest], -1)


def angles_of(shape: EncoderShape, tokens: int) -> torch.Tensor:
    rates = 100.0 ** -torch.linspace(0, 1, shape.rotary // 2, dtype=torch.float64)
    return (torch.arange(tokens)[:, None] * rates).repeat(1, 2)


def addend(shape: EncoderShape, mask: torch.Tensor, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """What is added to scores, -inf where a key is not seen."""
    tokens = len(mask)
    apart = torch.arange(tokens)[:, None] - torch.arange(tokens)
    found = torch.zeros(HEADS, tokens, tokens, dtype=values["b_out"].dtype)
    if shape.distances:
        reach = apart.abs().clamp(max=shape.distances)
        found = torch.where(apart >= 0, values["bias_before"][:, reach], values["bias_after"][:, reach])
    unseen = (apart < 0) & shape.causal
    if shape.window is not None:
        unseen = unseen | (apart.abs() > shape.window)
    if shape.masked:
        unseen = unseen | (~mask & (apart != 0))
    return found.masked_fill(unseen, float("-inf"))


def factors(shape: EncoderShape, place: int, random: np.ndarray, index: np.ndarray) -> torch.Tensor:
    """What dropout multiplies values by, (tokens, ...), for indices of (...)."""
    word = 2**31
    bits = (random.reshape(-1, *[1] * index.ndim).astype(object) + index.astype(object) * 2654435761
            + place * 1013904223) % word
    for factor, shift in ((747796405, 15), (277803737, 13)):
        bits = bits * (2 * bits + 1) % word
        bits = ((bits + bits // 2**shift) % word * factor + 1013904223) % word
    kept = (bits * (2 * bits + 1) % word >= int(shape.dropout[place] * word)).astype(float)
    return torch.from_numpy(kept / (1 - shape.dropout[place]))


def attended(shape: EncoderShape, x: torch.Tensor, values: dict[str, torch.Tensor], mask: torch.Tensor,
             random: np.ndarray) -> torch.Tensor:
    if shape.key_heads:
        parts = [functional.linear(x, values[f"w_{name}"], values[f"b_{name}"]).view(len(x), heads, shape.head_width)
                 for name, heads in (("q", HEADS), ("kv", 2 * shape.key_heads))]
        q, k, v = (each.transpose(0, 1) for each in (parts[0], *parts[1].chunk(2, 1)))
        if shape.head_norms:
            q, k = normalised(shape, q, values, "q"), normalised(shape, k, values, "k")
        k, v = (each.repeat_interleave(HEADS // shape.key_heads, 0) for each in (k, v))
    else:
        qkv = functional.linear(x, values["w_qkv"], values["b_qkv"])
        q, k, v = qkv.view(-1, 3, HEADS, shape.head_width).permute(1, 2, 0, 3)
    if shape.rotary:
        q, k = turned(shape, q), turned(shape, k)
    scale = q.shape[-1] ** -0.5 if shape.scale is None else shape.scale
    weights = torch.softmax(q @ k.transpose(1, 2) * scale + addend(shape, mask, values), -1)
    index = np.arange(HEADS)[:, None] * 2**20 + np.arange(len(x))
    mixed = (weights * factors(shape, 0, random, index).transpose(0, 1)) @ v
    found = functional.linear(mixed.transpose(0, 1).flatten(1), values["w_out"], values["b_out"])
    return found * factors(shape, 1, random, np.arange(WIDTH))


def network(shape: EncoderShape, x: torch.Tensor, values: dict[str, torch.Tensor], random: np.ndarray) -> torch.Tensor:
    active = REFERENCE[shape.activation](functional.linear(x, values["w_in"], values["b_in"]))
    if shape.gated:
        active = active * functional.linear(x, values["w_up"], values["b_up"])
    active = active * factors(shape, 2, random, np.arange(HIDDEN))
    return functional.linear(active, values["w_back"], values["b_back"]) * factors(shape, 3, random, np.arange(WIDTH))


def reference(shape: EncoderShape, x: torch.Tensor, values: dict[str, torch.Tensor]) -> torch.Tensor:
    results = []
    parts = np.split(RANDOM, np.cumsum(LENGTHS)[:-1])
    for one, mask, random in zip(x.split(LENGTHS), MASK.split(LENGTHS), parts, strict=True):
        if shape.norm_first:
            first = normalised(shape, one, values, "1") if shape.first_norm else one
            added = attended(shape, first, values, mask, random)
            one = one + (normalised(shape, added, values, "3") if shape.sum_norms else added)
            added = network(shape, normalised(shape, one, values, "2"), values, random)
            results.append(one + (normalised(shape, added, values, "4") if shape.sum_norms else added))
        else:
            one = normalised(shape, one + attended(shape, one, values, mask, random), values, "1")
            results.append(normalised(shape, one + network(shape, one, values, random), values, "2"))
    return torch.cat(results)


@pytest.mark.slow
@pytest.mark.parametrize("form", [
    pytest.param(form, marks=pytest.mark.exhaustive if number in PARTS_ELSEWHERE else ())
    for number, form in enumerate(FORMS)], ids=str)
def test_results_and_gradients_are_those_of_pytorch(form: dict[str, object]) -> None:
    torch.manual_seed(0)
    shape = EncoderShape(WIDTH, HEADS, HIDDEN, 1e-5, **form)
    layer = compiled_encoder_layer(shape, EncoderSchedule(rows=7, queries=8), 1)
    angles = torch.cat([angles_of(shape, length) for length in LENGTHS]).float() if shape.rotary else None
    others = {f"turn_{name}": getattr(angles, name)().numpy() for name in ("cos", "sin")} if shape.rotary else {}
    others |= {"mask": MASK.float().numpy()} if shape.masked else {}
    others |= {"random": RANDOM.astype(float)} if any(shape.dropout) else {}
    x, values, seen = torch.randn(sum(LENGTHS), WIDTH), parameters(shape), torch.randn(sum(LENGTHS), WIDTH)
    found = []
    for dtype in (torch.float32, torch.float64):
        inputs = x.to(dtype).requires_grad_()
        given = {name: value.to(dtype).requires_grad_() for name, value in values.items()}
        if dtype == torch.float32:
            result = call_layer(layer, TokenBatch(inputs, structure_of(LENGTHS), None, others), given, PackedWeights())
        else:
            result = reference(shape, inputs, given)
        learned = [inputs, *given.values()]
        found.append([result, *torch.autograd.grad((result * seen.to(dtype)).sum(), learned)])
    names = ("result", "x", *values)
    for name, actual, expected in zip(names, *found, strict=True):
        size = max(1.0, expected.abs().max().item())
        assert (actual - expected).abs().max() <= 1e-5 * size, name
    with torch.no_grad():
        alone = call_layer(layer, TokenBatch(x, structure_of(LENGTHS), None, others), values, PackedWeights())
    torch.testing.assert_close(alone, found[0][0].detach(), rtol=0, atol=1e-5)


def test_every_activation_is_tested() -> None:
    assert REFERENCE.keys() == ACTIVATIONS.keys() == {form.get("activation", "relu") for form in FORMS}


def test_dropout_has_its_shares_and_no_pattern() -> None:
    shape = EncoderShape(dropout=(0.1, 0.5, 0.25, 0.9))
    random = np.random.default_rng(1).integers(0, 1 << 31, 400)
    for place, share in enumerate(shape.dropout):
        dropped = (factors(shape, place, random, np.arange(300)) == 0).double()
        assert abs(dropped.mean().item() - share) < 0.01
        spread = (share * (1 - share)) ** 0.5
        for dim, count in ((0, 400), (1, 300)):  # by column and by token, as many as by chance
            assert abs(dropped.mean(dim).std().item() / (spread / count**0.5) - 1) < 0.2
        apart = dropped - share
        for other in (apart.roll(1, 0), apart.roll(1, 1), apart.roll(2, 1), apart.roll(16, 1)):
            assert abs((apart * other).mean().item()) < 0.02 * spread**2
    first, second = ((factors(shape, place, random, np.arange(300)) == 0).double() for place in (1, 2))
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1].item()) < 0.02
