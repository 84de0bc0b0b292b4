"""What decoders have besides encoders: caches, positions that restart, pooling by the last token, wide heads."""

import copy
import itertools
import logging

import pytest
import torch
from encoder_models import DECODERS, MASKS, assert_near, inputs_of, make, real

from sparloom.errors import Unsupported
from sparloom.nn import describe_packing, pack

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("kind", DECODERS)
def test_a_cache_is_made_where_it_is_asked_for_and_only_there(kind: str, caplog) -> None:
    model, given = make(kind, use_cache=True), inputs_of(MASKS["right"])
    twin = copy.deepcopy(model)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        result = pack(model)(**given)
        assert not caplog.records
        assert result.get("cache") is None
        assert result.get("past_key_values") is None
        assert_near(real(result.last_hidden_state, given), real(twin(**given).last_hidden_state, given))
        asked, expected = model(**given, use_cache=True), twin(**given, use_cache=True)
    assert "use_cache" in caplog.text
    assert list(asked) == list(expected)
    assert torch.equal(asked.last_hidden_state, expected.last_hidden_state)


@pytest.mark.parametrize(("kind", "config"), [("Qwen3ForCausalLM", "Qwen3Model"), ("Gemma3ForCausalLM",
                                                                                 "Gemma3TextModel")])
def test_generation_and_logits_are_as_before(kind: str, config: str) -> None:
    plain = getattr(transformers, kind)(make(config, use_cache=True).config).eval()
    packed, given = pack(copy.deepcopy(plain)), inputs_of(MASKS["left"])
    with torch.no_grad():
        assert_near(real(packed(**given).logits, given), real(plain(**given).logits, given))
        options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
        first = {name: value[:2] for name, value in given.items()}
        assert torch.equal(packed.generate(**first, **options), plain.generate(**first, **options))


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("rows", [[[0, 1, 2, 0, 1, 2, 3]], [[0, 1, 2, 3, 4, 5, 6], [5, 6, 0, 1, 0, 0, 1]]])
def test_positions_that_restart_are_several_sequences(kind: str, rows: list[list[int]], caplog) -> None:
    """As collators without padding make them."""
    model, positions = make(kind), torch.tensor(rows)
    ids = inputs_of(None)["input_ids"][:len(rows)]
    texts = []
    for row, places in zip(ids.tolist(), rows, strict=True):
        starts = [0, *(at for at in range(1, 7) if places[at] != places[at - 1] + 1), 7]
        texts += [row[begin:end] for begin, end in itertools.pairwise(starts)]
    twin = copy.deepcopy(model)
    with torch.no_grad():
        expected = twin(ids, position_ids=positions).last_hidden_state
        assert_near(torch.cat([twin(torch.tensor([text])).last_hidden_state[0] for text in texts]),
                    expected.flatten(0, 1))
        pack(model)
        assert_near(model(ids, position_ids=positions).last_hidden_state, expected)
        assert_near(model.encode_packed(texts)[0], expected.flatten(0, 1))
    loss = model(ids, position_ids=positions).last_hidden_state.pow(3).sum()
    loss.backward()
    twin.double()(ids, position_ids=positions).last_hidden_state.pow(3).sum().backward()
    assert not caplog.records
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert_near(one.grad, other.grad)


@pytest.mark.parametrize("kind", DECODERS)
def test_the_last_token_of_a_text_does_not_depend_on_others(kind: str) -> None:
    """As embedding models read it: whichever side is padded."""
    model, generator = pack(make(kind)), torch.Generator().manual_seed(2)
    texts = [torch.randint(5, 60, (length,), generator=generator) for length in (3, 7, 1)]
    last = []
    with torch.no_grad():
        for side in ("right", "left"):
            padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_side=side)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(text) for text in texts], batch_first=True,
                                                   padding_side=side)
            hidden = model(padded, attention_mask=mask).last_hidden_state
            last.append(hidden[:, -1] if side == "left" else hidden[torch.arange(3), mask.sum(1) - 1])
    assert_near(*last)


def test_models_that_programs_do_not_know_are_left_with_a_reason() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    for kind, changes, reason in (("LlamaModel", {"rope_parameters": dynamic}, "'dynamic'"),
                                  ("Gemma3TextModel", {"attn_logit_softcapping": 5.0}, "bounds scores"),
                                  ("Qwen2Model", {"is_causal": False}, "sliding window")):
        with pytest.raises(Unsupported, match=reason):
            pack(make(kind, **changes))
    model = make("Qwen3Model")
    model.layers[0].self_attn.q_norm.variance_epsilon = 0.1
    assert "q_norm has another epsilon" in describe_packing(model).left[""]


ROPE = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA_3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(("kind", "changes"), [
    ("LlamaModel", {"is_causal": False}), ("LlamaModel", {"mlp_bias": True}),
    ("LlamaModel", {"rope_parameters": {**ROPE, **LLAMA_3}}),
    ("Qwen3Model", {"rope_parameters": {**ROPE, "rope_type": "yarn"}}),
    ("Qwen3Model", {"rope_parameters": {**ROPE, "rope_type": "linear"}}),
    ("Qwen3Model", {"attention_bias": True, "hidden_act": "gelu"}), ("Gemma3TextModel", {"attention_bias": True})])
def test_variants(kind: str, changes: dict[str, object]) -> None:
    model, given = make(kind, **changes), inputs_of(MASKS["left"])
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        expected = real(exact(**given).last_hidden_state, given)
        assert_near(real(pack(model, strict=True)(**given).last_hidden_state, given), expected)
