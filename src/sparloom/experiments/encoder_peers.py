"""Ways in which users of PyTorch compute an encoder layer, or its attention, on sequences of several lengths."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from sparloom.experiments.flex_peer import device_flex, flex, frozen_flex, onednn_flex
from sparloom.experiments.kernel_peers import peer_versions
from sparloom.experiments.packed_inputs import PackedInputs
from sparloom.experiments.packed_peers import fbgemm, nested, onednn_loop, packed_loop, sdpa, varlen
from sparloom.experiments.padded_peers import (
    compiled,
    fast_loop,
    fast_micro_batches,
    fast_nested,
    fast_padded,
    frozen,
    loop,
    micro_batch_sizes,
    micro_batches,
    padded,
)
from sparloom.experiments.peer import Peer

__all__ = [
    "COMPARED", "DEVICE_PEERS", "PADDED_PEERS", "RAGGED_PEERS", "RISING", "encoder_peers", "micro_batch_peers",
    "module_peer_versions",
]

COMPARED = ("padded", "micro_batches")  # groups with which there is a ratio for every case
RISING = ("micro_batches",)  # groups whose forms are of rising size

Prepare = Callable[[PackedInputs], Peer]
PACKAGES = ("torch", "fbgemm_gpu-cpu", "fbgemm_gpu", "mkl", "numpy")

PADDED_PEERS: Mapping[str, Prepare] = MappingProxyType(
    {"padded": padded, "padded_fast": fast_padded, "compiled": compiled, "compiled_frozen": frozen})
"""The whole batch padded to its longest sequence."""

RAGGED_PEERS: Mapping[str, Prepare] = MappingProxyType({
    "loop": loop, "loop_fast": fast_loop, "packed_loop": packed_loop, "nested": nested, "nested_fast": fast_nested,
    "fbgemm": fbgemm, "flex": flex, "flex_frozen": frozen_flex, "onednn_loop": onednn_loop, "onednn_flex": onednn_flex})
"""Without padding, or with padding in the attention alone."""

DEVICE_PEERS: Mapping[str, Prepare] = MappingProxyType({
    "packed_loop": packed_loop, "nested": nested, "nested_fast": fast_nested, "sdpa": sdpa, "flex": device_flex,
    "varlen": varlen})
"""The same on a GPU."""


def micro_batch_peers(batch: int) -> dict[str, Prepare]:
    """Micro-batches of every size, by both of PyTorch's paths: "micro_batches_<size>", "micro_batches_fast_<size>"."""
    paths = {"micro_batches": micro_batches, "micro_batches_fast": fast_micro_batches}
    return {f"{name}_{size}": partial(prepare, size=size)
            for size in micro_batch_sizes(batch) for name, prepare in paths.items()}


def encoder_peers(inputs: PackedInputs) -> dict[str, Prepare]:
    """All of them, by name; what cannot run here raises Unsupported when it is prepared."""
    return {**PADDED_PEERS, **micro_batch_peers(len(inputs.lengths)), **RAGGED_PEERS}


def module_peer_versions() -> dict[str, str]:
    """Name the versions of the packages that are installed."""
    return peer_versions(PACKAGES)
