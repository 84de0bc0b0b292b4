"""How packed models are called: in pieces, all layers of few tokens in one call, with hooks, from several threads."""

import copy
import threading

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from encoder_models import CONFIGS, MASKS, assert_near, inputs_of, make, real  # noqa: E402

from sparloom.nn import pack, packed_layers  # noqa: E402
from sparloom.nn.batches import Sequences  # noqa: E402
from sparloom.ragged import LENGTHS, run_bound, structure_of  # noqa: E402

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache", "one_thread")]


@pytest.mark.parametrize("tokens", [1, 3, 9, 1000])
def test_large_batches_run_in_pieces(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    monkeypatch.setattr("sparloom.nn.packed_transformers.PIECE_TOKENS", tokens)
    model, given = make("BertModel"), inputs_of(MASKS["right"])
    exact, sizes = copy.deepcopy(model).double(), []
    pack(model)
    run = packed_layers.run_layers
    monkeypatch.setattr("sparloom.nn.packed_transformers.run_layers", lambda encoder, checked, x, *rest, **options: (
        sizes.append(len(x)), run(encoder, checked, x, *rest, **options))[1])
    with torch.no_grad():
        assert_near(real(model(**given).last_hidden_state, given), real(exact(**given).last_hidden_state, given))
    assert sum(sizes) == 10
    assert max(sizes) <= max(7, tokens)
    assert len(sizes) == (1 if tokens > 9 else 2)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_few_tokens_run_all_layers_in_one_call(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given, together = make(kind), inputs_of(MASKS["holes"]), []
    exact = copy.deepcopy(model).double()
    pack(model)
    monkeypatch.setattr(packed_layers, "run_bound", lambda runs: together.append(len(runs)) or run_bound(runs))
    with torch.no_grad():
        expected = real(exact(**given).last_hidden_state, given)
        assert_near(real(model(**given).last_hidden_state, given), expected)
        assert together == [2]
        assert_near(real(model(**given, output_hidden_states=True).hidden_states[-1], given), expected)
    assert together == [2, 2]
    assert_near(real(model(**given).last_hidden_state, given), expected)  # with gradients
    assert together == [2, 2]


@pytest.mark.parametrize("everywhere", [False, True])
def test_hooks_of_layers_see_padded_batches(everywhere: bool) -> None:
    model, given, seen = make("BertModel"), inputs_of(MASKS["right"]), []
    twin = copy.deepcopy(model)
    pack(model)

    def look(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], result: torch.Tensor) -> None:
        if module is model.encoder.layer[0]:
            seen.append(result.clone())

    register = torch.nn.modules.module.register_module_forward_hook if everywhere else (
        model.encoder.layer[0].register_forward_hook)
    with torch.no_grad():
        expected = twin(**given, output_hidden_states=True)
        before = model(**given).last_hidden_state
        handle = register(look)
        try:
            torch.testing.assert_close(model(**given).last_hidden_state, expected.last_hidden_state)
        finally:
            handle.remove()
        torch.testing.assert_close(seen[0], expected.hidden_states[1])
        torch.testing.assert_close(model(**given).last_hidden_state, before)
    assert len(seen) == 1


@pytest.mark.parametrize(("lengths", "most", "expected"), [
    ([], 5, []), ([3, 2, 1], 5, [2, 1]), ([3, 3], 5, [1, 1]), ([9, 1], 5, [1, 1]), ([0, 0, 5, 0, 1], 5, [4, 1]),
    ([2, 2, 2], 100, [3]), ([0, 0], 5, []), ([6, 0, 6, 0], 5, [1, 1])])
def test_pieces_are_whole_sequences(lengths: list[int], most: int, expected: list[int]) -> None:
    pieces = Sequences(structure_of(lengths)).pieces(most)
    found = [np.asarray(part.structure.table(LENGTHS)) for part, _ in pieces]
    assert [each.size for each in found] == expected
    assert [each.sum() for each in found] == [tokens.stop - tokens.start for _, tokens in pieces]
    assert sum(part.stop - part.start for _, part in pieces) == sum(lengths)


def test_several_threads_may_call_one_model() -> None:
    model, masks = pack(make("BertModel")), ["right", "left", "holes", "none"]
    with torch.no_grad():
        expected = {mask: model(**inputs_of(MASKS[mask])).last_hidden_state for mask in masks}
    wrong: list[str] = []

    def call(mask: str) -> None:
        with torch.no_grad():
            for _ in range(30):
                if not torch.allclose(model(**inputs_of(MASKS[mask])).last_hidden_state, expected[mask], atol=1e-6):
                    wrong.append(mask)

    threads = [threading.Thread(target=call, args=(mask,)) for mask in masks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_many_tokens_run_by_the_other_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = pack(make("BertModel")), inputs_of(MASKS["right"])
    with torch.no_grad():
        expected = model(**given).last_hidden_state
        monkeypatch.setattr("sparloom.nn.packed_layers.FEW_TOKENS", 0)
        torch.testing.assert_close(model(**given).last_hidden_state, expected)


CHANGES = {
    "counted write": lambda model: model.encoder.layer[1].output.dense.weight.mul_(1.5),
    "write past torch": lambda model: np.asarray(model.encoder.layer[0].output.dense.bias.detach()).fill(0.25),
    "data": lambda model: setattr(model.encoder.layer[0].attention.self.query.weight, "data", torch.ones(24, 24)),
    "parameter": lambda model: setattr(
        model.encoder.layer[1].intermediate.dense, "weight", torch.nn.Parameter(torch.ones(40, 24))),
    "module": lambda model: setattr(model.encoder.layer[1].attention.self, "value", torch.nn.Linear(24, 24)),
    "epsilon": lambda model: [setattr(layer, "eps", 0.5) for each in model.encoder.layer
                              for layer in (each.output.LayerNorm, each.attention.output.LayerNorm)],
    "order of layers": lambda model: model.encoder.layer.insert(0, model.encoder.layer.pop(1)),
    "fewer layers": lambda model: model.encoder.layer.pop(1),
    "loaded": lambda model: model.load_state_dict({
        name: value + 0.1 for name, value in model.state_dict().items()}),
    "parametrised": lambda model: torch.nn.utils.parametrizations.weight_norm(model.encoder.layer[0].output.dense),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_changes_between_calls_are_noticed(change: str) -> None:
    model, given = pack(make("BertModel")), inputs_of(MASKS["right"])
    twin = make("BertModel")
    with torch.no_grad():
        for each in (twin, model):
            for _ in range(3):
                before = each(**given).last_hidden_state
            torch.manual_seed(3)
            CHANGES[change](each)
        expected = twin.double()(**given).last_hidden_state
        for _ in range(3):
            found = model(**given).last_hidden_state
            assert_near(real(found, given), real(expected, given))
    assert not torch.allclose(real(found, given), real(before, given))
