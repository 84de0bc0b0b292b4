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

__all__ = [
    "BoundModule", "Module", "PackedInputs", "attention_module", "bind_module", "compilation", "compiled",
    "encoder_layer", "fast_loop", "fast_micro_batches", "fast_nested", "fast_padded", "fast_path", "frozen", "loop",
    "micro_batch_sizes", "micro_batches", "padded", "reference",
]

Module = nn.TransformerEncoderLayer | nn.MultiheadAttention
MANY_SHAPES = 10_000  # PyTorch gives up after 8
Wrap = Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]
Made = TypeVar("Made", nn.TransformerEncoderLayer, nn.MultiheadAttention)


@dataclass(frozen=True, eq=False)
class PackedInputs:
    """What every way to compute the module gets.

    Args:
        module: in evaluation mode; an encoder layer normalises after its blocks (norm_first=False) and has ReLU.
        tokens: (tokens, width), of the type of the module's parameters.
        lengths: of the sequences, at least one token each.
        causal: a token attends to itself and those before it.

    Raises:
        ValueError: lengths do not fit the tokens, or the module is one that not all ways can compute.
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
        layer = self.module
        if isinstance(layer, nn.TransformerEncoderLayer) and (layer.norm_first or layer.activation_relu_or_gelu != 1):
            raise ValueError("encoder layer with norm_first=True or without ReLU: take norm_first=False, "
                             "activation='relu'")
        attention = self.attention
        if (layer.training or not attention.batch_first or attention.in_proj_weight is None
                or attention.in_proj_bias is None or attention.bias_k is not None or attention.add_zero_attn):
            raise ValueError("module in training mode, or attention without batch_first=True, with embeddings of "
                             "several widths, without bias or with added keys: call eval() and keep PyTorch's defaults "
                             "but batch_first=True")

    @classmethod
    def drawn(cls, module: Module, lengths: Sequence[int], *, seed: int, causal: bool = False) -> "PackedInputs":
        """Draw normally distributed tokens."""
        width = _attention(module).embed_dim
        counts = tuple(int(length) for length in lengths)
        generator = torch.Generator().manual_seed(seed)
        return cls(module, torch.randn(sum(counts), width, generator=generator), counts, causal)

    def double(self) -> "PackedInputs":
        """The same in float64, with a copy of the module."""
        return replace(self, module=copy.deepcopy(self.module).double(), tokens=self.tokens.double())

    def to(self, device: torch.device) -> "PackedInputs":
        """The same on a device, with a copy of the module."""
        return replace(self, module=copy.deepcopy(self.module).to(device), tokens=self.tokens.to(device))

    @property
    def device(self) -> torch.device:
        """Where tokens and parameters are."""
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
        """Where sequences begin, and the number of tokens: (sequences + 1,) int64, where the tokens are."""
        return torch.from_numpy(np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))).to(self.device)

    def sequences(self) -> tuple[torch.Tensor, ...]:
        """View the tokens of each sequence."""
        return self.tokens.split(self.lengths)


def encoder_layer(
    width: int = 512, heads: int = 8, feedforward: int = 2048, *, seed: int,
) -> nn.TransformerEncoderLayer:
    """Make an encoder layer as in the paper; biases and norms are drawn, too, so that none can be forgotten."""
    return _drawn(lambda: nn.TransformerEncoderLayer(
        width, heads, feedforward, dropout=0.0, activation="relu", norm_first=False, batch_first=True), seed)


def attention_module(width: int = 512, heads: int = 8, *, seed: int) -> nn.MultiheadAttention:
    """Make a multi-head attention module; biases are drawn, too."""
    return _drawn(lambda: nn.MultiheadAttention(width, heads, batch_first=True), seed)


def reference(inputs: PackedInputs) -> torch.Tensor:
    """Compute sequence after sequence by the module itself, on PyTorch's ordinary path.

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
    """Give what makes a function into a compiled one; first calls, which compile, belong into the block.

    Args:
        freeze: weights are constants, and laid out for MKL beforehand. It is named to torch.compile, too, which would
            else take what it compiled of the same function without it.
    """
    with dynamo.patch(recompile_limit=MANY_SHAPES), inductor.patch(freezing=freeze):
        yield partial(torch.compile, dynamic=False, fullgraph=True, options={"freezing": freeze})


@contextmanager
def fast_path(enabled: bool) -> Iterator[None]:
    """Switch PyTorch's fused kernels for inference on or off, and back afterwards."""
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


TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class BoundModule:
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


