"""Small networks and matrices for the tests of models."""

from functools import partial

import numpy as np
import torch

from sparloom.data import MatrixInput, MatrixSamples, TinySamples, matrix_samples
from sparloom.models import (
    Cognate,
    ConfigurationMapper,
    FeatureAugmentation,
    FrozenEncoder,
    InputFeaturizer,
    Predictor,
    RankingModule,
    SideFeatures,
    TorchBackend,
    initialise,
)
from sparloom.space import ConfigSpace, SpadeSpace

CHANNELS = (4, 4, 4, 6, 6, 6, 6, 6, 6, 8, 8, 8)


def small_net(seed: int = 0, **featurizer: object) -> Cognate:
    """COGNATE with few channels, initialised, without an encoder."""
    settings = {"channels": CHANNELS, "pooling": "last", "cells": "ones", "bias": False, "hidden": 16, "width": 12,
                "side_width": 4, "norm": "none", "gain": 1.0, "backend": TorchBackend()} | featurizer
    net = Cognate(
        featurizer=InputFeaturizer(**settings), side=SideFeatures(scale="log1p", hidden=8, width=4),
        mapper=ConfigurationMapper(width=8, depth=2),
        predictor=Predictor(matrix_width=12, config_width=8, latent_width=8, hidden=(16, 8), fusion="concat"),
    )
    initialise(net, seed)
    return net


def small_encoder(space: ConfigSpace) -> FrozenEncoder:
    return FeatureAugmentation(width=8, slots={space.name: 1}).fit(
        space.heterogeneous_codes(), platform=space.name, seed=0)


def ready_net(space: ConfigSpace, seed: int = 0, **featurizer: object) -> Cognate:
    """The same with an encoder of the space."""
    net = small_net(seed, **featurizer)
    net.use_encoder(small_encoder(space))
    return net


def spade() -> ConfigSpace:
    return SpadeSpace("spmm")


def tiny_samples(matrices: int = 8, configs: int = 20) -> list[MatrixSamples]:
    source = TinySamples(matrices=matrices, configs=configs, seed=0)
    return matrix_samples(source.table("spade", "t1", "spmm").labels(), source.inputs(), spade())


def module_of(net: Cognate, **changes: object) -> RankingModule:
    settings = {"optimizer": partial(torch.optim.Adam, lr=1e-3), "margin": 1.0, "convolution_rate": 1.0,
                "freeze": "none"} | changes
    return RankingModule(net=net, **settings)


def matrix_input(
    coords: np.ndarray, shape: tuple[int, int] = (16, 16), counts: np.ndarray | None = None
) -> MatrixInput:
    coords = np.asarray(coords, np.int32).reshape(-1, 2)
    counts = np.ones(len(coords), np.int32) if counts is None else counts
    digest = f"{coords.tolist()} {counts.tolist()}"
    return MatrixInput("test/matrix", coords, counts, shape, int(counts.sum()), 1, digest)
