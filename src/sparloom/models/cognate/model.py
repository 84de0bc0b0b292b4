"""Trained networks as cost models, which score configurations of a pattern.

`restore_cognate` rebuilds a COGNATE network from its checkpoint alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import nn

from sparloom.errors import SchemaError
from sparloom.models.cognate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sparloom.models.cognate.encoder import FrozenEncoder
from sparloom.models.cognate.featurizer import (
    InputFeaturizer,
    PatternStatistics,
    SideFeatures,
    WacoFeaturizer,
    WindowFeaturizer,
)
from sparloom.models.cognate.network import Cognate, ConfigurationMapper, Network, NoFeaturizer, NoMapper
from sparloom.models.cognate.predictor import Predictor, RecurrentPredictor, TransformerPredictor
from sparloom.models.cost_model import MatrixFeatures, as_features
from sparloom.models.sparseconv import TorchBackend
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import STATISTICS, Pattern

ENCODER = "encoder."
ANCHORS = "anchors"
PARTS: Mapping[str, Mapping[str, Callable[..., nn.Module]]] = {
    "featurizer": {"InputFeaturizer": lambda **settings: InputFeaturizer(**settings, backend=TorchBackend()),
                   "WindowFeaturizer": lambda **settings: WindowFeaturizer(**settings, backend=TorchBackend()),
                   "WacoFeaturizer": lambda **settings: WacoFeaturizer(**settings, backend=TorchBackend()),
                   "NoFeaturizer": NoFeaturizer},
    "side": {"SideFeatures": SideFeatures, "PatternStatistics": PatternStatistics},
    "mapper": {"ConfigurationMapper": ConfigurationMapper, "NoMapper": NoMapper},
    "predictor": {"Predictor": Predictor, "RecurrentPredictor": RecurrentPredictor,
                  "TransformerPredictor": TransformerPredictor},
}
"""Part of `Cognate` -> stored class name -> constructor from the stored settings. The names must not change."""


class CognateModel:
    """Score configurations of one space with a trained network.

    Args:
        net: network with the encoder of the space's platform; runs in evaluation mode.
        space: configuration space, not bound to a matrix.
        anchors: embeddings of training matrices by name.
    """

    def __init__(
        self, net: Network, space: ConfigSpace, *, anchors: Mapping[str, Float[np.ndarray, " width"]] | None = None
    ) -> None:
        self.net, self.space, self.anchors = net, space, dict(anchors or {})

    def score(self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast, no unit."""
        features = as_features(matrix)
        return self.score_embedded(self.embedding(features)[None], features.shape, configs)[0]

    def score_embedded(
        self, embeddings: Float32[np.ndarray, "n width"], shape: tuple[int, int], configs: Sequence[Config],
    ) -> Float[np.ndarray, "n configs"]:
        """Score configurations of a matrix of this shape, with each of the embeddings."""
        vectors = self.space.bind(shape).vectors(configs)
        device = next(self.net.parameters()).device
        with _evaluating(self.net):
            shared, codes = (torch.from_numpy(array).to(device) for array in vectors)
            scores = [self.net.score(row.expand(len(configs), -1), shared, codes)
                      for row in torch.from_numpy(embeddings).to(device)]
        return torch.stack(scores).cpu().numpy().astype(np.float64)

    def embedding(self, matrix: Pattern | MatrixFeatures) -> Float32[np.ndarray, " width"]:
        features = as_features(matrix)
        item = features.input
        if item.statistics is None and isinstance(self.net.side, PatternStatistics):
            item = replace(item, statistics=np.array([features.statistics[name] for name in STATISTICS]))
        with _evaluating(self.net):
            return self.net.embed([item])[0].cpu().numpy()

    def save(self, path: Path, *, notes: Mapping[str, Any], precision: Literal["float32", "float16"]) -> None:
        """Write a checkpoint for `load`, with notes for the reader."""
        weights = dict(self.net.state_dict())
        if self.anchors:
            weights[ANCHORS] = torch.from_numpy(np.stack(list(self.anchors.values())))
        checkpoint = Checkpoint(
            kind="cognate", op=self.space.op, platform=self.space.name, space=self.space.digest(),
            settings=self.net.settings, weights=weights, notes={**notes, ANCHORS: list(self.anchors)},
        )
        save_checkpoint(path, checkpoint, precision=precision)

    @classmethod
    def load(cls, path: Path, *, net: Network | None, space: ConfigSpace) -> CognateModel:
        """Load a checkpoint into a network with the same settings; None: into one that it describes.

        Raises:
            SchemaError: another operation, platform or version of the space, other settings of the network, or a
                network that cannot be restored without it.
        """
        stored = load_checkpoint(path, kind="cognate", op=space.op, platform=space.name, space=space.digest())
        if net is None:
            net = restore_cognate(stored, path)
        else:
            load_weights(net, stored, path)
        names = stored.notes[ANCHORS]
        points = stored.weights[ANCHORS].numpy() if names else ()
        return cls(net, space, anchors=dict(zip(names, points, strict=True)))


