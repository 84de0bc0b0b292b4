"""Layers whose schedules are searched."""

import pytest
import torch

from sparloom.nn import LayerNorm, TransformerEncoderLayer, ragged_programs, ragged_softmax
from sparloom.ragged import NormSchedule
from sparloom.tuning import MeasurementBudget, PlanCache, RaggedBudget, choose_schedule

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Record the operators whose schedules are searched, with a small budget."""
    quick = RaggedBudget(sample=2, proposed=1, race=MeasurementBudget(repetitions=1, seconds=0.1, pairs=(2, 2)))
    names = []

    def choose(operator, structure, *, threads):
        names.append(operator.name)
        return choose_schedule(operator, structure, threads=threads, effort=quick, plans=PlanCache(tmp_path))

    monkeypatch.setattr(ragged_programs, "choose_schedule", choose)
    monkeypatch.setattr(ragged_programs, "_chosen", {})
    return names


def test_encoder_layers_take_the_default(asked):
    theirs = torch.nn.TransformerEncoderLayer(32, 2, 48, dropout=0.0, batch_first=True).eval()
    ours = TransformerEncoderLayer(32, 2, 48, schedule="auto").eval()
    ours.load_state_dict(theirs.state_dict())
    tokens = torch.randn(8, 32)
    with torch.no_grad():
        expected = torch.cat([theirs(each[None])[0] for each in tokens.split([5, 3])])
        assert torch.allclose(ours(tokens, [5, 3]), expected, atol=1e-5)
    assert not asked
    with pytest.raises(ValueError, match="schedule='fast': expected an EncoderSchedule, 'auto', or None"):
        TransformerEncoderLayer(32, 2, schedule="fast")


def test_operators_on_tokens_search_theirs(asked):
    norm = LayerNorm(20, schedule="auto")
    for lengths in ([5, 3], [3, 5], [60, 70]):
        tokens = torch.randn(sum(lengths), 20)
        expected = torch.cat([each.softmax(0) for each in tokens.split(lengths)])
        torch.testing.assert_close(ragged_softmax(tokens, lengths, schedule="auto"), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(norm(tokens, lengths), torch.layer_norm(tokens, [20]), atol=1e-5, rtol=0)
    assert asked == ["softmax width=20", "norm width=20,epsilon=1e-05"] * 2
    with pytest.raises(ValueError, match="schedule='fast': expected a NormSchedule, 'auto', or None"):
        LayerNorm(20, schedule="fast")
    with pytest.raises(ValueError, match=r"schedule=NormSchedule.*: expected a SoftmaxSchedule, 'auto', or None"):
        ragged_softmax(tokens, lengths, schedule=NormSchedule())
