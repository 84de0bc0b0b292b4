"""COGNATE: a matrix embedding, a mapped configuration and a latent code meet in a predictor (COGNATE §3.1)."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.data import MatrixInput
from sparloom.data.lightning import RankingBatch
from sparloom.models.encoder import FrozenEncoder

__all__ = ["Cognate", "initialise"]


class Cognate(nn.Module):
    """The cost model's network, put together from parts that can each be replaced.

    All parts but the encoder are shared between platforms: fine-tuning means `use_encoder` with that of the target,
    then training on its samples.

    Args:
        featurizer: (inputs, side vectors) -> (matrices, width).
        side: inputs -> (matrices, side width).
        mapper: (n, 53) -> (n, config width).
        predictor: (n, matrix), (n, config), (n, latent) -> (n,).
    """

    def __init__(self, *, featurizer: nn.Module, side: nn.Module, mapper: nn.Module, predictor: nn.Module) -> None:
        super().__init__()
        self.featurizer, self.side, self.mapper, self.predictor = featurizer, side, mapper, predictor
        self.encoder: FrozenEncoder | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """How the parts were made, as plain values."""
        parts = ("featurizer", "side", "mapper", "predictor")
        return {name: {"class": type(getattr(self, name)).__name__, **getattr(self, name).settings} for name in parts}

    def use_encoder(self, encoder: FrozenEncoder) -> None:
        """Read the hardware-specific parts of one platform from now on; the encoder is not trained."""
        self.encoder = encoder

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Fix the scales of sizes and pooled features over the given matrices; done once, before pre-training."""
        self.side.standardise(inputs)
        self.featurizer.standardise(inputs)

    def embed(self, inputs: Sequence[MatrixInput]) -> Float[Tensor, "matrices width"]:
        """Embed matrices in one pass of the convolutions."""
        return self.featurizer(inputs, self.side(inputs))

    def score(
        self, embedding: Float[Tensor, "n width"], shared: Float[Tensor, "n 53"], codes: Float[Tensor, "n h"]
    ) -> Float[Tensor, " n"]:
        """Score configurations, one row of each: low = fast."""
        if self.encoder is None:
            raise ValueError("the network has no latent encoder: call use_encoder with that of the platform")
        return self.predictor(embedding, self.mapper(shared), self.encoder(codes))

    def forward(self, batch: RankingBatch) -> Float[Tensor, " n"]:
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