def load_weights(net: Network, stored: Checkpoint, path: Path) -> None:
    """Copy the weights of a checkpoint, encoder included, into a network.

    Raises:
        SchemaError: the network has other settings.
    """
    differing = _differences(stored.settings, net.settings)
    if differing:
        raise SchemaError(f"{path} was made for a network with {'; '.join(differing)}: set these, or train it again")
    encoder = {name.removeprefix(ENCODER): value for name, value in stored.weights.items() if name.startswith(ENCODER)}
    net.use_encoder(FrozenEncoder.restore(encoder))
    net.load_state_dict({name: value for name, value in stored.weights.items() if name != ANCHORS})


def load_convolutions(net: Network, stored: Checkpoint, path: Path) -> None:
    """Copy the convolutions of a checkpoint into a network; the other parts may differ.

    Raises:
        SchemaError: the featurizers differ.
    """
    differing = _differences({"featurizer": stored.settings.get("featurizer", {})},
                             {"featurizer": net.settings["featurizer"]})
    if differing:
        raise SchemaError(f"{path} has other convolutions than this network: {'; '.join(differing)}. Give a network "
                          "with the same featurizer as task.convolutions")
    starts = ("featurizer.weights.", "featurizer.biases.")
    weights = {name: value for name, value in stored.weights.items() if name.startswith(starts)}
    net.load_state_dict(weights, strict=False)


def _differences(stored: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    return [f"{part}.{name}={stored.get(part, {}).get(name)} instead of {made.get(part, {}).get(name)}"
            for part in sorted({*stored, *made}) for name in sorted({*stored.get(part, {}), *made.get(part, {})})
            if stored.get(part, {}).get(name) != made.get(part, {}).get(name)]


@contextmanager
def _evaluating(net: Network) -> Iterator[None]:
    """Switch to evaluation mode without gradients; restore the mode afterwards."""
    training = net.training
    try:
        with torch.no_grad():
            net.eval()
            yield
    finally:
        net.train(training)


def restore_cognate(stored: Checkpoint, path: Path) -> Cognate:
    """Rebuild the network that a checkpoint was saved from, with weights and encoder.

    Raises:
        SchemaError: the network has other parts than `Cognate`.
    """
    if set(stored.settings) != set(PARTS):
        raise SchemaError(f"{path} has the parts {', '.join(stored.settings)}, not {', '.join(PARTS)}, so it is not "
                          "restored from this file alone: give a network of model=cognate, or its settings, such as "
                          "recommender.net='${model.net}' model=waconet")
    net = Cognate(**{name: _part(name, stored.settings[name], path) for name in PARTS})
    load_weights(net, stored, path)
    return net


def _part(name: str, settings: Mapping[str, Any], path: Path) -> nn.Module:
    make = PARTS[name].get(settings.get("class", ""))
    if make is None:
        raise SchemaError(f"{path} has a {settings.get('class')} as {name}: a network is restored from its checkpoint "
                          f"alone only if that is {' or '.join(PARTS[name])}")
    return make(**{setting: value for setting, value in settings.items() if setting != "class"})
