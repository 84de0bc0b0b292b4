"""Packed modules of torch return what torch's do, for all kinds of masks, layouts and options."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from sparloom.nn import pack

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache", "one_thread"), pytest.mark.filterwarnings("ignore")]

WIDTH = 8
ERRORS = (RuntimeError, AssertionError, TypeError, ValueError, IndexError)


def layer(**options: Any) -> torch.nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True, **options)


def encoder() -> torch.nn.TransformerEncoder:
    return torch.nn.TransformerEncoder(layer(), 2)


def attention() -> torch.nn.MultiheadAttention:
    torch.manual_seed(0)
    return torch.nn.MultiheadAttention(WIDTH, 2, batch_first=True)


def call(module: torch.nn.Module, x: torch.Tensor, key_mask: Any = None, mask: Any = None, **options: Any
         ) -> torch.Tensor:
    if isinstance(module, torch.nn.MultiheadAttention):
        return module(x, x, x, key_padding_mask=key_mask, attn_mask=mask, need_weights=False, **options)[0]
    return module(x, mask, key_mask, **options)


MODULES = pytest.mark.parametrize("make", [encoder, layer, attention])


@MODULES
@pytest.mark.parametrize("gradients", [False, True])
def test_a_hint_of_causality_needs_its_mask(make: Callable[[], torch.nn.Module], gradients: bool) -> None:
    module, x = make().eval(), torch.randn(1, 5, WIDTH)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    with torch.set_grad_enabled(gradients):
        expected = call(module, x, mask=mask)
        pack(module)
        torch.testing.assert_close(call(module, x, mask=mask, is_causal=True), expected, atol=1e-5, rtol=1e-4)
        with pytest.raises(RuntimeError, match=r"is_causal=True without a mask: .* also pass the mask"):
            call(module, x, is_causal=True)
        if make is attention:
            for others in ((x, x), (x.clone(), x)):
                with pytest.raises(RuntimeError, match="is_causal=True without a mask"):
                    module(x, *others, is_causal=True)


@MODULES
def test_nested_tensors(make: Callable[[], torch.nn.Module]) -> None:
    module, parts = make().eval(), [torch.randn(3, WIDTH), torch.randn(5, WIDTH)]
    with torch.no_grad():
        expected = [call(module, each[None])[0] for each in parts]
        found = call(pack(module), torch.nested.nested_tensor(parts)).unbind()
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match=r"torch computes nested tensors here only with layout torch\.strided"):
        call(module, torch.nested.nested_tensor(parts, layout=torch.jagged))
    with pytest.raises(ValueError, match=r"in inference without .* pass a padded batch, nested\.to_padded"):
        call(module.train(), torch.nested.nested_tensor(parts))


@MODULES
@pytest.mark.parametrize("gradients", [False, True])
def test_vmap(make: Callable[[], torch.nn.Module], gradients: bool) -> None:
    module, x = pack(make().eval()), torch.randn(3, 2, 4, WIDTH)
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(torch.vmap(lambda each: call(module, each))(x),
                                   torch.stack([call(module, each) for each in x]), atol=1e-5, rtol=1e-4)


@dataclass
class Call:
    """One call of a module of torch, drawn at random."""

    module: torch.nn.Module
    tokens: list[torch.Tensor]
    options: dict[str, Any]
    gradients: bool
    autocast: bool
    drawn: dict[str, Any] = field(default_factory=dict)

    def run(self, module: torch.nn.Module, *, double: bool) -> list[torch.Tensor]:
        """Return the results at tokens that are no padding, weights of attention, and gradients."""
        convert = (lambda each: each.double()) if double else (lambda each: each)
        leaves = {id(each): convert(each).detach().requires_grad_(self.gradients) for each in self.tokens}
        learned = self.gradients and self.drawn["learned"]
        options = {name: convert(value).detach().requires_grad_(learned)
                   if isinstance(value, torch.Tensor) and value.is_floating_point() else value
                   for name, value in self.options.items()}
        with torch.set_grad_enabled(self.gradients), (
                torch.autocast("cpu", torch.bfloat16) if self.autocast and not double else nullcontext()):
            out = module(*(leaves[id(each)] for each in self.tokens), **options)
        out, *weights = out if isinstance(out, tuple) else (out,)
        out = out.to_padded_tensor(0.0) if out.is_nested else self.real(out)
        results = [out, *(each for each in weights if each is not None)]
        if self.gradients and out.numel():
            wanted = [*leaves.values(), *module.parameters(), *(
                each for each in options.values() if isinstance(each, torch.Tensor) and each.requires_grad)]
            results += [each for each in torch.autograd.grad(out.square().sum(), wanted, allow_unused=True)
                        if each is not None]
        return results

    def real(self, out: torch.Tensor) -> torch.Tensor:
        """Drop rows of padding."""
        mask = self.options.get("key_padding_mask", self.options.get("src_key_padding_mask"))
        if mask is None or (len(self.tokens) == 3 and self.tokens[0] is not self.tokens[1]):
            return out
        hidden = mask if mask.dtype == torch.bool else mask == -torch.inf
        if out.dim() == 3 and not self.drawn["batch_first"]:
            out = out.transpose(0, 1)
        return out[~hidden] if hidden.shape == out.shape[:-1] else out


def key_mask(rng: random.Random, shape: tuple[int, ...], kind: str) -> torch.Tensor | None:
    hidden = torch.rand(shape) < 0.4
    if kind == "right" and shape[-1]:
        hidden = torch.arange(shape[-1]) >= torch.randint(1, shape[-1] + 1, (*shape[:-1], 1))
    numbers = torch.where(torch.rand(shape) < 0.5, torch.randn(shape), torch.zeros(shape))
    return {"none": lambda: None, "right": lambda: hidden, "holes": lambda: hidden,
            "infinite": lambda: torch.zeros(shape).masked_fill(hidden, -torch.inf),
            "numbers": lambda: numbers, "both": lambda: numbers.masked_fill(hidden, -torch.inf),
            "integer": lambda: hidden.to(rng.choice([torch.int64, torch.int32, torch.uint8])),
            "double": lambda: torch.zeros(shape, dtype=torch.float64).masked_fill(hidden, -torch.inf)}[kind]()


def pair_mask(rng: random.Random, length: int, other: int, kind: str) -> torch.Tensor | None:
    causal = torch.ones(length, other, dtype=torch.bool).triu(1)
    return {"none": lambda: None, "causal": lambda: causal,
            "infinite": lambda: torch.zeros(length, other).masked_fill(causal, -torch.inf),
            "band": lambda: (torch.arange(length)[:, None] - torch.arange(other)).abs() > 1,
            "numbers": lambda: torch.randn(length, other),
            "causal numbers": lambda: torch.randn(length, other).masked_fill(causal, -torch.inf),
            "larger": lambda: torch.ones(length + 2, length + 2, dtype=torch.bool).triu(1),
            "zeros": lambda: torch.zeros(length, other),
            "integer": lambda: causal.to(rng.choice([torch.int64, torch.uint8]))}[kind]()


def draw(seed: int) -> Call:
    """Draw a call."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    drawn = {
        "kind": rng.choice(["encoder", "layer", "attention"]), "batch_first": rng.random() < 0.7,
        "heads": rng.choice([1, 2, 2]), "bias": rng.random() < 0.8, "training": rng.random() < 0.4,
        "dtype": rng.choice([torch.float32] * 12 + [torch.float64, torch.bfloat16]), "single": rng.random() < 0.15,
        "batch": rng.choice([0, 1, 2, 3]), "length": rng.choice([0, 1, 2, 5, 5, 9]), "strided": rng.random() < 0.2,
        "keys": rng.choice([
            "none", "none", "right", "right", "holes", "infinite", "numbers", "both", "integer", "double"]),
        "pairs": rng.choice(["none"] * 5 + [
            "causal", "causal", "infinite", "band", "numbers", "causal numbers", "larger", "zeros", "integer"]),
        "hint": rng.choice([None, None, None, False, True]), "learned": rng.random() < 0.2,
        "nested": rng.choice([None] * 12 + [torch.strided, torch.jagged])}
    shape = ("attention" if drawn["kind"] == "attention" else rng.choice(["relu", "gelu"]), rng.random() < 0.5)
    layout = {"batch_first": drawn["batch_first"], "bias": drawn["bias"]}
    if drawn["kind"] == "attention":
        module = torch.nn.MultiheadAttention(WIDTH, drawn["heads"], **layout)
    else:
        module = torch.nn.TransformerEncoderLayer(
            WIDTH, drawn["heads"], 16, 0.0, activation=shape[0], norm_first=shape[1], **layout)
        if drawn["kind"] == "encoder":
            module = torch.nn.TransformerEncoder(module, 2, rng.choice([None, torch.nn.LayerNorm(WIDTH)]),
                                                 enable_nested_tensor=rng.random() < 0.5)
    with torch.no_grad():
        for parameter in module.parameters():  # biases, too, which are 0 at first
            parameter.normal_(0, 0.5)

    def tokens(length: int) -> torch.Tensor:
        if drawn["nested"] is not None:
            parts = [torch.randn(1 + (length + each) % 4, WIDTH) for each in range(1 + drawn["batch"])]
            return torch.nested.nested_tensor(parts, layout=drawn["nested"], dtype=drawn["dtype"])
        extents = (length,) if drawn["single"] else (drawn["batch"], length)
        if not drawn["batch_first"]:
            extents = extents[::-1]
        x = torch.randn(*extents, 2 * WIDTH)[..., ::2] if drawn["strided"] else torch.randn(*extents, WIDTH)
        return x.to(drawn["dtype"])

    length, keys = drawn["length"], drawn["length"]
    given = [tokens(length)]
    if drawn["kind"] == "attention":
        how = drawn["tokens"] = rng.choice(["same", "same", "same", "equal", "memory"])
        keys = 4 if how == "memory" else length
        memory = tokens(keys)
        given = {"same": given * 3, "equal": [*given, given[0].clone(), given[0].clone()],
                 "memory": [*given, memory, memory]}[how]
    extents = (keys,) if drawn["single"] else (drawn["batch"], keys)
    masks = key_mask(rng, extents, drawn["keys"]), pair_mask(rng, length, keys, drawn["pairs"])
    names = ("key_padding_mask", "attn_mask") if drawn["kind"] == "attention" else (
        "src_key_padding_mask", "mask" if drawn["kind"] == "encoder" else "src_mask")
    options = {name: mask for name, mask in zip(names, masks, strict=True) if mask is not None}
    if drawn["hint"] is not None:
        options["is_causal"] = drawn["hint"]
    if drawn["kind"] == "attention":
        options |= {"need_weights": rng.random() < 0.3, "average_attn_weights": rng.random() < 0.5}
    return Call(module.train(drawn["training"]), given, options, rng.random() < 0.5, rng.random() < 0.1, drawn)


