"""WacoNet, the network of WACO, made to read the configurations of several platforms (COGNATE §4.1, figure 3a)."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from sparloom.data import MatrixInput
from sparloom.data.lightning import RankingBatch
from sparloom.models.encoder import FrozenEncoder
from sparloom.models.program import ProgramEmbedder

__all__ = ["WacoNet"]


class WacoNet(nn.Module):
    """A matrix embedding and a program embedding meet in a predictor; used as `Cognate` is.

    The encoder of a platform only says which platform it is and how many codes that has: the program embedder reads the
    codes themselves.

    Args:
        featurizer: (inputs, side vectors) -> (matrices, width).
        side: inputs -> (matrices, side width).
        embedder: mapped loops (n, 53), codes (n, h), slot of the platform -> (n, program width).
        predictor: (n, matrix), (n, program), (n, 0) -> (n,).
    """

    def __init__(
        self, *, featurizer: nn.Module, side: nn.Module, embedder: ProgramEmbedder, predictor: nn.Module
    ) -> None:
        super().__init__()
        self.featurizer, self.side, self.embedder, self.predictor = featurizer, side, embedder, predictor
        self.encoder: FrozenEncoder | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """How the parts were made, as plain values."""
        parts = ("featurizer", "side", "embedder", "predictor")
        return {name: {"class": type(getattr(self, name)).__name__, **getattr(self, name).settings} for name in parts}

    def use_encoder(self, encoder: FrozenEncoder) -> None:
        """Read the configurations of one platform from now on.

        Raises:
            ValueError: it was made by an encoder that has no slots.
        """
        if encoder.slot is None:
            raise ValueError("WacoNet puts the parameters of platforms side by side, and this latent encoder was made "
                             "otherwise: make it with encoder=augmentation (WACO+FA) or encoder=mapping (WACO+FM)")
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
            raise ValueError("the network does not know the platform: call use_encoder with the encoder of it")
        self.encoder.check(codes)
        program = self.embedder(shared, codes, slot=self.encoder.slot)
        return self.predictor(embedding, program, program.new_zeros(len(program), 0))

    def forward(self, batch: RankingBatch) -> Float[Tensor, " n"]:
        """Score all configurations of a batch; the convolutions run once per matrix."""
        embedding = self.embed(batch.inputs)
        return self.score(embedding.index_select(0, batch.owner), batch.shared, batch.heterogeneous)
