"""Every change of every part of a packed encoder has the effect that it has on the encoder before packing."""

import copy
import functools
import itertools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator

import pytest
import torch

transformers = pytest.importorskip("transformers")

from encoder_models import CONFIGS, MASKS, inputs_of, make  # noqa: E402

from sparloom.errors import Unsupported  # noqa: E402
from sparloom.nn import pack  # noqa: E402

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache", "one_thread"),
              pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:enable_nested_tensor")]

MASK = torch.tensor(MASKS["right"][:2])
TORCH = {
    "TransformerEncoder": lambda: torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(
        24, 3, 40, 0.0, batch_first=True), 2, torch.nn.LayerNorm(24), enable_nested_tensor=False),
    "TransformerEncoderLayer": lambda: torch.nn.TransformerEncoderLayer(
        24, 3, 40, 0.0, activation="gelu", norm_first=True, batch_first=True),
    "MultiheadAttention": lambda: torch.nn.MultiheadAttention(24, 3, batch_first=True),
}
KINDS = [*CONFIGS, *TORCH]


def build(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind not in TORCH:
        return make(kind)
    model = TORCH[kind]().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.2)
    return model


def call(model: torch.nn.Module) -> torch.Tensor:
    """Return the results at real tokens."""
    x = torch.sin(torch.arange(2 * 7 * 24, dtype=torch.float32)).view(2, 7, 24)
    if isinstance(model, torch.nn.MultiheadAttention):
        return model(x, x, x, key_padding_mask=MASK == 0, need_weights=False)[0][MASK.bool()]
    if isinstance(model, (torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer)):
        return model(x, src_key_padding_mask=MASK == 0)[MASK.bool()]
    given = {name: value[:2] for name, value in inputs_of(MASKS["right"]).items()}
    return model(**given).last_hidden_state[MASK.bool()]


def changed(result: object) -> object:
    """Change the first result of a module, in a way that depends on the place in a padded batch."""
    if isinstance(result, tuple):
        return changed(result[0]), *result[1:]
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return result
    result = result * 1.5
    if result.dim() > 2:
        result[:, 0] -= 1
    return result


def replace_class(module: torch.nn.Module) -> None:
    class Other(type(module)):
        def forward(self, *arguments: object, **options: object) -> object:
            return changed(super().forward(*arguments, **options))

    module.__class__ = Other


def replace_forward(module: torch.nn.Module) -> None:
    before = module.forward
    module.forward = lambda *arguments, **options: changed(before(*arguments, **options))


def replace_method(module: torch.nn.Module) -> None:
    """Replace a method of the class other than forward."""
    name = next(name for name, value in vars(type(module)).items() if isinstance(value, types.FunctionType)
                and name not in ("forward", "extra_repr", "reset_parameters") and not name.startswith("_"))
    before = getattr(module, name)
    setattr(module, name, lambda *arguments, **options: changed(before(*arguments, **options)))


class Around(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, *arguments: object, **options: object) -> object:
        return changed(self.inner(*arguments, **options))


