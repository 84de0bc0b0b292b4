"""COGNATE: a matrix embedding, a mapped configuration and a latent code meet in a predictor (COGNATE §3.1)."""

from jaxtyping import Float
from torch import Tensor, nn

from sparloom.models.network import Network

__all__ = ["Cognate"]


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
