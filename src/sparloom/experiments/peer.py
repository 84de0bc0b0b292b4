"""One way to compute a module on packed tokens, ready to be called and checked."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sparloom.errors import Unsupported

__all__ = ["Peer", "prepared"]

TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class Peer:
    """A call that has all its inputs in the layout that it likes best.

    Args:
        run: what is timed; its result may be in any layout, padded or packed.
        unpack: takes the valid tokens out of such a result: (tokens, width), in the order of the inputs.
        tolerance: absolute, of values around 1: other orders of addition, or fewer bits.
    """

    run: Callable[[], Any]
    unpack: Callable[[Any], torch.Tensor]
    tolerance: float = TOLERANCE

    def packed(self) -> torch.Tensor:
        """Run once; for checks."""
        return self.unpack(self.run())


def prepared(
    run: Callable[[], Any], unpack: Callable[[Any], torch.Tensor] = lambda result: result, *,
    tolerance: float = TOLERANCE,
) -> Peer:
    """Run once, so that what can be compiled is and what cannot run is known.

    Args:
        unpack: needed if results are not packed tokens already.
        tolerance: of a `Peer`.

    Raises:
        Unsupported: PyTorch refuses.
    """
    peer = Peer(torch.no_grad()(run), unpack, tolerance)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of prototypes, said once per process
        try:
            peer.run()
        except (RuntimeError, AssertionError, ImportError) as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise Unsupported(f"PyTorch {torch.__version__} does not run it here: {first}") from error
    return peer
