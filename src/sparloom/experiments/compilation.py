"""torch.compile for one shape after the other, each a program of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor

__all__ = ["compilation"]

MANY_SHAPES = 10_000  # PyTorch gives up after 8
Wrap = Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]


@contextmanager
def compilation(*, freeze: bool) -> Iterator[Wrap]:
    """Give what makes a function into a compiled one; first calls, which compile, belong into the block.

    Args:
        freeze: weights are constants, and laid out for MKL beforehand. It is named to torch.compile, too, which would
            else take what it compiled of the same function without it.
    """
    with dynamo.patch(recompile_limit=MANY_SHAPES), inductor.patch(freezing=freeze):
        yield partial(torch.compile, dynamic=False, fullgraph=True, options={"freezing": freeze})
