"""Arguments and results of packed models of transformers are those of the original ones."""

import copy
import inspect

import pytest
import torch

transformers = pytest.importorskip("transformers")

from encoder_models import CONFIGS, MASKS, assert_near, inputs_of, make, real  # noqa: E402

from sparloom.nn import pack  # noqa: E402

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache", "one_thread"),
              pytest.mark.filterwarnings("ignore::FutureWarning")]
KINDS = list(CONFIGS)
WITH_POSITIONS = [kind for kind in KINDS if not kind.startswith("T5")]


def stack_of(model: torch.nn.Module) -> torch.nn.Module:
    """Return the encoder that `pack` changes."""
    return model.encoder if type(model).__name__.startswith("T5") else model


@pytest.mark.parametrize("inputs", ["input_ids", "inputs_embeds"])
@pytest.mark.parametrize("kind", KINDS)
def test_arguments_by_position(kind: str, inputs: str) -> None:
    model = stack_of(make(kind))
    twin, mask = copy.deepcopy(model), torch.tensor(MASKS["right"][:2])
    signature = inspect.signature(model.forward)
    values = {"attention_mask": mask, "position_ids": torch.arange(7).flip(0).expand(2, 7) + 2,
              "token_type_ids": torch.tensor([[0, 1, 1, 0, 0, 0, 1]] * 2)}
    ids = inputs_of(MASKS["right"])["input_ids"][:2]
    values[inputs] = ids if inputs == "input_ids" else model.get_input_embeddings()(ids).detach()
    names = list(signature.parameters)
    arguments = [values.get(name) for name in names[:1 + max(names.index(name) for name in values if name in names)]]
    with torch.no_grad():
        packed = pack(model)
        assert inspect.signature(packed.forward) == signature
        assert_near(packed(*arguments)[0][mask.bool()], twin(*arguments)[0][mask.bool()])


@pytest.mark.parametrize("options", [{}, {"output_hidden_states": True}, {"return_dict": False}], ids=str)
@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_fields_of_results(kind: str, pooler: bool, options: dict[str, bool]) -> None:
    model = make(kind)
    if not pooler:
        if not hasattr(model, "pooler"):
            pytest.skip("it never has a pooler")
        model.pooler = None
    twin, given = copy.deepcopy(model), inputs_of(MASKS["right"])
    with torch.no_grad():
        expected, result = twin(**given, **options), pack(model)(**given, **options)
    assert type(result) is type(expected)
    if isinstance(expected, tuple):
        assert [each is None for each in result] == [each is None for each in expected]
        return
    assert list(result) == list(expected)
    for name in ("past_key_values", "cross_attentions", "attentions", "hidden_states", "pooler_output"):
        assert hasattr(result, name) == hasattr(expected, name)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_with_respect_to_hidden_states(kind: str) -> None:
    model, given = make(kind), inputs_of(MASKS["holes"])
    gradients = []
    for each in (copy.deepcopy(model), pack(model)):
        result = each(**given, output_hidden_states=True)
        for state in result.hidden_states[:-1]:
            state.retain_grad()
        real(result.last_hidden_state, given).pow(3).sum().backward()
        gradients.append([real(state.grad, given) for state in result.hidden_states[:-1]])
    for one, other in zip(*gradients, strict=True):
        assert_near(one, other)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "MPNetModel"])
def test_checkpoints_of_gradients(kind: str, reentrant: bool) -> None:
    model, given, gradients = make(kind).train(), inputs_of(MASKS["right"]), []
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout"):
            if isinstance(vars(module).get(name), float):
                setattr(module, name, 0.0)
    for each in (copy.deepcopy(model), pack(model)):
        each.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        real(each(**given).last_hidden_state, given).square().mean().backward()
        gradients.append({name: parameter.grad for name, parameter in each.named_parameters()})
    for name, expected in gradients[0].items():
        assert (expected is None) == (gradients[1][name] is None), name
        if expected is not None:
            assert_near(gradients[1][name], expected)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("kind", ["BertModel", "MPNetModel", "ModernBertModel", "T5EncoderModel"])
def test_training_after_inference(kind: str, frozen: bool, mode: type) -> None:
    model, given, gradients = make(kind), inputs_of(MASKS["right"]), []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not (frozen and ("relative" in name or "embed" in name)))
    for each in (copy.deepcopy(model), pack(model)):
        with mode():
            each(**given)
        real(each(**given).last_hidden_state, given).square().sum().backward()
        gradients.append([parameter.grad for parameter in each.parameters() if parameter.grad is not None])
    for one, other in zip(*gradients, strict=True):
        assert_near(one, other)


SEQUENCES = [[7, 8, 9], [], [11], [5, 6, 7, 8, 30, 1, 12]]


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_with_all_arguments_by_token(kind: str) -> None:
    model = stack_of(make(kind))
    exact, names = copy.deepcopy(model).double(), inspect.signature(model.forward).parameters
    pack(model)
    options = {
        "token_type_ids": [[number % 2 for number in range(len(each))] for each in SEQUENCES],
        "position_ids": [[3 + number for number in range(len(each))] for each in SEQUENCES],
        "attention_mask": [[1] * (len(each) > 3) + [0] * (len(each) > 3) + [1] * (len(each) - 2 * (len(each) > 3))
                           for each in SEQUENCES]}
    embed = model.get_input_embeddings()
    with torch.no_grad():
        for name, values in options.items():
            if name not in names:
                with pytest.raises(ValueError, match=f"{name} is given, and .* has no such argument"):
                    model.encode_packed(SEQUENCES, **{name: values})
                continue
            result, lengths = model.encode_packed(SEQUENCES, **{name: values})
            for number, part in enumerate(result.split(lengths.tolist())):
                if lengths[number]:
                    tokens = torch.tensor([values[number]])
                    expected = exact(torch.tensor([SEQUENCES[number]]), **{name: tokens}).last_hidden_state[0]
                    seen = tokens[0].bool() if name == "attention_mask" else torch.ones(len(part), dtype=torch.bool)
                    assert_near(part[seen], expected[seen])
                    assert not part[~seen].any()
        embedded = [embed(torch.tensor(each, dtype=torch.int64)) for each in SEQUENCES]
        vectors, _ = model.encode_packed(inputs_embeds=embedded)
        assert_near(vectors, torch.cat([exact(inputs_embeds=each[None].double()).last_hidden_state[0]
                                        for each in embedded if len(each)]))


def test_arguments_of_sequences_that_do_not_fit() -> None:
    model = pack(make("BertModel"))
    for error, message, arguments, options in (
            (TypeError, "both or none of sequences and inputs_embeds", (), {}),
            (TypeError, "both or none of sequences", ([[5]],), {"inputs_embeds": [torch.ones(1, 24)]}),
            (ValueError, "token_type_ids has 1 lists, and there are 2 sequences", ([[5], [6]],),
             {"token_type_ids": torch.zeros(1, 2, dtype=torch.int64)}),
            (ValueError, "token_type_ids: sequence 1 has 3 values and 1 tokens", ([[5, 6], [6]],),
             {"token_type_ids": [[0, 1], [0, 1, 1]]}),
            (ValueError, "position_ids: sequence 0 is torch.float32", ([[5]],), {"position_ids": [[0.5]]}),
            (ValueError, "a token has position -1: positions are never negative", ([[5]],), {"position_ids": [[-1]]}),
            (TypeError, "output_attentions", ([[5]],), {"output_attentions": True}),
            (TypeError, "normalise", ([[5]],), {"normalise": True})):
        with pytest.raises(error, match=message):
            model.encode_packed(*arguments, **options)
