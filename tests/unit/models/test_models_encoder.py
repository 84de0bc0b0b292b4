"""Latent encoders: fitting, freezing, files."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sparloom.errors import SchemaError
from sparloom.models import (
    Autoencoder,
    FeatureAugmentation,
    FeatureMapping,
    FrozenEncoder,
    LatentEncoder,
    PrincipalComponents,
    VariationalAutoencoder,
    load_encoder,
    save_encoder,
)
from sparloom.space import CpuSpace, SpadeSpace

CODES = SpadeSpace("spmm").heterogeneous_codes()


def autoencoder(epochs: int = 60) -> Autoencoder:
    return Autoencoder(width=64, hidden=128, epochs=epochs, batch_size=32, learning_rate=1e-3)


def variational(epochs: int = 200, noise: float = 0.01) -> VariationalAutoencoder:
    return VariationalAutoencoder(width=64, hidden=128, epochs=epochs, batch_size=32, learning_rate=1e-3, noise=noise)


ENCODERS: dict[str, LatentEncoder] = {
    "autoencoder": autoencoder(5), "variational": variational(5), "pca": PrincipalComponents(width=64),
    "augmentation": FeatureAugmentation(width=64, slots={"cpu": 0, "spade": 16}),
    "mapping": FeatureMapping(width=64, platforms=("cpu", "spade")),
}


def encode(encoder: FrozenEncoder, codes: np.ndarray) -> torch.Tensor:
    return encoder(torch.from_numpy(np.asarray(codes, np.float32)))


def test_latent_vectors_of_all_codes_differ() -> None:
    latent = encode(autoencoder().fit(CODES, platform="spade", seed=0), CODES)
    assert latent.shape == (8, 64)
    distances = torch.cdist(latent, latent) + torch.eye(8) * 1e9
    assert float(distances.min()) > 0.1


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
    with pytest.raises(ValueError, match="3 codes of spade from entry 6 on exceed the width 8"):
        FeatureAugmentation(width=8, slots={"spade": 6}).fit(CODES, platform="spade", seed=0)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_survives_its_file(tmp_path: Path, name: str) -> None:
    space, encoder = SpadeSpace("spmm"), ENCODERS[name].fit(CODES, platform="spade", seed=0)
    assert encode(encoder, CODES).shape == (8, 64)
    save_encoder(tmp_path / "encoder.pt", encoder, space, notes={"seed": 0})
    loaded = load_encoder(tmp_path / "encoder.pt", space)
    assert torch.equal(encode(loaded, CODES), encode(encoder, CODES))
    assert loaded.slot == encoder.slot == (1 if name in ("augmentation", "mapping") else None)
    assert loaded.state_dict().keys() == encoder.state_dict().keys()
    with pytest.raises(SchemaError, match="was made for op 'spmm', not 'sddmm': choose the checkpoint of that op"):
        load_encoder(tmp_path / "encoder.pt", SpadeSpace("sddmm"))
    with pytest.raises(SchemaError, match="was made for platform 'spade', not 'cpu'"):
        load_encoder(tmp_path / "encoder.pt", CpuSpace("spmm"))


def test_principal_components_keep_distances_and_order_variances() -> None:
    codes = np.array([(0, 0, 5), (4, 4, 5), (8, 8.5, 5), (12, 12, 5), (16, 15.5, 5)], np.float32)
    latent = encode(PrincipalComponents(width=4).fit(codes, platform="toy", seed=0), codes)
    standard = torch.from_numpy((codes - codes.mean(0)) / np.where(codes.std(0) > 0, codes.std(0), 1))
    torch.testing.assert_close(torch.pdist(latent), torch.pdist(standard), rtol=1e-5, atol=1e-5)
    variances = latent.var(0)
    assert variances[0] > 100 * variances[1] > 0
    assert latent[:, 2:].abs().max() < 1e-6
    covariance = latent.T @ latent
    assert (covariance - covariance.diag().diag()).abs().max() < 1e-5


def test_variational_vectors_fall_together_where_the_noise_is_that_of_the_codes() -> None:
    apart, together = (torch.pdist(encode(variational(200, noise).fit(CODES, platform="spade", seed=0), CODES)).min()
                       for noise in (0.01, 4.0))
    assert float(together) < 0.1 * float(apart)
