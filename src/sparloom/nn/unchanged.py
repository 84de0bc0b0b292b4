"""Whether a tensor is the one that it was, with the content that it had."""

import weakref
from dataclasses import dataclass

import torch

__all__ = ["Unchanged", "version_of"]


@dataclass(frozen=True)
class Unchanged:
    """A tensor that was seen, or that there was none.

    Args:
        reference: to the tensor; None: there was none.
        version: how often it had been written in place; None where torch does not count.
    """

    reference: weakref.ref | None
    version: int | None

    @classmethod
    def of(cls, tensor: torch.Tensor | None) -> "Unchanged":
        """Remember a tensor, without keeping it alive."""
        return cls(None, 0) if tensor is None else cls(weakref.ref(tensor), version_of(tensor))

    def holds(self, tensor: torch.Tensor | None) -> bool:
        """Tell whether this is that tensor, unwritten since; False where that cannot be known.

        What is written through `tensor.data` or a NumPy array on its memory is not seen.
        """
        if tensor is None or self.reference is None:
            return tensor is None and self.reference is None
        return self.reference() is tensor and self.version is not None and self.version == version_of(tensor)


def version_of(tensor: torch.Tensor) -> int | None:
    """Count how often the content of a tensor was written in place; None where torch does not count."""
    if tensor.is_inference():
        return None
    content = tensor if tensor.layout == torch.strided else tensor.values() if (
        tensor.layout == torch.sparse_csr or tensor.is_coalesced()) else None
    return None if content is None else content._version
