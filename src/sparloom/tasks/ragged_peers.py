"""Peers that are checked and probed before they take part in a comparison."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sparloom.errors import Unsupported
from sparloom.tasks.packed_inputs import PackedInputs, reference
from sparloom.tasks.peer import Peer

__all__ = ["Contenders", "prepare_peers"]

log = logging.getLogger(__name__)

TOLERANCE = 1e-4  # absolute, of values around 1; other orders of addition
PROBES = 2

Prepare = Callable[[PackedInputs], Peer]


@dataclass(frozen=True, eq=False)
class Contenders:
    """Those that take part.

    Args:
        expected: (tokens, width), what all must compute.
        chosen: by the name of their group, with the form that was fastest.
        left_out: seconds of the forms that were slower, by "group form".
    """

    expected: torch.Tensor
    chosen: dict[str, tuple[str, Peer]] = field(default_factory=dict)
    left_out: dict[str, float] = field(default_factory=dict)

    def calls(self) -> dict[str, Callable[[], Any]]:
        """What is timed, by group, or by "group form" where there are several."""
        return {_name(group, form): peer.run for group, (form, peer) in self.chosen.items()}

    def check(self, name: str, peer: Peer) -> None:
        """Compare a result with the reference.

        Raises:
            AssertionError: it is something else.
        """
        apart = float((peer.packed() - self.expected).abs().max())
        if not apart < TOLERANCE:
            raise AssertionError(f"{name} computes something else: {apart:.1e} apart")


def prepare_peers(inputs: PackedInputs, groups: Mapping[str, Mapping[str, Prepare]]) -> Contenders:
    """Prepare, check and probe peers; those that do not run here are left out with the reason.

    Args:
        groups: by name, forms of which only the fastest takes part.
    """
    found = Contenders(reference(inputs))
    for group, forms in groups.items():
        seconds: dict[str, float] = {}
        best: Peer | None = None
        for form, prepare in forms.items():
            try:
                peer = prepare(inputs)
            except Unsupported as error:
                log.warning("%s is left out: %s", form, error)
                continue
            with torch.inference_mode():
                found.check(form, peer)
                seconds[form] = min(_seconds(peer.run) for _ in range(PROBES))
            if seconds[form] == min(seconds.values()):
                best, name = peer, form
        if best is not None:
            found.chosen[group] = (name, best)
            found.left_out.update({_name(group, form): taken for form, taken in seconds.items() if form != name})
    return found


def _name(group: str, form: str) -> str:
    return group if group == form else f"{group} {form}"


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
