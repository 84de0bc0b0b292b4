"""What `sparloom.nn.at_places` computes, by torch's own operations: on any device, sums in float32, in any order there.

Each makes some arrays of (rows, width) besides its result.
"""

from dataclasses import dataclass

import torch

__all__ = ["DevicePlaces"]


@dataclass(frozen=True)
class DevicePlaces:
    """Products of which every element takes one nonzero of its row of A (rows, cols).

    Places are (rows, width) int32, -1 in rows without nonzeros; results have the type of the operands.

    Args:
        columns: of A's nonzeros, (nnz,) int64, on the device of all operands.
    """

    columns: torch.Tensor
    cols: int

    def spmm_at(self, places: torch.Tensor, values: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Gather: D (rows, width), 0 in rows without nonzeros, for X (cols, width)."""
        if not self.columns.numel():
            return right.new_zeros(places.shape)
        at, there = self._at(places)
        return torch.where(there, values[at] * right.gather(0, self.columns[at]), 0)

    def spmm_transposed_at(self, places: torch.Tensor, values: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        """Scatter: D (cols, width), for Y (rows, width)."""
        result = left.new_zeros(self.cols, places.shape[1], dtype=torch.float32)
        if self.columns.numel():
            at, there = self._at(places)
            result.scatter_add_(0, self.columns[at], torch.where(there, values.float()[at] * left, 0))
        return result.to(left.dtype)

    def sddmm_at(self, places: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Add up what each nonzero is the place of: D (nnz,), for Y (rows, width), X (cols, width)."""
        result = left.new_zeros(self.columns.shape, dtype=torch.float32)
        if self.columns.numel():
            at, there = self._at(places)
            products = torch.where(there, left.float() * right.float().gather(0, self.columns[at]), 0)
            result.index_add_(0, at.flatten(), products.flatten())
        return result.to(left.dtype)

    @staticmethod
    def _at(places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Say which nonzero an element takes, any where there is none, and whether there is one."""
        return places.long().clamp(min=0), places >= 0
