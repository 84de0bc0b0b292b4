"""Packed models in bfloat16 and int8: near those in float32, which they stay in training."""

import copy
import pickle

import pytest
import torch

transformers = pytest.importorskip("transformers")

from sparloom.errors import Unsupported  # noqa: E402
from sparloom.nn import describe_packing, pack, unpack  # noqa: E402
from sparloom.nn.packed_layers import PRECISION  # noqa: E402

pytestmark = [pytest.mark.cc, pytest.mark.slow, pytest.mark.usefixtures("own_cache", "one_thread")]

SIZES = {"vocab_size": 60, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96,
         "max_position_embeddings": 50}
CONFIGS = {
    "BertModel": transformers.BertConfig(**SIZES),
    "MPNetModel": transformers.MPNetConfig(**SIZES),
    "ModernBertModel": transformers.ModernBertConfig(
        **SIZES, global_attn_every_n_layers=2, local_attention=4, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2),
    "T5EncoderModel": transformers.T5Config(
        vocab_size=60, d_model=48, d_kv=16, num_heads=3, d_ff=96, num_layers=2, relative_attention_num_buckets=8,
        relative_attention_max_distance=6, feed_forward_proj="gated-gelu"),
    "Qwen3Model": transformers.Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=16),
    "Gemma3TextModel": transformers.Gemma3TextConfig(**SIZES, num_key_value_heads=3, head_dim=8),
}
LEAST = {"bfloat16": 0.9999, "int8": 0.999}  # cosines
LEAST_OF = {("Qwen3Model", "bfloat16"): 0.9998}  # PyTorch itself in bfloat16 is further from float64
MASK = torch.tensor([[1] * 12, [1] * 3 + [0] * 9, [0] * 12, [1] * 2 + [0] * 3 + [1] * 7])
IDS = torch.randint(5, 60, MASK.shape, generator=torch.Generator().manual_seed(1))


def make(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = getattr(transformers, kind)(copy.deepcopy(CONFIGS[kind])).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:  # larger than when training begins
            torch.nn.init.normal_(parameter, 0.0, 0.08)
    return model


def encode(model: torch.nn.Module, mask: torch.Tensor = MASK) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=mask).last_hidden_state


def cosines(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    real = MASK.bool()
    return torch.nn.functional.cosine_similarity(found[real].double(), expected[real].double(), dim=-1)


@pytest.mark.parametrize("precision", list(LEAST))
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_vectors_are_near_those_in_float32(kind: str, precision: str) -> None:
    model = make(kind)
    exact = encode(copy.deepcopy(model).double())
    assert pack(model, precision=precision) is model
    found = encode(model)
    assert LEAST_OF.get((kind, precision), LEAST[precision]) <= cosines(found, exact).min() < 1 - 1e-9
    assert not found[~MASK.bool()].any()


@pytest.mark.parametrize("precision", list(LEAST))
def test_a_trained_classifier_decides_as_in_float32(precision: str) -> None:
    torch.manual_seed(0)
    model = pack(transformers.BertForSequenceClassification(transformers.BertConfig(
        **{**SIZES, "num_labels": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})))
    ids = torch.randint(5, 60, (256, 12))
    labels = ((ids < 20).sum(1) > (ids > 45).sum(1)).long()
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(120):
        chosen = torch.arange(32) + 32 * (step % 8)
        optimiser.zero_grad()
        model(input_ids=ids[chosen], labels=labels[chosen]).loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        exact = model(input_ids=ids, output_hidden_states=True)
        found = pack(model, precision=precision)(input_ids=ids, output_hidden_states=True)
    assert (exact.logits.argmax(1) == labels).float().mean() > 0.9  # it has learned
    assert (found.logits.argmax(1) == exact.logits.argmax(1)).float().mean() > 0.98
    near = torch.nn.functional.cosine_similarity(found.hidden_states[-1], exact.hidden_states[-1], dim=-1)
    assert near.min() >= LEAST[precision]


def test_training_stays_in_float32() -> None:
    model = make("BertModel")
    twin = copy.deepcopy(model)
    pack(model, precision="bfloat16")
    for each in (model, twin):
        each(input_ids=IDS, attention_mask=MASK).last_hidden_state[MASK.bool()].square().sum().backward()
    for (name, parameter), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-3, atol=1e-4, msg=name)


def test_copies_keep_the_precision_and_unpacking_forgets_it() -> None:
    model = pack(make("BertModel"), precision="int8")
    found = encode(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(encode(other), found, rtol=0, atol=0)
    unpack(model)
    assert not any(PRECISION in module.__dict__ for module in model.modules())
    assert not torch.equal(encode(pack(model)), found)


def test_packing_again_changes_the_precision() -> None:
    model = make("BertModel")
    exact = encode(pack(model))
    half = encode(pack(model, precision=torch.bfloat16))
    assert not torch.equal(half, exact)
    torch.testing.assert_close(encode(pack(model, precision="float32")), exact, rtol=0, atol=0)
    assert describe_packing(model).packed == ("",)


@pytest.mark.parametrize("precision", list(LEAST))
def test_modules_of_torch(precision: str) -> None:
    torch.manual_seed(0)
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(
        48, 3, 96, activation="gelu", batch_first=True, dropout=0.0), 2, enable_nested_tensor=False).eval()
    attention, x = torch.nn.MultiheadAttention(48, 3, batch_first=True).eval(), torch.randn(2, 9, 48)
    with torch.no_grad():
        exact = encoder(x), attention(x, x, x, need_weights=False)[0]
        pack(encoder, precision=precision)
        pack(attention, precision=precision)
        found = encoder(x), attention(x, x, x, need_weights=False)[0]
    for each, other in zip(found, exact, strict=True):
        assert LEAST[precision] <= torch.nn.functional.cosine_similarity(each, other, dim=-1).min() < 1 - 1e-9


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(ValueError, match="precision='float16': there are float32, bfloat16, int8"):
        pack(make("BertModel"), precision=torch.float16)
    odd = transformers.BertModel(transformers.BertConfig(**{**SIZES, "intermediate_size": 98}))
    with pytest.raises(Unsupported, match=r"encoder.layer.0: hidden 98 is no multiple of 4, as int8 needs it"):
        pack(odd, precision="int8")
    assert not describe_packing(odd).packed
    pack(odd, precision="bfloat16")
    with pytest.raises(Unsupported, match="hidden 98 is no multiple of 4"):
        pack(odd, precision="int8")
    with pytest.raises(Unsupported, match=r"call pack\(model.float\(\).cpu\(\), precision=...\)"):
        pack(make("BertModel").bfloat16(), precision="bfloat16")
