"""WacoNet, the network of WACO, made to read the configurations of several platforms (COGNATE §4.1, figure 3a)."""

from jaxtyping import Float
from torch import Tensor, nn

from sparloom.models.encoder import FrozenEncoder
from sparloom.models.network import Network
from sparloom.models.program import ProgramEmbedder

__all__ = ["WacoNet"]


class WacoNet(Network):
    """A matrix embedding and a program embedding meet in a predictor.

    The encoder of a platform only says which platform it is and how many codes that has: the program embedder reads the
    codes themselves.

    Args:
        featurizer, side: see `Network`.
        embedder: mapped loops (n, 53), codes (n, h), slot of the platform -> (n, program width).
        predictor: (n, matrix), (n, program), (n, 0) -> (n,).
    """

    def __init__(
        self, *, featurizer: nn.Module, side: nn.Module, embedder: ProgramEmbedder, predictor: nn.Module
    ) -> None:
        super().__init__(featurizer=featurizer, side=side, embedder=embedder, predictor=predictor)

    def use_encoder(self, encoder: FrozenEncoder) -> None:
        """Read the configurations of one platform from now on.

        Raises:
            ValueError: it was made by an encoder that has no slots.
        """
        if encoder.slot is None:
            raise ValueError("WacoNet puts the parameters of platforms side by side, and this latent encoder was made "
                             "otherwise: make it with encoder=augmentation (WACO+FA) or encoder=mapping (WACO+FM)")
        super().use_encoder(encoder)

    def score(
        self, embedding: Float[Tensor, "n width"], shared: Float[Tensor, "n 53"], codes: Float[Tensor, "n h"]
    ) -> Float[Tensor, " n"]:
        if self.encoder is None:
            raise ValueError("the network does not know the platform: call use_encoder with the encoder of it")
        self.encoder.check(codes)
        program = self.embedder(shared, codes, slot=self.encoder.slot)
        return self.predictor(embedding, program, program.new_zeros(len(program), 0))
