"""COGNATE without one of its components, or with WACO's featurizer (figure 7)."""

from collections.abc import Sequence
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from sparloom.data import MatrixInput
from sparloom.models.cognate import Cognate

__all__ = ["NoFeaturizer", "NoMapper", "cognate_with_featurizer", "cognate_without"]

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
