"""The graph convolution on a GPU: D = A X W^T + b by a sparse and a dense product, each apart."""

from dataclasses import dataclass
from typing import Any

import torch

from sparloom.nn.sparse import spmm
from sparloom.nn.structure import Operand

__all__ = ["DeviceAdjacency"]


@dataclass(frozen=True, eq=False)
class DeviceAdjacency:
    """A normalised adjacency matrix on a GPU; what multiplies by it is decided as for `sparloom.nn.spmm`.

    Args:
        matrix: A; its values may need a gradient.
    """

    matrix: Operand

    @property
    def nodes(self) -> int:
        """Rows and columns."""
        return self.matrix[3][0]

    @property
    def dtype(self) -> torch.dtype:
        """Type of its values."""
        return self.matrix[2].dtype

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.matrix[0].device

    def __getstate__(self) -> dict[str, Any]:
        """Give what copies and pickles hold: values as numbers, which torch copies only without their history."""
        return {"matrix": tuple(each.detach() if isinstance(each, torch.Tensor) else each for each in self.matrix)}

    def to(self, dtype: torch.dtype) -> "DeviceAdjacency":
        """Convert the values."""
        crow, col, values, shape = self.matrix
        return DeviceAdjacency((crow, col, values.to(dtype), shape))

    def convolve(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, aggregate_first: bool,
    ) -> torch.Tensor:
        """Compute A X W^T + b, see `sparloom.nn.convolution.Adjacency`."""
        result = spmm(self.matrix, x) @ weight.T if aggregate_first else spmm(self.matrix, x @ weight.T)
        return (result if bias is None else result + bias).to(x.dtype)