class Doubled(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def parametrise(module: torch.nn.Module) -> None:
    torch.nn.utils.parametrize.register_parametrization(module, first_parameter(module), Doubled())


def first_parameter(module: torch.nn.Module) -> str:
    return next(name for name, value in module._parameters.items() if value is not None)


def as_tensor(module: torch.nn.Module, name: str) -> None:
    value = 1.5 * module._parameters.pop(name).detach()
    vars(module)[name] = value


def as_buffer(module: torch.nn.Module, name: str) -> None:
    value = 1.5 * module._parameters.pop(name).detach()
    module.register_buffer(name, value)


def change_scalar(module: torch.nn.Module, number: int) -> None:
    """Change the attribute of this number among those that are numbers."""
    names = [name for name, value in vars(module).items() if isinstance(value, (bool, int, float))
             and not name.startswith("_") and name not in ("training", "layer_idx", "p", "dropout", "num_embeddings",
                                                           "padding_idx", "inplace", "attention_dropout")]
    name = names[number]
    value = getattr(module, name)
    setattr(module, name, not value if isinstance(value, bool) else 2 * value)


CHANGES: dict[str, Callable[[torch.nn.Module], object]] = {
    "forward hook": lambda part: part.register_forward_hook(lambda module, given, result: changed(result)),
    "forward pre-hook": lambda part: part.register_forward_pre_hook(
        lambda module, given: (changed(given[0]), *given[1:]) if given else None),
    "class": replace_class,
    "forward": replace_forward,
    "method": replace_method,
    "write": lambda part: next(iter(part._parameters.values())).data.mul_(1.5),
    "parameter": lambda part: setattr(part, first_parameter(part), torch.nn.Parameter(
        1.5 * getattr(part, first_parameter(part)).detach())),
    "hooks": lambda part: setattr(
        part, "_forward_hooks", OrderedDict({0: lambda module, given, result: changed(result)})),
    "buffer": lambda part: as_buffer(part, first_parameter(part)),
    "tensor": lambda part: as_tensor(part, first_parameter(part)),
    "no bias": lambda part: setattr(part, "bias" if part.bias is not None else "no bias", None),
    "parametrised": parametrise,
    **{f"number {number}": lambda part, number=number: change_scalar(part, number) for number in range(6)},
}
OUTSIDE = {
    "module around": Around,
    "another like it": lambda part: copy.deepcopy(part).requires_grad_(False).apply(
        lambda module: [value.data.mul_(1.5) for value in module._parameters.values() if value is not None]),
}


def changes(model: torch.nn.Module) -> Iterator[tuple[str, str]]:
    paths = [path for path, part in model.named_modules() if path and not isinstance(part, torch.nn.ModuleList)]
    return itertools.product(paths, (*CHANGES, *OUTSIDE))


def apply(model: torch.nn.Module, path: str, change: str) -> None:
    part = model.get_submodule(path)
    if change in CHANGES:
        CHANGES[change](part)
    else:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, OUTSIDE[change](part))


def result_or_error(function: Callable[[], torch.Tensor]) -> torch.Tensor | Exception:
    try:
        return function()
    except Exception as error:
        return error


def differences(kind: str, selected: Callable[[int], bool]) -> tuple[int, list[str]]:
    """Count changes that matter, and name those whose effect on a packed encoder is another one, without an error."""
    plain = build(kind)
    unchanged, wrong, count = call(plain), [], 0
    for number, (path, change) in enumerate(changes(plain)):
        if not selected(number):
            continue
        edited = copy.deepcopy(plain)
        if isinstance(result_or_error(lambda edited=edited, path=path, change=change: apply(edited, path, change)),
                      Exception):
            continue  # the part has no such attribute
        expected = result_or_error(lambda edited=edited: call(edited))
        count += isinstance(expected, torch.Tensor) and not torch.allclose(expected, unchanged, atol=1e-4)
        for order in ("before", "after", "after a call"):
            packed = copy.deepcopy(plain)
            try:
                if order == "before":
                    apply(packed, path, change)
                pack(packed)
                if order == "after a call":
                    call(packed)
                    call(packed)
                if order != "before":
                    apply(packed, path, change)
                results = [call(packed) for _ in range(2)]
            except Unsupported:
                continue
            except Exception:
                if isinstance(expected, torch.Tensor):
                    wrong.append(f"{path}: {change}, {order}: fails")
                continue
            if isinstance(expected, Exception) or not all(
                    torch.allclose(result, expected, atol=1e-4, rtol=1e-4) for result in results):
                wrong.append(f"{path}: {change}, {order}")
    return count, wrong


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_changes_have_their_effect(kind: str) -> None:
    with torch.no_grad():
        count, wrong = differences(kind, lambda number: number % 41 == 0 or kind == "MultiheadAttention")
    assert wrong == []
    assert count


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_all_changes_have_their_effect(kind: str) -> None:
    with torch.no_grad():
        count, wrong = differences(kind, lambda number: True)
    assert wrong == []
    assert count >= 5


