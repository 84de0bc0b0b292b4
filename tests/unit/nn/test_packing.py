"""Packed models of transformers and torch: results and gradients are those of the original in float64."""

import copy
import pickle

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from encoder_models import CONFIGS, DECODERS, MASKS, RELATIVE, assert_near, inputs_of, make, real  # noqa: E402

from sparloom.errors import Unsupported  # noqa: E402
from sparloom.nn import describe_packing, pack, unpack  # noqa: E402
from sparloom.nn.packed_layers import LayerReader  # noqa: E402

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache", "one_thread")]

@pytest.mark.parametrize("kind", list(CONFIGS))
@pytest.mark.parametrize("mask", list(MASKS))
def test_results_are_those_of_the_original(kind: str, mask: str) -> None:
    model, given = make(kind), inputs_of(MASKS[mask])
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        packed = pack(model, strict=True)(**given)
        expected = exact(**given) if given["input_ids"].numel() else None
    assert type(packed.last_hidden_state) is torch.Tensor
    assert packed.last_hidden_state.shape == (*given["input_ids"].shape, 24)
    if expected is not None:
        assert_near(real(packed.last_hidden_state, given), real(expected.last_hidden_state, given))
    if mask == "left" and not kind.startswith(("T5", *DECODERS)):  # heads read the first token, which is padding
        assert_near(packed.last_hidden_state, expected.last_hidden_state)
    elif "attention_mask" in given:
        assert not packed.last_hidden_state[given["attention_mask"] == 0].any()


@pytest.mark.parametrize("kind", ["BertModel", "MPNetModel", "ModernBertModel", "T5EncoderModel"])
def test_gradients_are_those_of_the_original(kind: str) -> None:
    model, given = make(kind, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), inputs_of(MASKS["holes"])
    exact, seen = copy.deepcopy(model).double(), torch.randn(int(given["attention_mask"].sum()), 24)
    found = []
    for each in (pack(model), exact):
        result = real(each(**given).last_hidden_state, given)
        parameters = [value for name, value in each.named_parameters() if not name.startswith("pooler")]
        found.append(torch.autograd.grad((result * seen.to(result.dtype)).sum(), parameters))
    for actual, expected in zip(*found, strict=True):
        assert_near(actual, expected)


@pytest.mark.parametrize("base", ["BertModel", "RobertaModel", "DistilBertModel", "ElectraModel", "MPNetModel",
                                  "ModernBertModel"])
def test_heads_that_read_a_first_token_of_padding(base: str, caplog) -> None:
    torch.manual_seed(0)
    head, name = (base, "pooler_output") if base == "BertModel" else (
        f"{base.removesuffix('Model')}ForSequenceClassification", "logits")
    model, given = getattr(transformers, head)(copy.deepcopy(CONFIGS[base])).eval(), inputs_of(MASKS["left"])
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        assert_near(pack(model)(**given)[name], exact(**given)[name])
    assert "begins with padding" in caplog.text


def test_hidden_states_and_the_pooler() -> None:
    model, given = make("BertModel"), inputs_of(MASKS["right"])
    exact = copy.deepcopy(model).double()
    pack(model)
    with torch.no_grad():
        given["token_type_ids"] = torch.tensor([[0, 0, 1, 1, 1, 0, 0]])  # of all sequences
        found, expected = model(**given, output_hidden_states=True), exact(**given, output_hidden_states=True)
        assert len(found.hidden_states) == len(expected.hidden_states) == 3
        for one, other in zip(found.hidden_states, expected.hidden_states, strict=True):
            assert_near(real(one, given), real(other, given))
        assert_near(found.pooler_output[:2], expected.pooler_output[:2])
        pair = model(**given, return_dict=False)
        assert isinstance(pair, tuple)
        torch.testing.assert_close(pair[0], found.last_hidden_state)


@pytest.mark.parametrize("head", [
    "BertForSequenceClassification", "BertForTokenClassification", "BertForMaskedLM", "BertForQuestionAnswering",
    "BertLMHeadModel", "RobertaForCausalLM", "ElectraForCausalLM"])
def test_heads(head: str) -> None:
    torch.manual_seed(0)
    base = head.partition("LMHead")[0].partition("For")[0]
    model = getattr(transformers, head)(copy.deepcopy(CONFIGS[f"{base}Model"])).eval()
    exact, given = copy.deepcopy(model).double(), inputs_of(MASKS["right"])
    assert describe_packing(pack(model)).packed == (base.lower(),)
    with torch.no_grad():
        found, expected = model(**given), exact(**given)
    name = "start_logits" if head == "BertForQuestionAnswering" else "logits"
    if head == "BertForSequenceClassification":
        assert_near(found[name][:2], expected[name][:2])
    else:
        assert_near(real(found[name], given), real(expected[name], given))


