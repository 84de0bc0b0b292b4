"""The network's other parts and their composition."""

import torch
from model_parts import ready_net, spade, tiny_samples

from sparloom.data.lightning import collate
from sparloom.models import ConfigurationMapper, Predictor


def test_table_6_has_the_papers_widths() -> None:
    mapper = ConfigurationMapper(width=64, depth=2)
    assert [tuple(layer.weight.shape) for layer in mapper.layers if hasattr(layer, "weight")] == [(64, 53), (64, 64)]
    assert len(ConfigurationMapper(width=64, depth=1).layers) == 1
    again = ConfigurationMapper(**mapper.settings)
    assert (again.width, len(again.layers)) == (mapper.width, len(mapper.layers)) == (64, 3)
    for fusion, total in (("concat", 256), ("sum", 192)):
        predictor = Predictor(matrix_width=128, config_width=64, latent_width=64, hidden=(128, 64), fusion=fusion)
        shapes = [tuple(layer.weight.shape) for layer in predictor.layers if hasattr(layer, "weight")]
        assert shapes == [(128, total), (64, 128), (1, 64)]
        assert predictor(torch.ones(5, 128), torch.ones(5, 64), torch.ones(5, 64)).shape == (5,)


def test_scores_of_a_batch_equal_those_of_single_matrices() -> None:
    net, items = ready_net(spade()), tiny_samples(matrices=4, configs=7)
    together = net(collate(items))
    single = torch.cat([net(collate([item])) for item in items])
    torch.testing.assert_close(together, single, rtol=1e-4, atol=1e-6)


def test_encoder_is_stored_with_the_network_but_not_trained() -> None:
    net = ready_net(spade())
    assert "encoder.weight0" in net.state_dict()
    assert not any(name.startswith("encoder") for name, _ in net.named_parameters())
