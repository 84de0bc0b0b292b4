"""Networks that rank sparse CPU kernels: restored from files, and refused where they were not trained."""

import numpy as np
import pytest
from model_parts import small_net

from sparloom.data import coarsen
from sparloom.errors import SchemaError, Unsupported
from sparloom.models import Autoencoder, CognateModel, conv_flops, load_networks
from sparloom.ops import SpMM
from sparloom.space import SddmmSpace, SpmmSpace
from sparloom.sparse import Pattern, SparseMatrix


def uneven(seed: int, rows: int = 400) -> SparseMatrix:
    """Rows of geometric lengths, longest first, with random columns."""
    rng = np.random.default_rng(seed)
    lengths = np.sort(np.minimum(rng.geometric(0.08, rows), rows // 2))[::-1]
    pattern = Pattern.from_coo(np.repeat(np.arange(rows), lengths), rng.integers(0, rows, lengths.sum()), (rows, rows))
    return SparseMatrix(pattern, np.ones(pattern.nnz, np.float32))


def network(width: int) -> CognateModel:
    """A small network of SpMM."""
    space, net = SpmmSpace(width), small_net()
    encoder = Autoencoder(width=8, hidden=16, epochs=20, batch_size=32, learning_rate=1e-2)
    net.use_encoder(encoder.fit(space.heterogeneous_codes(), platform=space.name, seed=0))
    net.standardise([coarsen(uneven(seed).pattern, name=str(seed), cost=conv_flops) for seed in range(2)])
    return CognateModel(net, space)


def test_a_network_is_restored_from_its_file_alone(tmp_path):
    model, matrix = network(128), uneven(54)
    model.save(tmp_path / "one.pt", notes={"width": 128}, precision="float32")
    costs, configs = load_networks([tmp_path / "one.pt"]), list(SpmmSpace(128))
    expected = model.score(matrix.pattern, configs)
    assert np.ptp(expected) > 0
    for width in (128, 256):  # the network of the nearest width is asked
        np.testing.assert_array_equal(costs.score("spmm", SpMM().operands(matrix, width, seed=0), configs), expected)


def test_a_network_refuses_unknown_problems(tmp_path):
    model, matrix = network(32), uneven(56)
    model.save(tmp_path / "good.pt", notes={"width": 32}, precision="float32")
    costs = load_networks([tmp_path / "good.pt"])
    with pytest.raises(Unsupported, match="there are networks only for spmm"):
        costs.score("sddmm", SpMM().operands(matrix, 8, seed=0), list(SddmmSpace(8)))
    with pytest.raises(Unsupported, match=r"network of spmm with 32 columns: .*strip=64"):
        costs.score("spmm", SpMM().operands(matrix, 128, seed=0), list(SpmmSpace(128)))
    empty = SparseMatrix(Pattern.from_coo([], [], (5, 5)), np.zeros(0, np.float32))
    with pytest.raises(Unsupported, match="the matrix has no nonzeros"):
        costs.score("spmm", SpMM().operands(empty, 8, seed=0), list(SpmmSpace(8)))
    model.save(tmp_path / "other.pt", notes={"width": 64}, precision="float32")
    with pytest.raises(SchemaError, match=r"the space has changed, run .* op=spmm target\.width=64"):
        load_networks([tmp_path / "other.pt"])
    model.save(tmp_path / "unsaid.pt", notes={}, precision="float32")
    with pytest.raises(SchemaError, match="is a network of spmm for width None"):
        load_networks([tmp_path / "unsaid.pt"])
