"""Latent encoders: fitting, freezing, files."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sparloom.errors import SchemaError
from sparloom.models import Autoencoder, FeatureAugmentation, FrozenEncoder, load_encoder, save_encoder
from sparloom.space import CpuSpace, SpadeSpace

CODES = SpadeSpace("spmm").heterogeneous_codes()


def autoencoder(epochs: int = 60) -> Autoencoder:
    return Autoencoder(width=64, hidden=128, epochs=epochs, batch_size=32, learning_rate=1e-3)


def encode(encoder: FrozenEncoder, codes: np.ndarray) -> torch.Tensor:
    return encoder(torch.from_numpy(np.asarray(codes, np.float32)))


def test_latent_vectors_of_all_codes_differ() -> None:
    latent = encode(autoencoder().fit(CODES, platform="spade", seed=0), CODES)
    assert latent.shape == (8, 64)
    distances = torch.cdist(latent, latent) + torch.eye(8) * 1e9
    assert float(distances.min()) > 0.1


def test_codes_can_be_read_back_from_the_latent_vector() -> None:
    latent = encode(autoencoder(300).fit(CODES, platform="spade", seed=0), CODES).double()
    with_one = torch.cat([latent, torch.ones(8, 1, dtype=torch.float64)], dim=1)
    solution = torch.linalg.lstsq(with_one, torch.from_numpy(CODES).double(), driver="gelsd").solution
    np.testing.assert_allclose((with_one @ solution).numpy(), CODES, atol=1e-6)


def test_fit_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = encode(autoencoder(5).fit(CODES, platform="spade", seed=0), CODES)
    torch.manual_seed(2)
    second = encode(autoencoder(5).fit(CODES, platform="spade", seed=0), CODES)
    third = encode(autoencoder(5).fit(CODES, platform="spade", seed=1), CODES)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_constant_codes_are_encoded() -> None:
    codes = np.array([[1.0, 0.0], [1.0, 1.0]])
    assert encode(autoencoder(5).fit(codes, platform="toy", seed=0), codes).isfinite().all()


def test_augmentation_keeps_platforms_apart() -> None:
    augmentation = FeatureAugmentation(width=8, slots={"cpu": 0, "spade": 4})
    latent = encode(augmentation.fit(CODES, platform="spade", seed=0), CODES)
    np.testing.assert_array_equal(latent[:, 4:7], CODES)
    assert latent[:, [0, 1, 2, 3, 7]].eq(0).all()
    with pytest.raises(ValueError, match="no slot for platform cuda: slots are cpu, spade"):
        augmentation.fit(CODES, platform="cuda", seed=0)
    with pytest.raises(ValueError, match="3 codes of spade from place 6 exceed the width 8"):
        FeatureAugmentation(width=8, slots={"spade": 6}).fit(CODES, platform="spade", seed=0)


def test_wrong_codes_are_refused() -> None:
    encoder = autoencoder(1).fit(CODES, platform="spade", seed=0)
    with pytest.raises(ValueError, match=r"codes of shape \(1, 4\) do not fit an encoder of 3 numbers"):
        encode(encoder, np.zeros((1, 4)))
    with pytest.raises(ValueError, match="an encoder needs at least one row of codes"):
        autoencoder(1).fit(np.zeros((0, 3)), platform="spade", seed=0)


def test_encoder_survives_its_file(tmp_path: Path) -> None:
    space, encoder = SpadeSpace("spmm"), autoencoder(5).fit(CODES, platform="spade", seed=0)
    save_encoder(tmp_path / "encoder.pt", encoder, space, notes={"seed": 0})
    assert torch.equal(encode(load_encoder(tmp_path / "encoder.pt", space), CODES), encode(encoder, CODES))
    with pytest.raises(SchemaError, match="was made for op 'spmm', not 'sddmm': choose the checkpoint of that op"):
        load_encoder(tmp_path / "encoder.pt", SpadeSpace("sddmm"))
    with pytest.raises(SchemaError, match="was made for platform 'spade', not 'cpu'"):
        load_encoder(tmp_path / "encoder.pt", CpuSpace("spmm"))
