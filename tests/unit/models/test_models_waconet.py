"""WacoNet: its published sizes, feature augmentation and mapping, training, files."""


import numpy as np
import pytest
import torch
from model_parts import matrix_input, spade, tiny_samples
from waco_parts import (
    CODES,
    PADDINGS,
    encoder_of,
    scores_of,
    small_waconet,
)

from sparloom.data.lightning import collate
from sparloom.models import (
    Autoencoder,
    LookupTable,
    ProgramEmbedder,
    TorchBackend,
    WacoFeaturizer,
    WacoNet,
    initialise,
)
from sparloom.space import ConfigSpace, CpuSpace, CudaSpace, Readings, SpadeSpace

SPACES = {"cpu": CpuSpace("spmm"), "spade": SpadeSpace("spmm"), "cuda": CudaSpace("spmm")}


def ready(padding: str, space: ConfigSpace, seed: int = 0) -> WacoNet:
    net = small_waconet(padding, seed)
    net.use_encoder(encoder_of(PADDINGS[padding], space))
    return net


def embedder(padding: str, **changes: object) -> ProgramEmbedder:
    settings = {"codes": CODES, "extents": 24, "table_width": 32, "hidden": 128, "width": 128} | changes
    return ProgramEmbedder(padding=PADDINGS[padding], **settings)


def test_featurizer_has_the_published_weights() -> None:
    net = WacoFeaturizer(layers=14, channels=32, hidden=256, width=128, side_width=32, norm="none", gain=1.0,
                         backend=TorchBackend())
    assert [tuple(weight.shape) for weight in net.convolutions()] == [(25, 1, 32), *[(9, 32, 32)] * 13]
    assert sum(weight.numel() for weight in net.convolutions()) == 120_608
    assert [tuple(layer.weight.shape) for layer in net.head if hasattr(layer, "weight")] == [(256, 480), (128, 256)]
    initialise(net, 0)
    pooled = net.pool([matrix_input(np.argwhere(np.eye(300)), (300, 300)), matrix_input(np.zeros((0, 2)))])
    assert pooled.shape == (2, 448)
    assert pooled[0].any()
    assert not pooled[1].any()


def test_embedder_has_one_table_per_parameter() -> None:
    """Four extents and the order, once for all platforms or once for each, and the codes of each."""
    for padding, banks in (("mapping", 1), ("augmentation", 3)):
        tables = banks * 5 + 4 + 3 + 1
        shapes = [tuple(layer.weight.shape) for layer in embedder(padding).layers if hasattr(layer, "weight")]
        assert shapes == [(128, tables * 32), (128, 128)]
    assert embedder("mapping").loops[0].order.in_features == 49


def test_lookup_table_reads_rows_and_between_them() -> None:
    table = LookupTable(rows=3, width=2)
    with torch.no_grad():
        table.weight.copy_(torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 9.0]]))
    found = table(torch.tensor([0.0, 1.0, 2.0, 0.5, 7.0, -1.0]))
    assert found.tolist() == [[0, 1], [2, 1], [4, 9], [1, 1], [4, 9], [0, 1]]


@pytest.mark.parametrize("padding", PADDINGS)
def test_gradient_reaches_every_parameter(padding: str) -> None:
    net = small_waconet(padding)
    for space in SPACES.values():
        net.use_encoder(encoder_of(PADDINGS[padding], space))
        (scores_of(net, space) ** 2).sum().backward()
    without = [name for name, value in net.named_parameters() if value.grad is None or not value.grad.any()]
    assert without == []


@pytest.mark.parametrize(("padding", "shared"), [("augmentation", False), ("mapping", True)])
def test_platforms_share_loops_only_where_they_are_mapped(padding: str, shared: bool) -> None:
    """Training on the CPU alone moves the loop tables that SPADE reads only under feature mapping."""
    net = ready(padding, SPACES["cpu"])
    scores_of(net, SPACES["cpu"]).sum().backward()
    read = net.embedder.loops[0 if shared else 1]
    assert any(value.grad is not None and bool(value.grad.any()) for value in read.parameters()) is shared
    assert all(value.grad is None for value in net.embedder.own[1].parameters())
    assert all(bool(value.grad.any()) for value in net.embedder.own[0].parameters())


def test_scores_of_a_batch_equal_those_of_single_matrices() -> None:
    net, items = ready("mapping", spade()), tiny_samples(matrices=4, configs=7)
    together = net(collate(items))
    single = torch.cat([net(collate([item])) for item in items])
    torch.testing.assert_close(together, single, rtol=1e-4, atol=1e-6)


def test_wrong_use_is_refused() -> None:
    learned = Autoencoder(width=8, hidden=8, epochs=1, batch_size=8, learning_rate=1e-3)
    with pytest.raises(ValueError, match=r"latent vectors of Autoencoder: choose encoder=augmentation \(WACO\+FA\)"):
        ProgramEmbedder(padding=learned, codes=CODES, extents=24, table_width=4, hidden=8, width=8)
    raw = SpadeSpace("spmm", readings=Readings(numbers="raw"))
    with pytest.raises(ValueError, match="the lookup tables need extents that are encoded as logarithms"):
        scores_of(ready("mapping", raw), raw)
