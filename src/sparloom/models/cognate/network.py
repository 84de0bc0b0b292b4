"""The network of COGNATE: a predictor reads a matrix embedding, a mapped configuration and a latent vector (§3.1).

`Network` is the interface of all networks, with replaceable parts. `cognate_variant` builds COGNATE with other parts
and the ablations of figure 7.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.data import MatrixInput
from sparloom.models.cognate.encoder import FrozenEncoder
from sparloom.space import ENCODED_WIDTH

if TYPE_CHECKING:
    from sparloom.data.lightning import RankingBatch

WIDTH_SETTINGS = {"featurizer": "matrix_width", "mapper": "config_width", "encoder": "latent_width"}


class Network(nn.Module, ABC):
    """Embed matrices and score configurations of the platform whose encoder is in use.

    All parts but the encoder are shared between platforms: to fine-tune, call `use_encoder` with the encoder of the
    target and train on its samples. Every part has `settings`, the JSON values that it was made from, and may have
    `reset(generator)`, which draws its parameters; weights are drawn and stored in the order of the parts.

    Args:
        featurizer: (inputs, side vectors) -> (matrices, width), with `standardise(inputs)` and `convolutions()`, the
            parameters that training may freeze.
        side: inputs -> (matrices, side width), with `standardise(inputs)`.
        others: further parts that the subclass reads in `score`.
    """

    def __init__(self, *, featurizer: nn.Module, side: nn.Module, **others: nn.Module) -> None:
        super().__init__()
        parts = {"featurizer": featurizer, "side": side, **others}
        for name, part in parts.items():
            setattr(self, name, part)
        self._parts = tuple(parts)
        self.encoder: FrozenEncoder | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of every part as JSON values; a checkpoint with other settings does not load."""
        parts = {name: getattr(self, name) for name in self._parts}
        return {name: {"class": type(part).__name__, **part.settings} for name, part in parts.items()}

    def use_encoder(self, encoder: FrozenEncoder) -> None:
        """Score configurations of the platform of this encoder from now on; the encoder is not trained."""
        self.encoder = encoder

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Fit the scales of sizes and pooled features to these matrices, before the first training.

        The scales of sizes stay fixed; those of pooled features track the convolutions during training (see
        `Standardise`). A network loaded from a checkpoint keeps its stored scales.
        """
        self.side.standardise(inputs)
        self.featurizer.standardise(inputs)

    def embed(self, inputs: Sequence[MatrixInput]) -> Float[Tensor, "matrices width"]:
        return self.featurizer(inputs, self.side(inputs))

    @abstractmethod
    def score(
        self, embedding: Float[Tensor, "n width"], shared: Float[Tensor, "n 53"], codes: Float[Tensor, "n h"]
    ) -> Float[Tensor, " n"]:
        """Score one configuration per row: low = fast.

        Raises:
            ValueError: no encoder is in use.
        """

    def forward(self, batch: "RankingBatch") -> Float[Tensor, " n"]:
        """Score all configurations of a batch; the convolutions run once per matrix."""
        embedding = self.embed(batch.inputs)
        return self.score(embedding.index_select(0, batch.owner), batch.shared, batch.heterogeneous)


def initialise(net: nn.Module, seed: int) -> None:
    """Draw all weights from a seed, in the order of the modules; buffers are left unchanged.

    Linear layers are drawn uniformly within 1 / sqrt(inputs), PyTorch's rule; a module with `reset(generator)` draws
    its own parameters.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in net.modules():
            if isinstance(part, nn.Linear):
                bound = 1 / max(1, part.in_features) ** 0.5
                part.weight.uniform_(-bound, bound, generator=generator)
                if part.bias is not None:
                    part.bias.uniform_(-bound, bound, generator=generator)
            elif hasattr(part, "reset"):
                part.reset(generator)