@contextmanager
def slow_path() -> Iterator[None]:
    """Switch off torch's fast path, which takes finite numbers of masks for -inf."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def attempt(run: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor] | Exception:
    try:
        return run()
    except ERRORS as error:
        return error


def near(found: list[torch.Tensor], expected: list[torch.Tensor] | Exception, tolerance: float) -> bool:
    return not isinstance(expected, Exception) and len(found) == len(expected) and all(
        actual.shape == wanted.shape and torch.allclose(
            actual.double(), wanted.double(), atol=tolerance * (1 + float(wanted.nan_to_num().abs().max())),
            rtol=tolerance, equal_nan=True)
        for actual, wanted in zip(found, expected, strict=True) if actual.numel() or wanted.numel())


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(150, 2150), marks=pytest.mark.exhaustive)], ids=len)
def test_calls_drawn_at_random(seeds: range) -> None:
    for seed in seeds:
        compare_with_original(seed)


def compare_with_original(seed: int) -> None:
    """Compare a call of a packed module with the original in float64, or in the same mode."""
    drawn = draw(seed)
    original, exact = copy.deepcopy(drawn.module), copy.deepcopy(drawn.module).double()
    found = attempt(lambda: drawn.run(pack(drawn.module), double=False))
    before = attempt(lambda: drawn.run(original, double=False))
    with slow_path():
        expected = attempt(lambda: drawn.run(exact, double=True))
    if isinstance(found, Exception):
        assert isinstance(before, Exception) or "is_causal=True without a mask" in str(found), (drawn, found)
    elif isinstance(before, Exception) and isinstance(expected, Exception):
        assert not found[0].numel(), (drawn, before, expected)  # nothing to compute, which torch's module refuses
    else:
        tolerance = 0.1 if drawn.autocast else 1e-3
        assert near(found, expected, tolerance) or near(found, before, tolerance), (drawn, before, expected)
