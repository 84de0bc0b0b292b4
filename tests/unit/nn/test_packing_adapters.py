"""LoRA adapters of PEFT on packed models: results and gradients are those of the model that is not packed."""

import copy

import pytest
import torch

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from sparloom.errors import Unsupported  # noqa: E402
from sparloom.nn import describe_packing, pack, unpack  # noqa: E402

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache", "one_thread"),
              pytest.mark.filterwarnings("ignore::FutureWarning")]

CONFIGS = {
    "BertModel": transformers.BertConfig(
        vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=50, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "ModernBertModel": transformers.ModernBertConfig(
        vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2),
}
MASK = torch.tensor([[1] * 7, [1] * 3 + [0] * 4, [1] * 5 + [0] * 2])
IDS = torch.randint(5, 60, MASK.shape, generator=torch.Generator().manual_seed(0))


def adapted(kind: str = "BertModel", **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    model = getattr(transformers, kind)(CONFIGS[kind])
    return peft.get_peft_model(model, lora(**options))


def lora(**options: object) -> peft.LoraConfig:
    return peft.LoraConfig(**{"target_modules": "all-linear", "r": 4, "init_lora_weights": False, **options})


def real(model: torch.nn.Module) -> torch.Tensor:
    return model(IDS, attention_mask=MASK).last_hidden_state[MASK.bool()]


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0,
                               atol=1e-5 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_results_and_gradients_are_those_of_the_original(kind: str) -> None:
    model = adapted(kind)
    exact, seen = copy.deepcopy(model).double(), torch.randn(int(MASK.sum()), 24)
    assert describe_packing(pack(model)).packed == ("base_model.model",)
    found = []
    for each in (model, exact):
        result = real(each)
        learned = {name: value for name, value in each.named_parameters() if "lora" in name and "pooler" not in name}
        found.append([result, *torch.autograd.grad((result * seen.to(result.dtype)).sum(), list(learned.values()))])
    for actual, expected in zip(*found, strict=True):
        assert_near(actual, expected)


def test_adapters_that_change_are_followed() -> None:
    model = adapted()
    model.add_adapter("second", lora(r=2))
    exact = copy.deepcopy(model)
    pack(model)
    results = []

    def compare() -> None:
        with torch.no_grad():
            assert_near(real(model), expected := real(exact))
        assert not any(torch.equal(expected, other) for other in results)
        results.append(expected)

    compare()
    for each in (model, exact):
        real(each).sin().sum().backward()
        torch.optim.SGD([value for value in each.parameters() if value.requires_grad], lr=0.1).step()
    compare()
    for each in (model, exact):
        each.base_model.set_adapter(["default", "second"])
    compare()
    for each in (model, exact):
        part = each.get_submodule("base_model.model.encoder.layer.0.attention.self.query")
        part.scaling["second"] *= 2
        part.lora_B["second"].weight.data[0] += 1
    compare()
    with torch.no_grad(), model.disable_adapter(), exact.disable_adapter():
        assert_near(real(model), real(exact))
    for each in (model, exact):
        each.merge_adapter()
    with torch.no_grad():
        assert_near(real(model), results[-1])


def test_adapters_may_be_added_to_packed_models() -> None:
    torch.manual_seed(0)
    model = transformers.BertModel(CONFIGS["BertModel"])
    exact = peft.get_peft_model(copy.deepcopy(model), lora(target_modules=["query"]))
    packed = peft.get_peft_model(pack(model), lora(target_modules=["query"]))
    packed.load_state_dict(exact.state_dict())
    with torch.no_grad():
        assert_near(real(packed), real(exact))


def test_adapters_that_do_not_only_add_to_weights() -> None:
    model = pack(adapted(lora_dropout=0.25).eval())
    with torch.no_grad():
        packed = real(model)
        torch.manual_seed(1)
        dropped = real(model.train())  # computed by PEFT
        torch.manual_seed(1)
        torch.testing.assert_close(real(unpack(copy.deepcopy(model))), dropped)
        assert not torch.allclose(dropped, packed)
        torch.testing.assert_close(real(model.eval()), packed)
    with pytest.raises(Unsupported, match=r"query: adapter 'default' has dropout 0\.25 of its inputs in training"):
        pack(adapted(lora_dropout=0.25))
    for options, message in (({"use_dora": True}, "adapter 'default' has DoraLinearVariant"),
                             ({"lora_bias": True, "init_lora_weights": True}, "adapter 'default' has a bias")):
        with pytest.raises(Unsupported, match=message):
            pack(adapted(target_modules=["query"], **options))


@pytest.mark.parametrize("inner", ["", ".base_layer", ".lora_A.default", ".lora_B.default", ".lora_dropout.default"])
def test_hooks_of_adapted_modules_are_not_lost(inner: str) -> None:
    model = pack(adapted())
    twin = copy.deepcopy(model)
    for each in (model, unpack(twin)):
        part = each.get_submodule("base_model.model.encoder.layer.1.output.dense" + inner)
        part.register_forward_hook(lambda module, inputs, result: result * 2)
    with torch.no_grad():
        torch.testing.assert_close(real(model), real(twin))


def test_adapters_that_are_off_for_one_call() -> None:
    model = pack(adapted())
    twin = unpack(copy.deepcopy(model))
    with torch.no_grad():
        for _ in range(3):
            expected = real(twin)
            assert_near(real(model), expected)
            with model.disable_adapter(), twin.disable_adapter():
                assert_near(real(model), real(twin))
                assert not torch.allclose(real(twin), expected)
            for name, weight in (*model.named_parameters(), *twin.named_parameters()):
                if "lora_A" in name:
                    weight.mul_(1.5)
