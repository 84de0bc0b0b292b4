"""What all networks have in common: parts that can each be replaced, and a matrix that is embedded once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.data import MatrixInput
from sparloom.models.encoder import FrozenEncoder

if TYPE_CHECKING:
    from sparloom.data.lightning import RankingBatch

__all__ = ["Network", "initialise"]


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
        return {name: {"class": type(part).__name__, **part.settings} for name, part in parts.items()}

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
