"""Operands under torch.autocast: kernels compute in float32 there, like operations on torch's own float32 list."""

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["DEVICES", "TYPES", "autocast_operands", "remedy"]

TYPES: Mapping[str, tuple[torch.dtype, ...]] = {
    "cpu": (torch.float32,), "cuda": (torch.float32, torch.float16, torch.bfloat16)}
"""Device that operations compute on -> types of numbers there."""

DEVICES = tuple(TYPES)
HALVES = (torch.float16, torch.bfloat16)


def autocast_operands(*given: Any) -> tuple[Any, ...]:
    """Convert operands of half precision to float32 where autocast is on for their device.

    Operands on a GPU that are all of one type keep it: kernels there read float16 and bfloat16. Everything else,
    float64 and what is no tensor included, is passed on as it is.
    """
    for each in given:
        if isinstance(each, torch.Tensor) and each.dtype in HALVES:
            break
    else:
        return given  # as nearly always
    tensors = [each for each in given if isinstance(each, torch.Tensor)]
    devices = {each.device.type for each in tensors if each.dtype in HALVES}
    if not devices & {"cpu", "cuda"} or not torch.is_autocast_enabled(min(devices)):
        return given
    if devices == {"cuda"} and len({each.dtype for each in tensors}) == 1:
        return given
    return tuple(each.float() if isinstance(each, torch.Tensor) and each.dtype in HALVES else each for each in given)


def remedy(given: torch.Tensor, conversion: str) -> str:
    """Say what to do with numbers of a type that operations do not take."""
    return ("complex numbers are not computed with: give the real and the imaginary part, one after the other, as "
            "float32" if given.is_complex() else conversion)
