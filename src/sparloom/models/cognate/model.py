"""A trained network as a cost model: pattern in, scores and familiarity out.

COGNATE networks from their checkpoints alone: what they are made of is written in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import nn

from sparloom.errors import SchemaError
from sparloom.models.cognate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sparloom.models.cognate.encoder import FrozenEncoder
from sparloom.models.cognate.featurizer import InputFeaturizer, SideFeatures
from sparloom.models.cognate.network import Cognate, ConfigurationMapper, Network
from sparloom.models.cognate.predictor import Predictor, RecurrentPredictor, TransformerPredictor
from sparloom.models.cost_model import Familiarity, MatrixFeatures, as_features, familiarity_of
from sparloom.models.sparseconv import TorchBackend
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import Pattern

__all__ = ["CognateModel", "restore_cognate"]

ENCODER = "encoder."
ANCHORS = "anchors"


class CognateModel:
    """Score configurations of one space with a network that is trained.

    Args:
        net: with the encoder of the space's platform; used in evaluation mode.
        space: not bound to a matrix.
        anchors: embeddings of training matrices by name, for `familiarity`.
    """

    def __init__(
        self, net: Network, space: ConfigSpace, *, anchors: Mapping[str, Float[np.ndarray, " width"]] | None = None
    ) -> None:
        self.net, self.space, self.anchors = net, space, dict(anchors or {})

    def score(
        self, matrix: Pattern | MatrixFeatures, configs: Sequence[Config], *,
        embedding: Float32[np.ndarray, " width"] | None = None,
    ) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast, no unit.

        Args:
            embedding: of this matrix, where it was made before.
        """
        view = as_features(matrix)
        shared, codes = self.space.bind(view.shape).vectors(configs)
        embedding = self.embedding(view) if embedding is None else embedding
        device = next(self.net.parameters()).device
        with _evaluating(self.net):
            rows, *others = (torch.from_numpy(array).to(device) for array in (embedding, shared, codes))
            scores = self.net.score(rows.expand(len(configs), -1), *others)
        return scores.cpu().numpy().astype(np.float64)

    def embedding(self, matrix: Pattern | MatrixFeatures) -> Float32[np.ndarray, " width"]:
        """Embed a matrix."""
        with _evaluating(self.net):
            return self.net.embed([as_features(matrix).input])[0].cpu().numpy()

    def familiarity(self, embedding: Float32[np.ndarray, " width"]) -> Familiarity:
        """Compare the embedding of a matrix with the anchors.

        Raises:
            ValueError: there are fewer than two.
        """
        return familiarity_of(embedding, self.anchors)

    def save(self, path: Path, *, notes: Mapping[str, Any], precision: Literal["float32", "float16"]) -> None:
        """Write everything that `load` needs, and notes for the reader."""
        weights = dict(self.net.state_dict())
        if self.anchors:
            weights[ANCHORS] = torch.from_numpy(np.stack(list(self.anchors.values())))
        checkpoint = Checkpoint(
            kind="cognate", op=self.space.op, platform=self.space.name, space=self.space.digest(),
            settings=self.net.settings, weights=weights, notes={**notes, ANCHORS: list(self.anchors)},
        )
        save_checkpoint(path, checkpoint, precision=precision)

    @classmethod
    def load(cls, path: Path, *, net: Network, space: ConfigSpace) -> CognateModel:
        """Fill a network made with the same settings.

        Raises:
            SchemaError: another op, platform, version of the space, or settings of the network.
        """
        stored = load_checkpoint(path, kind="cognate", op=space.op, platform=space.name, space=space.digest())
        load_weights(net, stored, path)
        names = stored.notes[ANCHORS]
        points = stored.weights[ANCHORS].numpy() if names else ()
        return cls(net, space, anchors=dict(zip(names, points, strict=True)))


def load_weights(net: Network, stored: Checkpoint, path: Path) -> None:
    """Copy the weights of a checkpoint into a network, its encoder included.

    Raises:
        SchemaError: the network was made with other settings.
    """
    differing = _differences(stored.settings, net.settings)
    if differing:
        raise SchemaError(f"{path} was made for a network with {'; '.join(differing)}: set these, or train it again")
    encoder = {name.removeprefix(ENCODER): value for name, value in stored.weights.items() if name.startswith(ENCODER)}
    net.use_encoder(FrozenEncoder.restore(encoder))
    net.load_state_dict({name: value for name, value in stored.weights.items() if name != ANCHORS})


def _differences(stored: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    found = []
    for part in sorted({*stored, *made}):
        theirs, ours = stored.get(part, {}), made.get(part, {})
        for name in sorted({*theirs, *ours}):
            if theirs.get(name) != ours.get(name):
                found.append(f"{part}.{name}={theirs.get(name)} instead of {ours.get(name)}")
    return found


class _evaluating:  # noqa: N801 (reads as a statement)
    """Evaluation mode without gradients; the mode comes back afterwards."""

    def __init__(self, net: torch.nn.Module) -> None:
        self._net, self._guard = net, torch.no_grad()

    def __enter__(self) -> None:
        self._training = self._net.training
        self._net.eval()
        self._guard.__enter__()

    def __exit__(self, *problem: object) -> None:
        self._guard.__exit__(*problem)
        self._net.train(self._training)


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
    load_weights(net, stored, path)
    return net


def _part(name: str, settings: Mapping[str, Any], path: Path) -> nn.Module:
    given = dict(settings)
    make = PARTS[name].get(given.pop("class", ""))
    if make is None:
        raise SchemaError(f"{path} has a {settings.get('class')} as {name}: it is made from its checkpoint alone only "
                          f"where that is {' or '.join(PARTS[name])}")
    return make(**given)