class ConfigurationMapper(nn.Module):
    """Map the shared loops of a configuration, encoded as 53 numbers, to a vector (COGNATE §3.2, table 6).

    Args:
        depth: 2 layers, 53 -> 64 -> 64, as in WACO's embedder, or the single layer printed in table 6.
    """

    def __init__(self, *, width: int, depth: Literal[1, 2]) -> None:
        super().__init__()
        if depth not in (1, 2):
            raise ValueError(f"depth={depth} of the configuration mapper is not 1 or 2")
        self.width = width
        self.settings: dict[str, Any] = {"width": width, "depth": depth}
        second = (nn.ReLU(), nn.Linear(width, width)) if depth == 2 else ()
        self.layers = nn.Sequential(nn.Linear(ENCODED_WIDTH, width), *second)

    def forward(self, shared: Tensor) -> Tensor:
        return self.layers(shared)


class Cognate(Network):
    """Score a configuration from matrix embedding, mapped shared loops and latent vector (COGNATE §3.1).

    Args:
        featurizer, side: see `Network`.
        mapper: (n, 53) -> (n, config width).
        predictor: (n, matrix), (n, config), (n, latent) -> (n,).
    """

    def __init__(self, *, featurizer: nn.Module, side: nn.Module, mapper: nn.Module, predictor: nn.Module) -> None:
        super().__init__(featurizer=featurizer, side=side, mapper=mapper, predictor=predictor)

    def score(
        self, embedding: Float[Tensor, "n width"], shared: Float[Tensor, "n 53"], codes: Float[Tensor, "n h"]
    ) -> Float[Tensor, " n"]:
        if self.encoder is None:
            raise ValueError("the network has no latent encoder: call use_encoder with the encoder of the platform")
        return self.predictor(embedding, self.mapper(shared), self.encoder(codes))


class NoFeaturizer(nn.Module):
    """Embed every matrix as a vector of width 0."""

    width = 0

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {}

    def convolutions(self) -> list[nn.Parameter]:
        return []

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Do nothing: there are no scales."""

    def forward(self, inputs: Sequence[MatrixInput], side: Float[Tensor, "matrices s"]) -> Float[Tensor, "matrices 0"]:
        return side.new_zeros(len(inputs), 0)


class NoMapper(nn.Module):
    """Map every configuration to a vector of width 0."""

    width = 0

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {}

    def forward(self, shared: Float[Tensor, "n 53"]) -> Float[Tensor, "n 0"]:
        return shared.new_zeros(len(shared), 0)


def cognate_variant(
    *, instead: Mapping[str, nn.Module] = MappingProxyType({}),
    without: Literal["featurizer", "mapper", "encoder"] | None = None, **parts: nn.Module,
) -> Cognate:
    """Build COGNATE with other parts, or without one component.

    Components are removed one at a time from the full network; the predictor reads one vector less. Removing the
    featurizer also removes the side vector, which reaches the predictor through the featurizer's head: the size of the
    matrix then only shows where it limits a mapped extent. Without the latent encoder, hardware-specific parameters
    are not read.

    Args:
        instead: part -> another one, whose vectors are as wide as those of the old one.
        without: component that is removed.
    """
    unknown = [name for name in instead if name not in parts]
    if unknown:
        raise ValueError(f"instead has {unknown[0]!r}, which is not one of {', '.join(parts)}")
    if without is not None and without not in WIDTH_SETTINGS:
        raise ValueError(f"without={without!r} is not one of {', '.join(WIDTH_SETTINGS)}")
    parts |= instead
    if without is not None:
        parts["predictor"] = _remake(parts["predictor"], **{WIDTH_SETTINGS[without]: 0})
    if without == "featurizer":
        parts |= {"featurizer": NoFeaturizer(), "side": _remake(parts["side"], width=0)}
    if without == "mapper":
        parts["mapper"] = NoMapper()
    return Cognate(**parts)


def _remake(part: nn.Module, **changes: Any) -> nn.Module:
    """Make a part anew with changed settings; weights are drawn when the network is initialised."""
    return type(part)(**(part.settings | changes))
