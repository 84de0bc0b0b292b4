"""What training, checkpoints and cost models ask of a network."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor, nn

from sparloom.data import MatrixInput
from sparloom.data.lightning import RankingBatch
from sparloom.models.encoder import FrozenEncoder

__all__ = ["Network"]


class Network(Protocol):
    """A `torch.nn.Module` that embeds matrices and scores configurations of the platform whose encoder it was given.

    `featurizer` also lists its `convolutions()`, which training may freeze. Parts say in `settings` how they were made,
    and draw parameters of their own in `reset(generator)`.
    """

    featurizer: nn.Module
    side: nn.Module
    encoder: FrozenEncoder | None

    @property
    def settings(self) -> dict[str, Any]:
        """How every part was made, as plain values: a checkpoint of other settings is refused."""

    def use_encoder(self, encoder: FrozenEncoder) -> None:
        """Read configurations of one platform from now on."""

    def standardise(self, inputs: Sequence[MatrixInput]) -> None:
        """Fix the scales of what is read of a matrix over the given ones; done once, before pre-training."""

    def embed(self, inputs: Sequence[MatrixInput]) -> Float[Tensor, "matrices width"]:
        """Embed matrices."""

    def score(
        self, embedding: Float[Tensor, "n width"], shared: Float[Tensor, "n 53"], codes: Float[Tensor, "n h"]
    ) -> Float[Tensor, " n"]:
        """Score configurations, one row of each: low = fast."""

    def __call__(self, batch: RankingBatch) -> Float[Tensor, " n"]:
        """Score all configurations of a batch."""

    def state_dict(self) -> Mapping[str, Tensor]: ...
    def load_state_dict(self, state: Mapping[str, Tensor]) -> Any: ...
