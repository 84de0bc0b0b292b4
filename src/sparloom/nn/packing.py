"""Make a transformer encoder compute real tokens only, in place, and undo it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from sparloom.errors import Unsupported
from sparloom.nn import packed_torch
from sparloom.nn.packed_layers import PRECISION, STATE, CheckedEncoder, EncoderState, PackedEncoder
from sparloom.ragged import PRECISIONS

__all__ = ["Packing", "describe_packing", "pack", "unpack"]

log = logging.getLogger(__name__)

M = TypeVar("M", bound=torch.nn.Module)


@dataclass(frozen=True)
class Packing:
    """What `pack` did with the encoders of a model.

    Args:
        packed: names of encoders that compute real tokens only; "" is the model itself.
        left: names of others, and why each was left.
        weight_bytes: of packed weights, which exist from the first call on.
    """

    packed: tuple[str, ...]
    left: Mapping[str, str]
    weight_bytes: int = 0


def pack(model: M, *, strict: bool = False, precision: str | torch.dtype = "float32") -> M:
    """Make the encoders in a model compute real tokens only, in place.

    An encoder is a torch.nn.TransformerEncoder, a layer of one, a torch.nn.MultiheadAttention, or a model of
    transformers such as BertModel, at any depth: in a model with a head, or in a SentenceTransformer. It stays the same
    object with the same parameters, buffers and names: state dicts, optimisers, copies and references are not affected;
    only its class changes, to a subclass. Results are those of before up to rounding, and 0 at
    padding.

    Weights are packed into panels at the first call, which takes as much memory as the weights of the layers in this
    precision, and again when they change.

    Args:
        model: any module.
        strict: raise an error if an encoder cannot be packed, and pack none then.
        precision: of the operands of products where no gradients are needed: "float32", "bfloat16", or "int8" of those
            with weights, with scales by token and by column of weights. Parameters, everything else and training stay
            in float32. Packing again changes it.

    Returns:
        The model. `describe_packing` says what was packed, and what was left and why.

    Raises:
        TypeError: the model is no module.
        ValueError: there is no such precision.
        Unsupported: no encoder can be packed, or, with `strict`, not all; says why.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}: expected a torch.nn.Module")
    precision = str(precision).removeprefix("torch.")
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r}: there are {', '.join(PRECISIONS)}")
    found = _describe(model, precision)
    if not found.packed or (strict and found.left):
        reasons = "; ".join(f"{name or type(model).__name__}: {reason}" for name, reason in found.left.items())
        raise Unsupported(f"{'not all encoders' if found.packed else 'no encoder'} of {type(model).__name__} can be "
                          f"packed: {reasons or 'it has none: ' + _known()}")
    models = _models()
    for name in found.packed:
        encoder = model.get_submodule(name)
        encoder.__class__ = models.get(type(encoder), type(encoder))
        if encoder.__dict__.get(PRECISION) != precision:
            encoder.__dict__.pop(STATE, None)  # weights in another precision
        encoder.__dict__[PRECISION] = precision
    log.info("%s: packed %s%s", type(model).__name__, ", ".join(name or "the model" for name in found.packed),
             "".join(f"; left {name}: {reason}" for name, reason in found.left.items()))
    return model


def unpack(model: M) -> M:
    """Make all encoders of a model compute as before, and free their packed weights; undoes `pack`."""
    originals = {packed: original for original, packed in _models().items()}
    for module in model.modules():
        if type(module) in originals:
            module.__class__ = originals[type(module)]
            for name in (STATE, PRECISION):
                module.__dict__.pop(name, None)
    return model


def describe_packing(model: torch.nn.Module) -> Packing:
    """Say which encoders of a model are packed, and why others are not."""
    found = _describe(model, None)
    states = [module.__dict__.get(STATE) for module in model.modules()]
    return replace(found, weight_bytes=sum(each.weight_bytes for each in states if isinstance(each, EncoderState)))


def _describe(model: torch.nn.Module, precision: str | None) -> Packing:
    """Say which encoders are packed, or which ones can be in a precision."""
    models, packed, left = _models(), [], {}
    kinds = set(models.values())
    for name, module in model.named_modules():
        kind = type(module)
        if any(not outer or name.startswith(f"{outer}.") for outer in (*packed, *left)):
            continue  # a part of an encoder that is packed as a whole, or left as a whole
        if kind in kinds or kind in models:
            reason = _refusal(module, models.get(kind, kind), precision)
            if reason is None and (kind in kinds or precision is not None):
                packed.append(name)
            else:
                left[name] = reason or "it was not packed"
        elif _is_encoder(module) and not any(type(each) in models or type(each) in kinds for each in module.modules()):
            left[name] = f"sparloom has no packed {kind.__name__}: {_known()}"
    return Packing(tuple(packed), left)


def _refusal(module: torch.nn.Module, packed: type[PackedEncoder], precision: str | None) -> str | None:
    """Say why programs cannot compute an encoder, which may be packed or not."""
    view = packed.__new__(packed)  # the module as an instance of the subclass, without changing it
    view.__dict__.update(vars(module))
    try:
        precision = precision or vars(module).get(PRECISION, "float32")
        CheckedEncoder.of(view.take_snapshot(), view.check_layers(), precision).check_call()
    except Unsupported as error:
        return str(error)
    return None


def _is_encoder(module: torch.nn.Module) -> bool:
    """Tell whether a module is a base model of transformers, or an encoder of torch."""
    transformers = sys.modules.get("transformers")
    if transformers is not None and isinstance(module, transformers.PreTrainedModel):
        return module.base_model is module
    return isinstance(module, torch.nn.TransformerEncoder)


def _known() -> str:
    return "there are " + ", ".join(sorted(each.__name__ for each in _models()))


def _models() -> Mapping[type, type]:
    """Return the packed class of every encoder; those of transformers only where that is imported."""
    if "transformers" not in sys.modules:
        return packed_torch.MODELS
    from sparloom.nn import packed_decoders, packed_transformers

    return packed_torch.MODELS | packed_transformers.MODELS | packed_decoders.MODELS