def test_copies_pickles_and_undoing() -> None:
    model, given = make("BertModel"), inputs_of(MASKS["right"])
    names, state = [type(each).__name__ for each in model.modules()], list(model.state_dict())
    classes = [type(each) for each in model.modules()]
    with torch.no_grad():
        before = model(**given).last_hidden_state
        assert pack(model) is model
        assert [type(each).__name__ for each in model.modules()] == names
        assert list(model.state_dict()) == state
        found = model(**given).last_hidden_state
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), pack(model)):
            torch.testing.assert_close(other(**given).last_hidden_state, found)
        unpack(model)
        assert [type(each) for each in model.modules()] == classes
        torch.testing.assert_close(model(**given).last_hidden_state, before)
        assert all("_sparloom_packed" not in each.__dict__ for each in model.modules())


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_packing_draws_no_random_numbers(kind: str) -> None:
    model, given = make(kind), inputs_of(MASKS["right"])
    state = torch.get_rng_state()
    with torch.no_grad():
        pack(model)(**given)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", ["MPNetModel", "T5EncoderModel"])
def test_tables_of_distances_keep_no_gradients(kind: str) -> None:
    model = make(kind)
    pack(model)
    given = inputs_of(MASKS["right"])
    (bias,) = (value for name, value in model.named_parameters() if "relative_attention_bias" in name)

    def step() -> torch.Tensor:
        model.zero_grad()
        result = real(model(**given).last_hidden_state, given).square().sum()
        result.backward()
        return result.detach()

    before = step()
    assert bias.grad is not None
    copied = copy.deepcopy(model)  # tensors with a graph cannot be copied
    bias.requires_grad_(False)
    for _ in range(2):  # a graph that was kept would be used twice
        torch.testing.assert_close(step(), before)
        assert bias.grad is None
    with torch.no_grad():
        bias.add_(1.0 + torch.arange(bias.numel()).view(bias.shape) % 7)
    assert (step() - before).abs() > 1e-3
    model = copied
    torch.testing.assert_close(step(), before)


def test_bad_calls_are_refused_before_any_work() -> None:
    model = pack(make("BertModel"))
    ids = torch.ones(2, 5, dtype=torch.long)
    for error, message, given in (
            (ValueError, "exactly one of input_ids or inputs_embeds", {}),
            (ValueError, "a token has position 50, and the model has 50", {"position_ids": ids * 50}),
            (ValueError, "a token has position -1: positions are never negative", {"position_ids": -ids}),
    ):
        with pytest.raises(error, match=message):
            model(**({"input_ids": ids} if given else {}), **given)
    with pytest.raises(ValueError, match="truncate the inputs"):
        model(torch.ones(1, 51, dtype=torch.long))
    for given, error in (({"attention_mask": [[1] * 5] * 2}, AttributeError), ({"input_ids": ids}, TypeError)):
        with pytest.raises(error) as raised:  # as the original model does
            model(ids, **given)
        assert any("without packing" in note for note in raised.value.__notes__)


PARTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1], [0] * 7])
OTHER_CALLS = {
    "pairs of tokens": {"attention_mask": PARTS[:, None, :, None] == PARTS[:, None, None, :]},
    "padding in four dimensions": {"attention_mask": torch.tensor(MASKS["right"])[:, None, None, :].bool()},
    "counts": {"attention_mask": 2 * torch.tensor(MASKS["right"])},
    "weights of attention": {"output_attentions": True},
    "some hidden states": {"output_hidden_states": [0, -1]},
    "other option": {"is_causal": True},
}


@pytest.mark.parametrize("call", list(OTHER_CALLS))
@pytest.mark.parametrize("kind", ["BertModel", "MPNetModel", "ModernBertModel", "T5EncoderModel"])
def test_the_original_class_computes_calls_that_programs_do_not(
    kind: str, call: str, caplog: pytest.LogCaptureFixture,
) -> None:
    model, given = make(kind), {**inputs_of(None), **OTHER_CALLS[call]}
    if call == "weights of attention" and kind != "MPNetModel":
        model.set_attn_implementation("eager")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        expected, packed = twin(**given), pack(model)
        for _ in range(2):
            result = packed(**given)
    assert list(result) == list(expected)
    torch.testing.assert_close(result.last_hidden_state, expected.last_hidden_state)
    for one, other in zip(result.get("hidden_states") or (), expected.get("hidden_states") or (), strict=True):
        assert (one is None) == (other is None)
    if call != "other option":  # which some models drop
        assert [record.message for record in caplog.records if "without packing" in record.message]


