"""The configuration mapper: shared loops as 53 numbers to a vector (COGNATE §3.2, table 6)."""

from typing import Any, Literal

from torch import Tensor, nn

from sparloom.space import ENCODED_WIDTH

__all__ = ["ConfigurationMapper"]


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
