"""Compute encoder layers on packed tokens with PyTorch by padding: whole batches, micro-batches, or one by one.

`PackedInputs` are the inputs that all baselines share, `BoundModule` is one baseline ready to be called and checked.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor

from sparloom.errors import Unsupported

Module = nn.TransformerEncoderLayer | nn.MultiheadAttention
MAX_SHAPES = 10_000  # recompilations; the default of PyTorch is 8
Wrap = Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]
Made = TypeVar("Made", nn.TransformerEncoderLayer, nn.MultiheadAttention)
TOLERANCE = 1e-4
Forward = Callable[..., torch.Tensor]


@dataclass(frozen=True, eq=False)
class PackedInputs:
    """Inputs of every baseline: a module and packed tokens.

    Args:
        module: module in evaluation mode; an encoder layer must have norm_first=False and ReLU.
        tokens: (tokens, width), of the type of the module's parameters.
        lengths: numbers of tokens of the sequences, at least one each.
        causal: tokens attend to themselves and to earlier tokens only.

    Raises:
        ValueError: lengths do not match the tokens.
    """

    module: Module
    tokens: torch.Tensor
    lengths: tuple[int, ...]
    causal: bool = False

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"{len(self.lengths)} sequences, the shortest of {min(self.lengths, default=0)} tokens: "
                             f"take at least one sequence, and leave empty ones out")
        if self.tokens.shape != (sum(self.lengths), self.width):
            raise ValueError(f"tokens of shape {tuple(self.tokens.shape)}: these lengths and the module need "
                             f"{(sum(self.lengths), self.width)}")

    @classmethod
    def drawn(cls, module: Module, lengths: Sequence[int], *, seed: int, causal: bool = False) -> "PackedInputs":
        """Draw normally distributed tokens."""
        width = _attention(module).embed_dim
        counts = tuple(int(length) for length in lengths)
        generator = torch.Generator().manual_seed(seed)
        return cls(module, torch.randn(sum(counts), width, generator=generator), counts, causal)

    def double(self) -> "PackedInputs":
        """Return the inputs in float64, with a copy of the module."""
        return replace(self, module=copy.deepcopy(self.module).double(), tokens=self.tokens.double())

    def to(self, device: torch.device) -> "PackedInputs":
        """Return the inputs on a device, with a copy of the module."""
        return replace(self, module=copy.deepcopy(self.module).to(device), tokens=self.tokens.to(device))

    @property
    def device(self) -> torch.device:
        """Device of tokens and parameters."""
        return self.tokens.device

    @property
    def attention(self) -> nn.MultiheadAttention:
        """The module, or the attention in it."""
        return _attention(self.module)

    @property
    def width(self) -> int:
        """Features of a token."""
        return self.attention.embed_dim

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.attention.num_heads

    @property
    def offsets(self) -> torch.Tensor:
        """Starts of the sequences, and the number of tokens: (sequences + 1,) int64, on the device of the tokens."""
        return torch.from_numpy(np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))).to(self.device)

    def sequences(self) -> tuple[torch.Tensor, ...]:
        """View the tokens of each sequence."""
        return self.tokens.split(self.lengths)


def encoder_layer(
    width: int = 512, heads: int = 8, feedforward: int = 2048, *, seed: int,
) -> nn.TransformerEncoderLayer:
    """Make an encoder layer as in the paper; biases and norms are random too, so that ignoring one is an error."""
    return _drawn(lambda: nn.TransformerEncoderLayer(
        width, heads, feedforward, dropout=0.0, activation="relu", norm_first=False, batch_first=True), seed)


def attention_module(width: int = 512, heads: int = 8, *, seed: int) -> nn.MultiheadAttention:
    """Make a multi-head attention module with random biases."""
    return _drawn(lambda: nn.MultiheadAttention(width, heads, batch_first=True), seed)


def reference(inputs: PackedInputs) -> torch.Tensor:
    """Compute one sequence after the other by the module itself, without PyTorch's fast path.

    Returns:
        (tokens, width), of the type of the inputs.
    """
    results = []
    with torch.no_grad(), fast_path(False):
        for sequence in inputs.sequences():
            tokens, mask = sequence[None], None
            if inputs.causal:
                mask = torch.ones(len(sequence), len(sequence), dtype=torch.bool, device=inputs.device).triu(1)
            if isinstance(inputs.module, nn.MultiheadAttention):
                result = inputs.module(tokens, tokens, tokens, attn_mask=mask, need_weights=False)[0]
            else:
                result = inputs.module(tokens, src_mask=mask)
            results.append(result[0])
    return torch.cat(results)


@contextmanager
def compilation(*, freeze: bool) -> Iterator[Wrap]:
    """Yield torch.compile with suitable settings; first calls, which compile, must be made in the block.

    Args:
        freeze: treat weights as constants and lay them out for MKL beforehand. Also passed to torch.compile, which
            would otherwise reuse code that it compiled for the same function without it.
    """
    with dynamo.patch(recompile_limit=MAX_SHAPES), inductor.patch(freezing=freeze):
        yield partial(torch.compile, dynamic=False, fullgraph=True, options={"freezing": freeze})


@contextmanager
def fast_path(enabled: bool) -> Iterator[None]:
    """Switch PyTorch's fused inference kernels on or off in the block."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _attention(module: Module) -> nn.MultiheadAttention:
    return module if isinstance(module, nn.MultiheadAttention) else module.self_attn


def _drawn(make: Callable[[], Made], seed: int) -> Made:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        module = make().eval()
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / math.sqrt(parameter.numel()))
    return module


