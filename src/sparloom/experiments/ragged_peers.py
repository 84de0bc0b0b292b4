"""Peers that are checked and probed before they take part in a comparison."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sparloom.errors import Unsupported
from sparloom.experiments.packed_inputs import PackedInputs, reference
from sparloom.experiments.peer import Peer

__all__ = ["Contenders", "prepare_peers"]

log = logging.getLogger(__name__)

AGAIN = 1.2  # times the fastest form: who is as near in a first run is run again
HOPELESS = 1.5  # times the fastest peer: who is slower does not take part

Prepare = Callable[[PackedInputs], Peer]
Wait = Callable[[], object]


def _nothing() -> None:
    """Wait for a processor, which is done when a call returns."""


@dataclass(frozen=True, eq=False)
class Contenders:
    """Those that take part.

    Args:
        expected: (tokens, width), what all must compute.
        wait: until a device has done what was asked of it.
        chosen: by the name of their group, with the form that was fastest.
        left_out: seconds of what was slower: other forms, by "group form", and peers that are far behind.
    """

    expected: torch.Tensor
    wait: Wait = _nothing
    chosen: dict[str, tuple[str, Peer]] = field(default_factory=dict)
    left_out: dict[str, float] = field(default_factory=dict)

    def calls(self) -> dict[str, Callable[[], Any]]:
        """What is timed, by group, or by "group form" where there are several."""
        return {_name(group, form): peer.run for group, (form, peer) in self.chosen.items()}

    def check(self, name: str, peer: Peer) -> float:
        """Compare a result with the reference; gives the seconds of the run.

        Raises:
            AssertionError: it is something else.
        """
        with torch.inference_mode():
            start = time.perf_counter()
            result = peer.run()
            self.wait()
            seconds = time.perf_counter() - start
            apart = float((peer.unpack(result) - self.expected).abs().max())
        if not apart < peer.tolerance:
            raise AssertionError(f"{name} computes something else: {apart:.1e} apart")
        return seconds


def prepare_peers(
    inputs: PackedInputs, groups: Mapping[str, Mapping[str, Prepare]], *, always: Collection[str],
    rising: Collection[str] = (), apart: Collection[str] = (), wait: Wait = _nothing,
) -> Contenders:
    """Prepare, check and probe peers; those that do not run here are left out with the reason.

    Args:
        groups: by name, forms of which only the fastest takes part.
        always: groups that take part however slow they are.
        rising: groups whose forms are of rising size: two far behind end the group.
        apart: groups beside which no other is far behind.
        wait: as for `Contenders`.
    """
    probes: dict[str, float] = {}
    found = Contenders(reference(inputs), wait)
    for group, forms in groups.items():
        seconds: dict[str, float] = {}
        peers: dict[str, Peer] = {}
        behind = 0
        for form, prepare in forms.items():
            try:
                peer = prepare(inputs)
            except Unsupported as error:
                log.warning("%s is left out: %s", form, error)
                continue
            seconds[form] = found.check(form, peer)
            if seconds[form] < AGAIN * min(seconds.values()):
                seconds[form] = min(seconds[form], _seconds(peer.run, wait))
            peers[form] = peer
            behind = behind + 1 if seconds[form] > AGAIN * min(seconds.values()) else 0
            if group in rising and behind == 2:
                break
        if peers:
            name = min(seconds, key=seconds.__getitem__)
            found.chosen[group] = (name, peers[name])
            probes[group] = seconds[name]
            found.left_out.update({_name(group, form): taken for form, taken in seconds.items() if form != name})
    for group, (form, _) in list(found.chosen.items()):
        rivals = [seconds for other, seconds in probes.items() if group in apart or other not in apart]
        if group not in always and probes[group] > HOPELESS * min(rivals):
            found.left_out[_name(group, form)] = probes[group]
            del found.chosen[group]
    return found


def _name(group: str, form: str) -> str:
    return group if group == form else f"{group} {form}"


def _seconds(run: Callable[[], Any], wait: Wait) -> float:
    with torch.inference_mode():
        start = time.perf_counter()
        run()
        wait()
        return time.perf_counter() - start