def test_the_bytes_of_packed_weights_are_told() -> None:
    model, given = pack(make("BertModel")), inputs_of(MASKS["right"])
    assert describe_packing(model).weight_bytes == 0
    sizes = []
    for precision in ("float32", "bfloat16"):
        pack(model, precision=precision)
        with torch.no_grad():
            model(**given)
        sizes.append(describe_packing(model).weight_bytes)
    parameters = sum(each.numel() for layer in model.encoder.layer for each in layer.parameters())
    assert 4 * parameters <= sizes[0]
    assert sizes[1] <= 0.7 * sizes[0]  # biases and norms stay in float32
    unpack(model)
    assert describe_packing(model).weight_bytes == 0


def test_models_that_cannot_be_packed() -> None:
    for change, message in (
            (lambda model: model.half(), "float16 on cpu: packed layers compute in torch.float32"),
            (lambda model: setattr(model.encoder.layer[0].output.LayerNorm, "eps", 1.0), "they must be equal"),
            (lambda model: setattr(model.encoder.layer[1].output, "dense", torch.nn.Identity()),
             r"encoder\.layer\.1\.output\.dense is a Identity of torch\.nn\.modules\.linear, not the Linear of"),
            (lambda model: setattr(model.encoder.layer[0].intermediate, "intermediate_act_fn", torch.nn.Tanh()),
             r"encoder\.layer\.0\.intermediate\.intermediate_act_fn is a Tanh of torch"),
            (lambda model: model.config.update({"is_decoder": True}), "it is a decoder")):
        model = make("BertModel")
        change(model)
        with pytest.raises(Unsupported, match=message):
            pack(model)
        assert not describe_packing(model).packed
    with pytest.raises(TypeError, match="model is a str"):
        pack("bert")
    with pytest.raises(Unsupported, match="it has none: there are BertModel"):
        pack(torch.nn.Linear(2, 2))
    t5 = transformers.T5EncoderModel(transformers.T5Config(d_model=8, d_kv=8, num_heads=2, d_ff=8, num_layers=1))
    with pytest.raises(Unsupported, match=r"encoder: block\.0: heads have 16 columns together and tokens 8"):
        pack(t5)
    other = transformers.FNetModel(transformers.FNetConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, intermediate_size=8))
    with pytest.raises(Unsupported, match="sparloom has no packed FNetModel"):
        pack(other)
    both = torch.nn.ModuleList([make("BertModel"), other])
    with pytest.raises(Unsupported, match="not all encoders of ModuleList can be packed: 1"):
        pack(both, strict=True)
    assert not describe_packing(both).packed
    assert describe_packing(pack(both)).packed == ("0",)


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}, {"batch_first": False}], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_encoders_of_torch(options: dict[str, object], causal: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(24, 3, 40, 0.0, **{"batch_first": True} | options)
    model = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(24), enable_nested_tensor=False)
    exact = copy.deepcopy(model).double()
    mask = torch.tensor(MASKS["right"][:2]) == 0
    x = torch.randn(2, 7, 24, requires_grad=True)
    given = {"src_key_padding_mask": mask}
    if causal:
        given |= {"mask": torch.ones(7, 7, dtype=torch.bool).triu(1), "is_causal": True}
    turn = (lambda each: each) if options.get("batch_first", True) else (lambda each: each.transpose(0, 1))
    found = []
    for each, tokens in ((pack(model), x), (exact, x.detach().double().requires_grad_())):
        result = turn(each(turn(tokens), **given))[~mask]
        found.append([result, *torch.autograd.grad(result.square().sum(), [tokens, *each.parameters()])])
    for actual, expected in zip(*found, strict=True):
        assert_near(actual, expected)
    assert not turn(model(turn(x), **given))[mask].any()


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_sequences_that_were_never_padded(kind: str) -> None:
    model = make(kind)
    exact, sequences = copy.deepcopy(model).double(), [[7, 8, 9], [], [11], [5, 6, 7, 8, 30, 1, 12]]
    with torch.no_grad():
        pack(model)
        model = model.encoder if kind.startswith("T5") else model
        found, lengths = model.encode_packed(sequences)
        assert lengths.tolist() == [3, 0, 1, 7]
        assert_near(found, torch.cat([exact(torch.tensor([each])).last_hidden_state[0] for each in sequences if each]))
        same, _ = model.encode_packed([torch.tensor(each, dtype=torch.int64) for each in sequences])
        torch.testing.assert_close(same, found)
        for nothing in ([], [[], []]):
            assert model.encode_packed(nothing)[0].shape == (0, 24)
    for wrong in ([[[1, 2]]], [[0.5]], [[True]]):
        with pytest.raises(ValueError, match=r"sequence 0 is .*: expected a vector of token ids"):
            model.encode_packed(wrong)
    if kind not in RELATIVE[1:]:
        with pytest.raises(ValueError, match="and the model has 50: truncate the inputs"):
            model.encode_packed([[5] * 51])