@dataclass(frozen=True, eq=False)
class BoundModule:
    """A module bound to inputs in its preferred layout.

    Args:
        run: the timed call; its result may be padded or packed.
        unpack: extracts the valid tokens of a result: (tokens, width), in the order of the inputs.
        tolerance: absolute, of values around 1.
    """

    run: Callable[[], Any]
    unpack: Callable[[Any], torch.Tensor]
    tolerance: float = TOLERANCE

    def packed(self) -> torch.Tensor:
        """Run once and return packed tokens, for checks."""
        return self.unpack(self.run())


def bind_module(
    run: Callable[[], Any], unpack: Callable[[Any], torch.Tensor] = lambda result: result, *,
    tolerance: float = TOLERANCE,
) -> BoundModule:
    """Bind a call after a first run, which compiles it and shows whether it runs at all.

    Args:
        unpack: needed if results are not packed tokens.
        tolerance: see `BoundModule`.

    Raises:
        Unsupported: PyTorch cannot run it.
    """
    module = BoundModule(torch.no_grad()(run), unpack, tolerance)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about prototypes
        try:
            module.run()
        except (RuntimeError, AssertionError, ImportError) as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise Unsupported(f"PyTorch {torch.__version__} does not run it here: {first}") from error
    return module


@dataclass(frozen=True, eq=False)
class Group:
    """Sequences padded to the longest of them.

    Args:
        members: indices of the sequences.
        tokens: (sequences, longest, width), 0 in padding.
        padding: (sequences, longest) bool, true in padding; None without padding, and for causal attention, in which
            no token attends to the padding behind it.
        mask: (longest, longest) bool, true where a token does not attend; None without a mask.
    """

    members: np.ndarray
    tokens: torch.Tensor
    padding: torch.Tensor | None
    mask: torch.Tensor | None


def padded(inputs: PackedInputs, *, fast: bool = False) -> BoundModule:
    """Pad to the longest sequence, see `micro_batches`."""
    return micro_batches(inputs, len(inputs.lengths), fast=fast)


def compiled(inputs: PackedInputs, *, freeze: bool = False) -> BoundModule:
    """Pad to the longest sequence; torch.compile for this shape, and for weights laid out beforehand if `freeze`.

    Raises:
        Unsupported: there is no C++ compiler.
    """
    with compilation(freeze=freeze) as compile_later:
        return _grouped(inputs, _groups(inputs, len(inputs.lengths)), compile_later(_forward), fast=False)


def fast_nested(inputs: PackedInputs) -> BoundModule:
    """Use PyTorch's fused inference kernels on a strided nested tensor, which pads only the attention.

    Raises:
        Unsupported: attention is causal.
    """
    if inputs.causal:
        raise Unsupported("PyTorch's fused kernels take no mask with nested tensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about prototypes
        nested = torch.nested.nested_tensor(list(inputs.sequences()))

    def run() -> torch.Tensor:
        with fast_path(True):
            return _forward(inputs.module, nested)

    return bind_module(run, lambda result: torch.cat(result.unbind()))


def micro_batch_sizes(batch: int) -> list[int]:
    """List the powers of two from 2 up to below the batch size, which the paper searches."""
    return [1 << power for power in range(1, max(batch - 1, 0).bit_length())]


def micro_batches(inputs: PackedInputs, size: int, *, fast: bool = False) -> BoundModule:
    """Sort sequences by length, split the batch, and pad each part to its longest.

    Source: CoRa §D.8, PT-UB.

    Args:
        fast: whether PyTorch's fused inference kernels run.
    """
    return _grouped(inputs, _groups(inputs, size), _forward, fast=fast)


def _grouped(inputs: PackedInputs, groups: Sequence[Group], forward: Forward, *, fast: bool) -> BoundModule:
    def run() -> list[torch.Tensor]:
        with fast_path(fast):
            return [forward(inputs.module, group.tokens, group.padding, group.mask) for group in groups]

    return bind_module(run, partial(_ungrouped, inputs, groups))


def _forward(module: Module, tokens: torch.Tensor, padding: torch.Tensor | None = None,
             mask: torch.Tensor | None = None) -> torch.Tensor:
    causal = mask is not None
    if isinstance(module, nn.MultiheadAttention):
        return module(tokens, tokens, tokens, key_padding_mask=padding, attn_mask=mask, is_causal=causal,
                      need_weights=False)[0]
    return module(tokens, src_mask=mask, src_key_padding_mask=padding, is_causal=causal)


def _groups(inputs: PackedInputs, size: int) -> list[Group]:
    lengths, sequences = np.array(inputs.lengths), inputs.sequences()
    order = np.argsort(-lengths, kind="stable")
    groups = []
    for start in range(0, order.size, size):
        members = order[start: start + size]
        tokens = nn.utils.rnn.pad_sequence([sequences[member] for member in members], batch_first=True)
        longest, padding, mask = tokens.shape[1], None, None
        if inputs.causal:
            mask = torch.ones(longest, longest, dtype=torch.bool, device=inputs.device).triu(1)
        elif lengths[members].min() < longest:
            padding = torch.from_numpy(np.arange(longest) >= lengths[members, None]).to(inputs.device)
        groups.append(Group(members, tokens, padding, mask))
    return groups


def _ungrouped(inputs: PackedInputs, groups: Sequence[Group], results: Sequence[torch.Tensor]) -> torch.Tensor:
    taken = {int(member): result[index, : inputs.lengths[member]]
             for group, result in zip(groups, results, strict=True) for index, member in enumerate(group.members)}
    return torch.cat([taken[member] for member in range(len(inputs.lengths))])
