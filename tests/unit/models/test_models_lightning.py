"""Lightning modules of encoders and trees: fit, callback, logger, early stopping, checkpoint, as without Lightning."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from sparloom.models import (
    Autoencoder,
    AutoencoderModule,
    BoostingModule,
    ClosedFormModule,
    FeatureAugmentation,
    FeatureMapping,
    LatentEncoder,
    PrincipalComponents,
    VariationalAutoencoder,
    encoder_module,
    fit,
    make_trainer,
    train_on_cpu,
)
from sparloom.models.performance import BoostingConfig, Rows
from sparloom.space import SpadeSpace

CODES = SpadeSpace("spmm").heterogeneous_codes()
SMALL = {"width": 8, "hidden": 16, "epochs": 6, "batch_size": 3, "learning_rate": 1e-3}
ENCODERS: dict[str, LatentEncoder] = {
    "autoencoder": Autoencoder(**SMALL), "variational": VariationalAutoencoder(**SMALL, noise=0.01),
    "pca": PrincipalComponents(width=8), "augmentation": FeatureAugmentation(width=8, slots={"cpu": 0, "spade": 4}),
    "mapping": FeatureMapping(width=8, platforms=("cpu", "spade")),
}
GROWTH = BoostingConfig(
    trees=60, patience=5, leaves=7, depth=-1, rows_per_leaf=5, learning_rate=0.3, lasso=0.0, ridge=1.0, row_share=0.8,
    column_share=0.5, bins=63, threads=1, seed=0)
NAMES = ("a", "b", "c")
CSV = partial(CSVLogger, name="", version="")


class Count(Callback):
    """Count epochs and steps."""

    def __init__(self) -> None:
        self.epochs = self.steps = 0

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.epochs += 1

    def on_train_batch_end(self, *arguments: object) -> None:
        self.steps += 1


def module_of(name: str, seed: int = 0) -> AutoencoderModule | ClosedFormModule:
    return encoder_module(ENCODERS[name], CODES, platform="spade", seed=seed)


def drawn(count: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((count, 3))
    return Rows(features, features[:, 0] * features[:, 1] + 0.5 * rng.standard_normal(count))


def train(module: LightningModule, epochs: int, out: Path, checkpoint: Path | None = None) -> Trainer:
    trainer = make_trainer(accelerator="cpu", devices=1, strategy="auto", precision="32-true", epochs=epochs,
                           validate_every=1, out=out)
    fit(trainer, module, checkpoint=checkpoint)
    return trainer


def same_encoder(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    states = first.state_dict(), second.state_dict()
    return list(states[0]) == list(states[1]) and all(torch.equal(states[0][name], states[1][name])
                                                      for name in states[0])


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_is_the_one_of_its_fit_with_callback_logger_and_checkpoint(name: str, tmp_path: Path) -> None:
    count, keeper, module = Count(), ModelCheckpoint(tmp_path / "kept", filename="kept"), module_of(name)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    train_on_cpu(module, out=tmp_path / "logs", logger=CSV, callbacks=[count, keeper])
    logged = pd.read_csv(tmp_path / "logs" / "metrics.csv")
    fitted = ENCODERS[name].fit(CODES, platform="spade", seed=0)
    assert same_encoder(module.frozen(), fitted)
    assert count.epochs == len(logged) == module.epochs == getattr(ENCODERS[name], "epochs", 1)
    assert np.isfinite(logged["train/loss"]).all()
    state = torch.load(tmp_path / "kept" / "kept.ckpt", weights_only=True)
    assert state["global_step"] == count.steps
    loaded = type(module).load_from_checkpoint(tmp_path / "kept" / "kept.ckpt", map_location="cpu", weights_only=True,
                                               **arguments(name))
    codes = torch.as_tensor(CODES, dtype=torch.float32)
    assert torch.equal(loaded(codes), module(codes))
    assert same_encoder(loaded.frozen(), fitted)
    if name in ("pca", "augmentation", "mapping"):
        assert torch.equal(torch.random.get_rng_state(), before)


def arguments(name: str) -> dict[str, object]:
    """Return the arguments of a module that knows nothing of the training."""
    platform = {} if name in ("autoencoder", "variational") else {"platform": "spade"}
    return {"method": ENCODERS[name], "codes": CODES, "seed": 3, **platform}


@pytest.mark.parametrize("name", ["autoencoder", "variational"])
def test_training_continues_from_a_checkpoint_as_if_it_had_not_stopped(name: str, tmp_path: Path) -> None:
    whole, rest = module_of(name), module_of(name, seed=9)
    train_on_cpu(whole, out=tmp_path)
    train(module_of(name), 2, tmp_path).save_checkpoint(tmp_path / "half.ckpt")
    train(rest, whole.epochs, tmp_path, tmp_path / "half.ckpt")
    assert same_encoder(rest.frozen(), whole.frozen())


def test_autoencoder_stops_early(tmp_path: Path) -> None:
    count = Count()
    train_on_cpu(module_of("autoencoder"), out=tmp_path,
                 callbacks=[count, EarlyStopping("train/loss", patience=2, min_delta=10.0)])
    assert count.epochs == 3


def test_closed_form_ends_after_one_step_and_logs_what_is_lost(tmp_path: Path) -> None:
    losses = {}
    for name in ("pca", "augmentation", "mapping"):
        count, module = Count(), module_of(name)
        trainer = make_trainer(accelerator="cpu", devices=1, strategy="auto", precision="32-true", epochs=5,
                               validate_every=1, out=tmp_path, callbacks=[count, EarlyStopping("train/loss")])
        fit(trainer, module)
        assert (count.epochs, count.steps, trainer.global_step) == (1, 1, 1)
        losses[name] = float(trainer.callback_metrics["train/loss"])
    assert losses == pytest.approx({"pca": 0, "augmentation": 0, "mapping": 1}, abs=1e-9)
    narrow = encoder_module(PrincipalComponents(width=2), CODES, platform="spade", seed=0)
    train_on_cpu(narrow, out=tmp_path)
    assert 0.01 < float(narrow.trainer.callback_metrics["train/loss"]) < 0.9


@pytest.mark.parametrize(("quantile", "more"), [(None, False), (0.2, True)])
def test_trees_are_those_of_lightgbm_and_stop_where_it_stops(
    quantile: float | None, more: bool, tmp_path: Path
) -> None:
    base = GROWTH.with_trees(3).train(drawn(150, 2), NAMES) if more else None
    module = BoostingModule(GROWTH, NAMES, rows=drawn(150, 0), held=drawn(60, 1), quantile=quantile, base=base)
    train_on_cpu(module, out=tmp_path, logger=CSV, callbacks=[ModelCheckpoint(tmp_path, filename="kept")])
    best = module.booster.best_iteration - 3 * more
    features = drawn(20, 3).features
    expected = GROWTH.with_trees(best).train(drawn(150, 0), NAMES, base=base, quantile=quantile).predict(features)
    np.testing.assert_array_equal(module(torch.from_numpy(features)).numpy(), expected)
    loaded = BoostingModule.load_from_checkpoint(tmp_path / "kept.ckpt", growth=GROWTH, names=NAMES, weights_only=True)
    np.testing.assert_array_equal(loaded(torch.from_numpy(features)).numpy(), expected)
    if base is None:
        assert best == GROWTH.best_tree_count(drawn(150, 0), drawn(60, 1), NAMES, quantile=quantile)
    logged = pd.read_csv(tmp_path / "metrics.csv")
    assert logged["step"].tolist() == list(range(len(logged)))
    assert len(logged) == best + GROWTH.patience < GROWTH.trees
    assert logged["validation/loss"].argmin() + 1 == best
    assert float(module.trainer.callback_metrics["validation/loss"]) == logged["validation/loss"].min()