def bind_module(
    run: Callable[[], Any], unpack: Callable[[Any], torch.Tensor] = lambda result: result, *,
    tolerance: float = TOLERANCE,
) -> BoundModule:
    """Run once, so that what can be compiled is and what cannot run is known.

    Args:
        unpack: needed if results are not packed tokens already.
        tolerance: of a `BoundModule`.

    Raises:
        Unsupported: PyTorch refuses.
    """
    peer = BoundModule(torch.no_grad()(run), unpack, tolerance)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of prototypes, said once per process
        try:
            peer.run()
        except (RuntimeError, AssertionError, ImportError) as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise Unsupported(f"PyTorch {torch.__version__} does not run it here: {first}") from error
    return peer


Forward = Callable[..., torch.Tensor]


@dataclass(frozen=True, eq=False)
class Group:
    """Some sequences, padded to the longest of them.

    Args:
        members: their numbers.
        tokens: (sequences, longest, width), 0 in padding.
        padding: (sequences, longest) bool, true in padding; None where none is, or none matters: in causal attention
            what stands behind a sequence meets none of its tokens.
        mask: (longest, longest) bool, true where a token does not attend; None where all attend to all.
    """

    members: np.ndarray
    tokens: torch.Tensor
    padding: torch.Tensor | None
    mask: torch.Tensor | None


def padded(inputs: PackedInputs) -> BoundModule:
    """Pad all to the longest; PyTorch's ordinary path."""
    return micro_batches(inputs, len(inputs.lengths))


def fast_padded(inputs: PackedInputs) -> BoundModule:
    """Pad all to the longest; PyTorch's fused kernels for inference."""
    return fast_micro_batches(inputs, len(inputs.lengths))


def compiled(inputs: PackedInputs) -> BoundModule:
    """Pad all to the longest; torch.compile for this shape.

    Raises:
        Unsupported: there is no C++ compiler.
    """
    return _compiled(inputs, freeze=False)


def frozen(inputs: PackedInputs) -> BoundModule:
    """Like `compiled`, with weights as constants, which are laid out beforehand.

    Raises:
        Unsupported: there is no C++ compiler.
    """
    return _compiled(inputs, freeze=True)


def fast_nested(inputs: PackedInputs) -> BoundModule:
    """PyTorch's fused kernels for inference on a strided nested tensor: packed but for the attention.

    Raises:
        Unsupported: attention is causal.
    """
    if inputs.causal:
        raise Unsupported("PyTorch's fused kernels take no mask with nested tensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        nested = torch.nested.nested_tensor(list(inputs.sequences()))

    def run() -> torch.Tensor:
        with fast_path(True):
            return _forward(inputs.module, nested)

    return bind_module(run, lambda result: torch.cat(result.unbind()))


def micro_batch_sizes(batch: int) -> list[int]:
    """List the powers of two from 2 to below the batch: the sizes that the paper searches; the batch is `padded`."""
    return [1 << power for power in range(1, max(batch - 1, 0).bit_length())]


def micro_batches(inputs: PackedInputs, size: int) -> BoundModule:
    """Sort sequences by length, cut the batch, pad each part to its own longest; PyTorch's ordinary path.

    Source: CoRa §D.8, PT-UB.
    """
    return _grouped(inputs, _groups(inputs, size), _forward, fast=False)


def fast_micro_batches(inputs: PackedInputs, size: int) -> BoundModule:
    """Micro-batches by PyTorch's fused kernels for inference."""
    return _grouped(inputs, _groups(inputs, size), _forward, fast=True)


def loop(inputs: PackedInputs) -> BoundModule:
    """One sequence after the other, without padding; PyTorch's ordinary path."""
    return micro_batches(inputs, 1)


def fast_loop(inputs: PackedInputs) -> BoundModule:
    """One sequence after the other, by PyTorch's fused kernels for inference."""
    return fast_micro_batches(inputs, 1)


def _grouped(inputs: PackedInputs, groups: Sequence[Group], forward: Forward, *, fast: bool) -> BoundModule:
    def run() -> list[torch.Tensor]:
        with fast_path(fast):
            return [forward(inputs.module, group.tokens, group.padding, group.mask) for group in groups]

    return bind_module(run, partial(_ungrouped, inputs, groups))


def _compiled(inputs: PackedInputs, *, freeze: bool) -> BoundModule:
    with compilation(freeze=freeze) as compile_later:
        return _grouped(inputs, _groups(inputs, len(inputs.lengths)), compile_later(_forward), fast=False)


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
    taken = {int(member): result[place, : inputs.lengths[member]]
             for group, result in zip(groups, results, strict=True) for place, member in enumerate(group.members)}
    return torch.cat([taken[member] for member in range(len(inputs.lengths))])
