"""How operators of torch.ops.sparloom are registered."""

from typing import Any

import torch

from sparloom.nn.csr_given import DEVICES

__all__ = ["Gradients", "define"]

Gradients = tuple[torch.Tensor | None, ...]


def define(name: str, schema: str, *, run: Any, fake: Any, keep: Any, backward: Any) -> Any:
    """Register an operator for the CPU and GPUs; not by torch.library.custom_op, whose first call imports the compiler.

    Args:
        run: computes, on tensors that hold numbers.
        fake: makes an empty result, for tracing.
        keep: stores what `backward` needs.
    """
    full = f"sparloom::{name}"
    torch.library.define(full, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(full, DEVICES)(run)
    torch.library.register_fake(full)(fake)
    torch.library.register_autograd(full, backward, setup_context=keep)
    return getattr(torch.ops.sparloom, name).default
