"""COGNATE networks from their checkpoints alone: what they are made of is written in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from sparloom.errors import SchemaError
from sparloom.models.checkpoint import Checkpoint
from sparloom.models.cognate import Cognate
from sparloom.models.cognate_model import fill
from sparloom.models.input_featurizer import InputFeaturizer
from sparloom.models.mapper import ConfigurationMapper
from sparloom.models.predictor import Predictor
from sparloom.models.recurrent import RecurrentPredictor
from sparloom.models.side import SideFeatures
from sparloom.models.sparseconv import TorchBackend
from sparloom.models.transformer import TransformerPredictor

__all__ = ["restore_cognate"]

PARTS: Mapping[str, Mapping[str, Callable[..., nn.Module]]] = {
    "featurizer": {"InputFeaturizer": lambda **settings: InputFeaturizer(**settings, backend=TorchBackend())},
    "side": {"SideFeatures": SideFeatures},
    "mapper": {"ConfigurationMapper": ConfigurationMapper},
    "predictor": {"Predictor": Predictor, "RecurrentPredictor": RecurrentPredictor,
                  "TransformerPredictor": TransformerPredictor},
}
"""Part of `Cognate` -> name of a class -> what makes one from its settings."""


def restore_cognate(stored: Checkpoint, path: Path) -> Cognate:
    """Make the network that a checkpoint was saved from, with its weights and its encoder.

    Args:
        path: of the checkpoint, for errors.

    Raises:
        SchemaError: a network of other parts than model=cognate has.
    """
    if set(stored.settings) != set(PARTS):
        raise SchemaError(f"{path} has the parts {', '.join(stored.settings)}, not {', '.join(PARTS)}: give a network "
                          "of model=cognate")
    net = Cognate(**{name: _part(name, stored.settings[name], path) for name in PARTS})
    fill(net, stored, path)
    return net


def _part(name: str, settings: Mapping[str, Any], path: Path) -> nn.Module:
    given = dict(settings)
    make = PARTS[name].get(given.pop("class", ""))
    if make is None:
        raise SchemaError(f"{path} has a {settings.get('class')} as {name}: it is made from its checkpoint alone only "
                          f"where that is {' or '.join(PARTS[name])}")
    return make(**given)