def test_decorators_of_torch_count_only_on_modules_that_programs_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of transformers compute rotations under torch.no_grad()."""
    model = build("ModernBertModel")
    rotary, layer = type(model.rotary_emb), type(model.layers[0].mlp)
    with torch.no_grad():
        expected = call(model)
        monkeypatch.setattr(rotary, "forward", torch.no_grad()(rotary.forward))
        torch.testing.assert_close(call(pack(copy.deepcopy(model), strict=True)), expected, atol=1e-5, rtol=0)
        monkeypatch.setattr(layer, "forward", torch.no_grad()(layer.forward))
        with pytest.raises(Unsupported, match="forward was replaced"):
            pack(copy.deepcopy(model))


CLASSES = {"BertModel": ("", "encoder.layer.0.attention.self", "encoder.layer.0.output.dense", "embeddings"),
           "T5EncoderModel": ("encoder.block.0", "encoder.block.0.layer.0.layer_norm"),
           "TransformerEncoder": ("", "layers.0", "layers.0.self_attn", "layers.0.norm1")}


@pytest.mark.parametrize(("kind", "path"), [(kind, path) for kind, paths in CLASSES.items() for path in paths])
def test_replaced_methods_of_classes_count(kind: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build(kind)
    part, packed = type(plain.get_submodule(path)), pack(copy.deepcopy(plain))
    before = part.forward
    with torch.no_grad():
        unchanged = call(packed)

        @functools.wraps(before)
        def forward(*arguments: object, **options: object) -> object:
            result = before(*arguments, **options)
            if isinstance(result, dict):
                result["last_hidden_state"] = changed(result["last_hidden_state"])
                return result
            return changed(result)

        monkeypatch.setattr(part, "forward", forward)
        expected = call(plain)
        assert not torch.allclose(expected, unchanged, atol=1e-3)
        torch.testing.assert_close(call(packed), expected)
        monkeypatch.undo()
        torch.testing.assert_close(call(packed), unchanged)


@pytest.mark.parametrize(("kind", "method"), [("BertModel", "_create_attention_masks"),
                                              ("TransformerEncoderLayer", "_ff_block")])
def test_replaced_methods_of_the_encoder_itself_count(kind: str, method: str) -> None:
    plain = build(kind)
    packed = pack(copy.deepcopy(plain))
    with torch.no_grad():
        unchanged = call(packed)
        for each in (plain, packed):
            if kind == "BertModel":
                setattr(each, method, lambda **given: (torch.eye(7, dtype=torch.bool)[None, None], None))
            else:
                setattr(each, method, lambda x: 0 * x)
        expected = call(plain.train()) if kind == "TransformerEncoderLayer" else call(plain)  # past its fast path
        result = call(packed.train()) if kind == "TransformerEncoderLayer" else call(packed)
        torch.testing.assert_close(result, expected)
        assert not torch.allclose(result, unchanged, atol=1e-3)


def test_shallow_copies_have_parts_of_their_own() -> None:
    packed, other = pack(build("BertModel")), build("BertModel")
    with torch.no_grad():
        before = call(packed)
        for parameter in other.encoder.parameters():
            parameter.mul_(1.5)
        twin = copy.copy(packed)
        twin._modules = {**packed._modules, "encoder": other.encoder}
        other.embeddings = packed.embeddings
        torch.testing.assert_close(call(twin), call(other), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(call(packed), before)


def test_registered_attention_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain = build("BertModel")
    packed, before = pack(copy.deepcopy(plain)), ALL_ATTENTION_FUNCTIONS["sdpa"]
    with torch.no_grad():
        call(packed)
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa",
                            lambda *given, **options: changed(before(*given, **options)))
        torch.testing.assert_close(call(packed), call(plain))
