"""Layers whose schedules are searched."""

import pytest
import torch

from sparloom.dispatch import Effort, PlanCache, RaggedEffort, choose_schedule
from sparloom.nn import TransformerEncoderLayer, schedules

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]


def test_a_schedule_is_searched_once_for_batches_alike(tmp_path, monkeypatch):
    quick = RaggedEffort(sample=2, proposed=1, race=Effort(repetitions=1, seconds=0.1, pairs=(2, 2)))
    asked = []

    def choose(operator, structure, *, threads):
        asked.append(operator.name)
        return choose_schedule(operator, structure, threads=threads, effort=quick, plans=PlanCache(tmp_path))

    monkeypatch.setattr(schedules, "choose_schedule", choose)
    monkeypatch.setattr(schedules, "_chosen", {})
    theirs = torch.nn.TransformerEncoderLayer(32, 2, 48, dropout=0.0, batch_first=True).eval()
    ours = TransformerEncoderLayer(32, 2, 48, schedule="auto").eval()
    ours.load_state_dict(theirs.state_dict())
    for lengths in ([5, 3], [3, 5], [60, 70]):
        tokens = torch.randn(sum(lengths), 32)
        with torch.no_grad():
            expected = torch.cat([theirs(each[None])[0] for each in tokens.split(lengths)])
            assert torch.allclose(ours(tokens, lengths), expected, atol=1e-5)
    assert len(asked) == 2
    with pytest.raises(ValueError, match="schedule='fast': give an EncoderSchedule, 'auto', or None"):
        TransformerEncoderLayer(32, 2, schedule="fast")
