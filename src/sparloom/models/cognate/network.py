"""What all networks have in common: parts that can each be replaced, and a matrix that is embedded once.

The configuration mapper: shared loops as 53 numbers to a vector (COGNATE §3.2, table 6).

COGNATE: a matrix embedding, a mapped configuration and a latent code meet in a predictor (COGNATE §3.1).

COGNATE without one of its components, or with WACO's featurizer (figure 7).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.data import MatrixInput
from sparloom.models.cognate.encoder import FrozenEncoder
from sparloom.renamed import stored_class_name
from sparloom.space import ENCODED_WIDTH

if TYPE_CHECKING:
    from sparloom.data.lightning import RankingBatch

__all__ = [
    "Cognate", "ConfigurationMapper", "Network", "NoFeaturizer", "NoMapper", "cognate_with_featurizer",
    "cognate_without", "initialise",
]


class Network(nn.Module, ABC):
    """Embed matrices and score configurations of the platform whose encoder was given.

    All parts but the encoder are shared between platforms: fine-tuning means `use_encoder` with that of the target,
    then training on its samples. Every part says in `settings` how it was made, as plain values, and draws parameters
    of its own in `reset(generator)`; weights are drawn and stored in the order of the parts.

    Args:
        featurizer: (inputs, side vectors) -> (matrices, width), with `standardise(inputs)`; lists its `convolutions()`,
            which training may freeze.
        side: inputs -> (matrices, side width), with `standardise(inputs)`.
        others: the parts that `score` of the subclass reads.
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
        """How every part was made, as plain values: a checkpoint of other settings is refused."""
        parts = {name: getattr(self, name) for name in self._parts}
        return {name: {"class": stored_class_name(part), **part.settings} for name, part in parts.items()}

    def use_encoder(self, encoder: FrozenEncoder) -> None:
        """Read the configurations of one platform from now on; the encoder is not trained."""
        self.encoder = encoder

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Take the scales of sizes and pooled features from the given matrices, before weights are first trained.

        Those of sizes stay; those of pooled features follow the convolutions in this training (see `Standardise`).
        A network filled from a checkpoint keeps the scales that it was stored with.
        """
        self.side.standardise(inputs)
        self.featurizer.standardise(inputs)

    def embed(self, inputs: Sequence[MatrixInput]) -> Float[Tensor, "matrices width"]:
        """Embed matrices in one pass of the convolutions."""
        return self.featurizer(inputs, self.side(inputs))

    @abstractmethod
    def score(
        self, embedding: Float[Tensor, "n width"], shared: Float[Tensor, "n 53"], codes: Float[Tensor, "n h"]
    ) -> Float[Tensor, " n"]:
        """Score configurations, one row of each: low = fast.

        Raises:
            ValueError: no encoder was given yet.
        """

    def forward(self, batch: "RankingBatch") -> Float[Tensor, " n"]:
        """Score all configurations of a batch; the convolutions run once per matrix."""
        embedding = self.embed(batch.inputs)
        return self.score(embedding.index_select(0, batch.owner), batch.shared, batch.heterogeneous)


def initialise(net: nn.Module, seed: int) -> None:
    """Draw all weights anew from a seed, in the order of the modules; buffers stay.

    Linear layers are drawn uniformly within 1 / sqrt(inputs), PyTorch's rule; a part with `reset(generator)` draws its
    own parameters.
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
    """Map encoded shared schedules to (configs, width).

    Args:
        depth: two layers 53 -> 64 -> 64 as WACO's embedder has, or the single one that table 6 prints.
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
    """The cost model's network.

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
            raise ValueError("the network has no latent encoder: call use_encoder with that of the platform")
        return self.predictor(embedding, self.mapper(shared), self.encoder(codes))


VECTORS = {"featurizer": "matrix_width", "mapper": "config_width", "encoder": "latent_width"}


class NoFeaturizer(nn.Module):
    """Embed every matrix as nothing."""

    width = 0

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {}

    def convolutions(self) -> list[nn.Parameter]:
        """List the parameters below the head: none."""
        return []

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Nothing has a scale."""

    def forward(self, inputs: Sequence[MatrixInput], side: Float[Tensor, "matrices s"]) -> Float[Tensor, "matrices 0"]:
        return side.new_zeros(len(inputs), 0)


class NoMapper(nn.Module):
    """Map every configuration to nothing."""

    width = 0

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {}

    def forward(self, shared: Float[Tensor, "n 53"]) -> Float[Tensor, "n 0"]:
        return shared.new_zeros(len(shared), 0)


def cognate_without(part: Literal["featurizer", "mapper", "encoder"], **parts: nn.Module) -> Cognate:
    """Build COGNATE without one of its components: the predictor gets narrower by the vector of it.

    Reading: components are left out one at a time, each from the whole network. Without the featurizer the side vector
    is gone too, since it reaches the predictor through the featurizer's head; what is left of the matrix is its size
    where a mapped extent is cut off by it. Without the latent encoder the platform's own parameters are not seen.

    Args:
        part: what is left out.
        parts: of the whole network, as `Cognate` takes them.
    """
    if part not in VECTORS:
        raise ValueError(f"part={part!r} is not one of {', '.join(VECTORS)}")
    parts["predictor"] = _remade(parts["predictor"], **{VECTORS[part]: 0})
    if part == "featurizer":
        parts |= {"featurizer": NoFeaturizer(), "side": _remade(parts["side"], width=0)}
    if part == "mapper":
        parts["mapper"] = NoMapper()
    return Cognate(**parts)


def cognate_with_featurizer(instead: nn.Module, **parts: nn.Module) -> Cognate:
    """Build COGNATE with another featurizer.

    Args:
        instead: gives vectors as wide as those of the one it replaces.
        parts: of the whole network, as `Cognate` takes them.
    """
    return Cognate(**(parts | {"featurizer": instead}))


def _remade(part: nn.Module, **changes: Any) -> nn.Module:
    """A new part with other settings; weights are drawn when the network is initialised."""
    return type(part)(**(part.settings | changes))