def test_a_decoder_keeps_its_masks() -> None:
    torch.manual_seed(0)
    decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(24, 3, 40, 0.0, batch_first=True), 2)
    x, memory = torch.randn(2, 5, 24), torch.randn(2, 7, 24)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    given = {"tgt_mask": mask, "memory_key_padding_mask": torch.tensor(MASKS["right"][:2]) == 0}
    expected = decoder(x, memory, **given)
    assert describe_packing(pack(decoder)).packed == tuple(
        f"layers.{number}.{name}" for number in (0, 1) for name in ("self_attn", "multihead_attn"))
    assert_near(decoder(x, memory, **given), expected)


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=pytest.mark.exhaustive if kind in ("ElectraModel", "T5EncoderModel") else ())
    for kind in CONFIGS])
def test_training_with_dropout(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = make(kind), inputs_of(MASKS["right"])
    for module in model.modules():  # embeddings, and models whose default is none
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    pack(model)
    monkeypatch.setattr(LayerReader, "dropout_shares", lambda reader: (0.5, 0.5, 0.5, 0.5))
    with torch.no_grad():
        expected = model(**given).last_hidden_state
        model.train()
        torch.manual_seed(1)
        runs = [model(**given).last_hidden_state for _ in range(3)]
        torch.manual_seed(1)
        torch.testing.assert_close(model(**given).last_hidden_state, runs[0])
        assert not torch.allclose(runs[0], runs[1])
        assert not torch.allclose(runs[0], expected)
        torch.testing.assert_close(model.eval()(**given).last_hidden_state, expected)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_every_dropout_of_a_layer_is_read(kind: str) -> None:
    model = pack(make(kind))
    encoder = model.encoder if kind.startswith("T5") else model
    for reader in encoder.check_layers():
        shares = iter(range(1, 10))
        for module in reader.layer.modules():
            for name in ("p", "dropout", "attention_dropout"):
                if isinstance(vars(module).get(name), float):
                    setattr(module, name, 0.01 * next(shares))
        assert not any(reader.dropout_shares())
        model.train()
        count = next(shares) - 1
        assert {round(100 * share) for share in reader.dropout_shares()} - {0} == set(range(1, count + 1))
        model.eval()


@pytest.mark.parametrize("kind", ["BertModel", "T5EncoderModel", "DistilBertModel"])
def test_dropout_modules_in_training_mode_drop_in_a_model_that_is_not(kind: str) -> None:
    model, given = pack(make(kind)), inputs_of(MASKS["right"])
    with torch.no_grad():
        expected = model(**given).last_hidden_state
        inner = [module for name, module in model.named_modules()
                 if isinstance(module, torch.nn.Dropout) and ("layer." in name or "block." in name)]
        for module in inner:
            module.p = 0.5
            module.train()
        assert not torch.allclose(model(**given).last_hidden_state, expected)
        model.eval()
        torch.testing.assert_close(model(**given).last_hidden_state, expected)


@pytest.mark.filterwarnings("ignore")
def test_compiled_models_call_packed_layers_as_they_are() -> None:
    model, given = pack(make("BertModel")), inputs_of(MASKS["right"])
    with torch.no_grad():
        expected = model(**given).last_hidden_state
        compiled = torch.compile(model, backend="eager")
        for mask in ("right", "holes", "right"):
            found = compiled(**inputs_of(MASKS[mask])).last_hidden_state
    torch.testing.assert_close(found, expected)


def test_fine_tuning_goes_the_same_way() -> None:
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS["BertModel"])
    config.update({"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    model = transformers.BertForSequenceClassification(config)
    given = inputs_of([[1] * 7, [1] * 3 + [0] * 4, [1, 0, 0, 1, 1, 1, 0]]) | {"labels": torch.tensor([0, 1, 0])}
    losses = []
    for each in (copy.deepcopy(model), pack(model)):
        optimizer = torch.optim.AdamW(each.parameters(), lr=1e-2)
        losses.append([])
        for _ in range(8):
            loss = each(**given).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    np.testing.assert_allclose(losses[1], losses[0], atol=1e-4)
    assert losses[1][-1] < 0.5 * losses[1][0]


def test_half_precision_and_autocast() -> None:
    model, given = pack(make("BertModel")), inputs_of(MASKS["right"])
    with torch.no_grad():
        expected = model(**given).last_hidden_state
        with torch.autocast("cpu", torch.bfloat16):
            found = model(**given).last_hidden_state
        assert (found - expected).abs().max() < 0.05 * expected.abs().max()
        half, twin = model.half(), unpack(copy.deepcopy(model))
        torch.testing.assert_close(half(**given).last_hidden_state, twin(**given).last_hidden_state)
        torch.testing.assert_close(half.float()(**given).last_hidden_state, expected, atol=0.01, rtol=0.01)
        first = pack(make("BertModel")).half()
        first(**given)
        assert not first.float()(**given).last_hidden_state[given["attention_mask"] == 0].any()  # packed again
